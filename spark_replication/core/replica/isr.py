"""Who is in sync, as the leader sees it: when a follower leaves the ISR (I2), when one may join (I3), which write asks
ZooKeeper for that (I1), and what ZooKeeper's answer means (I4). Nothing else may propose an ISR change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from msgspec.structs import replace

from spark_replication.core.law.election import NOBODY
from spark_replication.core.law.partition_change import with_isr
from spark_replication.core.law.writes import (
    IsrAnswer,
    IsrCommitted,
    IsrRefused,
    IsrUnanswered,
    IsrWrite,
    StoredPartition,
)
from spark_replication.core.replica.replica import UNKNOWN_END, Follower, Leading, PendingIsr
from spark_replication.model import BrokerId, Offset, PartitionState, TopicPartition


def propose(
    leading: Leading, *, log_end: Offset, now_ms: int, lag_ms: int, too_far: frozenset[BrokerId] = NOBODY
) -> Leading:
    """Put an ISR change in flight if one is called for, and if none is in flight (I4: one at a time).

    `too_far` are members that lag by more bytes than is allowed, however lately they fetched (I2).
    """
    if leading.pending is not None or (not too_far and _all_in_sync(leading, log_end, now_ms, lag_ms)):
        return leading
    others = leading.state.isr - {leading.me}
    void = leading.void
    leaving = {m for m in others if m in void or m in too_far or _lags(leading, m, log_end, now_ms, lag_ms)}
    joining = {
        replica: follower.broker_epoch
        for replica, follower in sorted(leading.followers.items())
        if replica not in leading.state.isr
        and leading.barred.get(replica) != follower.broker_epoch
        and _may_join(leading, follower)
    }
    isr = (leading.state.isr - leaving) | joining.keys()
    if isr == leading.state.isr:
        return leading
    wanted = changed(leading.state, isr, joining, void)
    return replace(leading, pending=PendingIsr(wanted, leading.partition_epoch, joining))


def too_far(
    leading: Leading, lag_bytes_max: int, log_start: Offset, bytes_from: Callable[[Offset], int]
) -> frozenset[BrokerId]:
    """The members that lag by more than `lag_bytes_max` (replica.lag.bytes); nobody if that is 0 (I2)."""
    if not lag_bytes_max:
        return NOBODY
    others = leading.state.isr - {leading.me}
    return frozenset(m for m in others if bytes_from(max(leading.followers[m].end, log_start)) > lag_bytes_max)


def write_of(leading: Leading, change: PendingIsr, partition: TopicPartition, topic_id: str) -> IsrWrite:
    return IsrWrite(
        partition=partition,
        topic_id=topic_id,
        broker=leading.me,
        broker_epoch=leading.broker_epoch,
        state=change.state,
        version=change.version,
        joining=change.joining,
        leaving=leading.state.isr - change.state.isr,
    )


def _all_in_sync(leading: Leading, log_end: Offset, now_ms: int, lag_ms: int) -> bool:
    """Whether nobody lags, is void or could join. This is quick, since it is so for nearly every partition at every
    tick and fetch."""
    if len(leading.state.isr) <= len(leading.followers):
        return False
    epochs = leading.state.epochs
    for member, follower in leading.followers.items():
        if follower.clean_since > epochs[member]:
            return False
        if follower.end != log_end and _lags(leading, member, log_end, now_ms, lag_ms):
            return False
    return True


def changed(
    state: PartitionState,
    isr: frozenset[BrokerId],
    joining: Mapping[BrokerId, int],
    void: frozenset[BrokerId] = NOBODY,
) -> PartitionState:
    """The state that a leader asks ZooKeeper to store. Its first ISR write ends the recovery that elected it (L4)."""
    return replace(with_isr(state, isr, joined=joining, void=void - isr), recovering=False)


def _lags(leading: Leading, member: BrokerId, log_end: Offset, now_ms: int, lag_ms: int) -> bool:
    follower = leading.followers[member]
    # A follower at the log end never leaves, however long it has had nothing to fetch.
    return follower.end != log_end and now_ms - follower.caught_up_ms >= lag_ms


def _may_join(leading: Leading, follower: Follower) -> bool:
    # The log end when this process began to lead counts, too: after a restart in the same leader epoch the high
    # watermark is an old checkpoint, and a follower that is only past that may lack acknowledged records.
    return follower.end >= max(leading.high_watermark, leading.epoch_start, leading.end_at_start)


def answered(leading: Leading, change: PendingIsr, answer: IsrAnswer) -> Leading | None:
    """The leadership after ZooKeeper's answer to `change`; None if it is over (I1).

    An answer to a change that is not in flight is ignored (I4). An unanswered change stays in flight, and is repeated
    as it is. If its condition fails then, the stored content shows whether the change itself had been stored.
    """
    if leading.pending is not change:
        return leading
    match answer:
        case IsrUnanswered():
            return leading
        case IsrCommitted(version=version):
            # Ignored unless it is newer: a controller's change of this very version may have been heard of first.
            return _taken(replace(leading, pending=None), StoredPartition(change.state, version))
        case IsrRefused(current=stored):
            if stored is None:
                return None
            # The partition has not moved, so a joining broker was what failed: each of its fetches would fail again.
            barred = change.joining if stored.version == change.version else {}
            return told(replace(leading, pending=None, barred=barred), stored)
        case _:
            assert_never(answer)


def reconsidered(leading: Leading) -> Leading:
    """Propose refused replicas again: after some time they may have registered again, or have ended their shut-down."""
    return replace(leading, barred={}) if leading.barred else leading


def told(leading: Leading, stored: StoredPartition) -> Leading | None:
    """The leadership with the stored state, as read or as a command has it. None if somebody else leads, or a newer
    epoch has begun.

    A change in flight goes on: if this state overtook it, its condition will fail (I4). A member that somebody else
    dropped is presumed dead, unless it has fetched under a newer broker epoch than it joined at: its end is forgotten
    until its next fetch. Else a member at the log end would be proposed, and refused, with every tick.
    """
    after = _taken(leading, stored)
    if after is None or after is leading:
        return after
    joined = leading.state.epochs
    silent = {
        member: replace(after.followers[member], end=UNKNOWN_END)
        for member in leading.state.isr - after.state.isr
        if after.followers[member].broker_epoch <= joined[member]
    }
    return replace(after, followers={**after.followers, **silent}) if silent else after


def _taken(leading: Leading, stored: StoredPartition) -> Leading | None:
    if stored.state.leader != leading.me or stored.state.leader_epoch != leading.state.leader_epoch:
        return None
    if stored.version <= leading.partition_epoch:
        return leading
    return replace(leading, state=stored.state, partition_epoch=stored.version)
