"""How far followers are behind, as their leader sees it. Nothing is decided by this: `isr` decides who is in sync."""

from __future__ import annotations

import msgspec

from spark_replication.core.replica.replica import Follower, Leading
from spark_replication.model import BrokerId, Offset


class Lag(msgspec.Struct, frozen=True):
    """records: that the follower lacks; all of them, while it has not reported an end. ms: since it was caught up."""

    records: int
    ms: int


IN_SYNC = Lag(0, 0)


def lags(leading: Leading, *, log_start: Offset, log_end: Offset, now_ms: int) -> dict[BrokerId, Lag]:
    """Of all followers but those that a reassignment is adding: these have a long way to go, and nobody waits."""
    copying = leading.copying
    return {
        broker: _lag(follower, log_start, log_end, now_ms)
        for broker, follower in leading.followers.items()
        if broker not in copying
    }


def _lag(follower: Follower, log_start: Offset, log_end: Offset, now_ms: int) -> Lag:
    if follower.end == log_end:
        return IN_SYNC
    return Lag(log_end - max(follower.end, log_start), max(0, now_ms - follower.caught_up_ms))
