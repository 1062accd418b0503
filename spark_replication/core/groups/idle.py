"""When a group that nobody uses any more is forgotten, with its positions.

- A group without members that was not used for `group.retention.ms` is forgotten: who comes back begins anew.
- A coordinator that has just begun forgets nothing for GRACE_MS: perhaps the whole cluster was down for a month.
- Neither does one whose clock was set: perhaps it is set right again.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_replication.core.groups.group import ConsumerGroup

FOR_EVER_MS = -1
GRACE_MS = 3_600_000.0
STEP_MS = 60_000.0  # a clock that has gone so much further than time has was set
LOOK_MS = 600_000.0  # between two looks at all groups


class IdleGroups:
    def __init__(self, retention_ms: int, *, clock_ms: float, now_ms: int) -> None:
        """clock_ms: never goes back. now_ms: by the clock that people set."""
        self._retention_ms = retention_ms
        self._grace_ms = min(GRACE_MS, retention_ms)
        self._look_ms = min(LOOK_MS, retention_ms / 4)
        self._begin(clock_ms, now_ms)

    def _begin(self, clock_ms: float, now_ms: int) -> None:
        self._ahead_ms = now_ms - clock_ms
        self._due_ms = clock_ms + self._grace_ms

    def over(self, groups: Iterable[ConsumerGroup], *, clock_ms: float, now_ms: int) -> list[ConsumerGroup]:
        """Look at all of them now and then. Returns those that are to be forgotten."""
        if self._retention_ms == FOR_EVER_MS:
            return []
        if abs(now_ms - clock_ms - self._ahead_ms) >= STEP_MS:
            self._begin(clock_ms, now_ms)
        if clock_ms < self._due_ms:
            return []
        self._ahead_ms = now_ms - clock_ms  # it is set right a little at a time
        self._due_ms = clock_ms + self._look_ms
        return [group for group in groups if not group.members and now_ms - group.used_ms >= self._retention_ms]
