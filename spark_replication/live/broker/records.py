"""Small files that a broker can do without for a while: if the disk refuses one, it is written again later.

Without its start record the broker's next registration is unclean; without broker.json no guardian adopts it. Neither
is a reason to end: readers go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_replication.errors import StorageFailed

log = logging.getLogger(__name__)


class Records:
    """Only the latest content of each name is written. Bounded: there are as many names as kinds of files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while writing: an older content never follows a newer
        self._refused: dict[str, Callable[[], None]] = {}

    def write(self, name: str, write: Callable[[], None]) -> bool:
        """Write now. False: the disk refused, and it is written later. write: may raise StorageFailed, and be
        repeated."""
        with self._lock:
            return self._write(name, write)

    def write_again(self) -> None:
        """Write everything again that was refused."""
        with self._lock:
            for name, write in list(self._refused.items()):
                self._write(name, write)

    def _write(self, name: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except StorageFailed as error:
            if name not in self._refused:
                log.error("%s is tried again later: %s", name, error)
            self._refused[name] = write
            return False
        else:
            if self._refused.pop(name, None) is not None:
                log.info("%s: the disk has taken it", name)
            return True
