"""A driver's seat: a directory whose lock the driver holds for as long as it lives, unless another process does.

The holder of the lock knows that a predecessor with the same seat is dead, and need not wait for its session to expire.
So a driver that starts again takes over at once, and a standby on the same host as soon as the first has died.
"""

from __future__ import annotations

from pathlib import Path

from spark_replication.errors import DirectoryInUse
from spark_replication.model import HeldDirectory
from spark_replication.storage.directory.broker_directory import DirectoryLock, boot_id, directory_mark, probe


class Seat:
    """Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: DirectoryLock | None = None

    def take(self) -> HeldDirectory | None:
        """Take the seat, if it is not taken yet. None: another process has it."""
        if self._lock is None:
            try:
                self._lock = DirectoryLock.take(self._directory)
            except DirectoryInUse:
                return None
        return HeldDirectory(boot_id=boot_id(), directory_mark=directory_mark(self._directory))

    def became_free(self) -> bool:
        """Whether another process had the seat, and has gone."""
        return self._lock is None and not probe(self._directory)

    def leave(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None
