"""The segments below a log's start whose files are still there.

The log has forgotten them. Their files go a few at a time, the oldest first, so that nobody waits for long, and what is
left has no hole. What a crash leaves goes with the next recovery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from spark_replication.storage.log.segment import Segment

#: To remove a segment takes about 0.1 ms, and whoever wants its partition, or this broker's timers, waits so long.
REMOVED_AT_ONCE_MAX = 64


class Leftover:
    """Its methods raise OSError. What could not be removed stays."""

    def __init__(self) -> None:
        self._segments: deque[Segment] = deque()

    def __bool__(self) -> bool:
        return bool(self._segments)

    def add(self, segments: Iterable[Segment]) -> None:
        self._segments.extend(segments)

    def remove_some(self) -> None:
        for _ in range(min(REMOVED_AT_ONCE_MAX, len(self._segments))):
            self._segments[0].remove()
            self._segments.popleft()

    def remove_all(self) -> None:
        while self._segments:
            self.remove_some()

    def release(self) -> None:
        for segment in self._segments:
            segment.release()
