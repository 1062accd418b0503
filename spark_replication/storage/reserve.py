"""Space that a broker keeps aside, so that a full disk can be emptied: deleting needs a few small files first.

Rules:
- It is given back a part at a time, and only to a change that met a full disk: somebody else may take what is given.
- It is made again as soon as there is room. Until then nothing else depends on it.
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
    """See Files.with_reserve. give: makes some room; False: there is nothing left to give."""
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
        self._bytes = 0  # allocated by this process, or seen to be

    def make(self) -> None:
        """As much of it as there is room for. No error: a broker without a reserve is as good, until its disk fills."""
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
        """A part of it. False: there is none."""
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
