"""How far followers are behind, as their leader sees it. Nothing is decided by this: `isr` decides who is in sync."""

from __future__ import annotations

from spark_replication.core.replica.replica import UNKNOWN_END, Follower, Leading
from spark_replication.messages.descriptions import FollowerLag
from spark_replication.model import BrokerId, Offset

CAUGHT_UP = FollowerLag(records=0, ms=0)


def lags(leading: Leading, *, log_start: Offset, log_end: Offset, now_ms: int) -> dict[BrokerId, FollowerLag]:
    """The lag of each follower, by its last fetch."""
    return {broker: _lag(follower, log_start, log_end, now_ms) for broker, follower in leading.followers.items()}


def _lag(follower: Follower, log_start: Offset, log_end: Offset, now_ms: int) -> FollowerLag:
    if follower.end == log_end:
        return CAUGHT_UP
    records = None if follower.end == UNKNOWN_END else log_end - max(follower.end, log_start)
    return FollowerLag(records=records, ms=max(0, now_ms - follower.caught_up_ms))
