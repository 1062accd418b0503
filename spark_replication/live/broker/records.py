"""Small files that a broker's disk refused, and that it can do without for a while: each is written again later.

Without its start record the broker's next registration is unclean, without broker.json nobody adopts it. Neither is a
reason to end: readers go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_replication.errors import StorageFailed

log = logging.getLogger(__name__)


class Records:
    """Of each name only the latest content is written; there are as many names as kinds of files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while writing: an older content never follows a newer
        self._refused: dict[str, Callable[[], None]] = {}

    def write(self, name: str, write: Callable[[], None]) -> bool:
        """Now, or as soon as the disk takes it: False. write: raises StorageFailed, and may be repeated."""
        with self._lock:
            return self._write(name, write)

    def write_again(self) -> None:
        """What was refused."""
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
