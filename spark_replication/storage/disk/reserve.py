"""Space that a broker keeps aside, so that a full disk can be emptied: deleting needs a few small files first.

Rules:
- The reserve is given back a part at a time, and only to a change that met a full disk: somebody else may take what is
  given.
- The reserve is made again as soon as there is room. Nothing else depends on it meanwhile.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

RESERVE_FILE = "reserve"
RESERVE_BYTES = 1 << 20
RESERVE_PART_BYTES = 64 << 10

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def with_reserve(change: Callable[[], None], give: Callable[[], bool]) -> None:
    """See Files.with_reserve. `give` makes some room; it returns False if nothing is left to give."""
    while True:
        try:
            change()
            return
        except OSError as error:
            if error.errno not in _FULL or not give():
                raise


class Reserve:
    """One file whose blocks are allocated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        #: Allocated by this process, or found so.
        self._bytes = 0

    def make(self) -> None:
        """Allocate as much of the reserve as there is room for. No error if there is none: a broker needs no reserve
        until its disk is full."""
        with self._lock:
            if self._bytes == RESERVE_BYTES:
                return
            with suppress(OSError):
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    while self._bytes < RESERVE_BYTES:
                        os.posix_fallocate(handle, self._bytes, RESERVE_PART_BYTES)
                        self._bytes += RESERVE_PART_BYTES
                finally:
                    os.close(handle)

    def give(self) -> bool:
        """Give back a part of the reserve. Returns False if none is left."""
        with self._lock:
            left = self._bytes - RESERVE_PART_BYTES
            if left < 0:
                return False
            try:
                os.truncate(self._path, left)
            except OSError:
                self._bytes = 0  # somebody has removed it: it is made anew
                return False
            self._bytes = left
            return True
