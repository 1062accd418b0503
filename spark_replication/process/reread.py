"""What files say now: they are read again once one of them has changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from spark_replication.errors import ReplicationError

LOOK_S = 1.0  # between two looks at the files

Read = TypeVar("Read")

log = logging.getLogger(__name__)


class Reread(Generic[Read]):
    """Thread-safe. What cannot be read is logged, and what was read before it holds on."""

    def __init__(self, paths: Sequence[str], read: Callable[[], Read]) -> None:
        """Raises what `read` raises."""
        self._paths = paths
        self._read = read
        self._looking = threading.Lock()
        self._looked_s = time.monotonic()
        self._seen = self._look()
        self._now = read()

    def now(self) -> Read:
        """No older than LOOK_S."""
        if self._paths and time.monotonic() - self._looked_s >= LOOK_S:
            self.look()
        return self._now

    def look(self) -> bool:
        """Looks at the files at once. Returns whether they have changed."""
        with self._looking:
            self._looked_s = time.monotonic()
            seen = self._look()
            if seen == self._seen:
                return False
            self._seen = seen
            try:
                self._now = self._read()
            except ReplicationError as error:
                log.warning("what was read before holds on: %s", error.message)
                return False
        log.info("%s changed, and was read again", ", ".join(self._paths))
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
