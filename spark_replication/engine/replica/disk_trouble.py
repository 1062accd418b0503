"""What follows when the disk refuses what a replica must keep, or does not give back where it is (B4, D1).

Rules:
- The controller is told, so that another in-sync replica takes over, and nobody waits for this one. A leader that is
  alone in the ISR stays leader: its records can be read, and it goes on as soon as its disk does.
- The replica sends no fetch for `disk.retry.ms`: at the end of an idle partition it would be in sync again before its
  disk was tried, and hold up the next batch.
"""

from __future__ import annotations

from spark_replication.core.replica.replica import Following, Leading
from spark_replication.errors import StorageFailed
from spark_replication.model import ReplicaOf
from spark_replication.ports import FailureReports

_FROM_NEXT_TICK = -1


class DiskTrouble:
    def __init__(self, replica: ReplicaOf, failures: FailureReports) -> None:
        self._replica = replica
        self._failures = failures
        self._since_ms: int | None = None

    @property
    def is_recent(self) -> bool:
        return self._since_ms is not None

    def refused(self, part: Leading | Following | None, error: StorageFailed) -> None:
        self._since_ms = _FROM_NEXT_TICK
        if isinstance(part, Following) or (isinstance(part, Leading) and part.state.isr != {part.me}):
            self._failures.failed(self._replica, error)

    def tick(self, now_ms: int, retry_ms: int) -> bool:
        """True once, when `retry_ms` have passed: the disk may be tried again."""
        if self._since_ms == _FROM_NEXT_TICK:
            self._since_ms = now_ms
        if self._since_ms is None or now_ms - self._since_ms < retry_ms:
            return False
        self._since_ms = None
        return True
