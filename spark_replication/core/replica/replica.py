"""One replica's part in its partition: leading with a high watermark, or following by leader epoch.

Leading is a frozen value; each function takes what happened and returns the next value. Its rules:
- the high watermark is the least log end over the maximal ISR, moves only if the committed ISR has min_isr members, and
  never falls within one process's leadership (I5); nothing else may move it (`advanced`).
- a follower's log end and its broker epoch are one pair: an end reported under another epoch counts for nothing (I8).
- what is committed is known once the high watermark has reached what the leader found in its log as it began
  (`committed_end`, KIP-207): before that, its high watermark may be below what others have called committed.
- logs are compared by leader epoch, never by high watermark, to find where they part (F1).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from spark_replication.core.replica.epochs import NO_EPOCH, EpochEnd, EpochHistory
from spark_replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
)
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.replication import Diverging
from spark_replication.model import BrokerId, Offset, PartitionState, TopicPartition

UNKNOWN_END = -1
_NOBODY: frozenset[BrokerId] = frozenset()


class LogView(msgspec.Struct, frozen=True):
    """What decisions need to know of a log."""

    log_start: Offset
    log_end: Offset
    epochs: EpochHistory
    #: All below it is on the disk. None if that does not matter (`flush` is not `always`).
    flushed_end: Offset | None = None

    @property
    def vouched_end(self) -> Offset:
        """How far this replica counts as having the log."""
        return self.log_end if self.flushed_end is None else self.flushed_end

    def epoch_before(self, offset: Offset) -> int:
        """The epoch of the record before `offset`; NO_EPOCH if the log has no such record."""
        return self.epochs.epoch_at(offset - 1) if offset > self.log_start else NO_EPOCH


class Follower(msgspec.Struct, frozen=True):
    """What a leader knows of a follower by its fetches. Invariant: `end` is at most the leader's log end."""

    #: UNKNOWN_END until it has reported an end that is on the leader's log, in this epoch.
    end: Offset
    broker_epoch: int
    caught_up_ms: int
    #: The leader's log end at its last fetch: if its next one is at or past this, it was caught up at fetched_ms.
    leader_end: Offset = 0
    fetched_ms: int = 0
    #: As in its last fetch (I8).
    clean_since: int = 0


class Me(msgspec.Struct, frozen=True):
    """This broker in this life: a registration begins another epoch."""

    broker: BrokerId
    epoch: int
    #: The first epoch of its unbroken chain of clean registrations (I8).
    clean_since: int


class PendingIsr(msgspec.Struct, frozen=True):
    """An ISR change in flight, against partition epoch `version`."""

    state: PartitionState
    version: int
    joining: dict[BrokerId, int]


class Leading(msgspec.Struct, frozen=True, kw_only=True):
    """A leadership of this process."""

    me: BrokerId
    broker_epoch: int
    replicas: tuple[BrokerId, ...]
    #: As stored at partition_epoch.
    state: PartitionState
    partition_epoch: int
    #: The offset where this leader epoch starts.
    epoch_start: Offset
    #: The log end when this process began to lead. Invariant: whatever an earlier leader, or an earlier process, has
    #: called committed lies below it.
    end_at_start: Offset
    high_watermark: Offset
    followers: Mapping[BrokerId, Follower]
    #: The ISR change in flight, made of a state of this leadership.
    pending: PendingIsr | None = None
    #: The broker epochs of replicas that ZooKeeper refused to let join: not proposed again before the next tick.
    barred: Mapping[BrokerId, int] = {}
    #: The replicas that a reassignment adds.
    adding: frozenset[BrokerId] = frozenset()

    @property
    def copying(self) -> frozenset[BrokerId]:
        """The replicas that a throttle may delay: no acknowledgement waits for them (A3)."""
        return self.adding - self.maximal_isr if self.adding else self.adding

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """The committed ISR and those joining: an acknowledgement waits for both, as the change may have taken effect
        (I4)."""
        return self.state.isr | self.pending.state.isr if self.pending is not None else self.state.isr

    @property
    def void(self) -> frozenset[BrokerId]:
        """The members that have registered uncleanly since they joined. Whatever they report, they are not in sync
        before they have left and joined again (I8)."""
        found = _NOBODY  # nearly always, and each append asks
        for member, joined in self.state.epochs.items():
            follower = self.followers.get(member)
            if follower is not None and follower.clean_since > joined:
                found |= {member}
        return found

    @property
    def in_sync(self) -> frozenset[BrokerId]:
        """The members that are compared with min ISR."""
        void = self.void
        return self.state.isr - void if void else self.state.isr


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """This replica follows `leader` at this epoch, from its own log's end."""

    #: None if nobody leads.
    leader: BrokerId | None
    leader_epoch: int
    partition_epoch: int
    high_watermark: Offset
    #: The leader epoch at which the partition was made (E4).
    created: int = 0
    #: How far consumers may read here: what this leader has called committed since it found this whole log on its own.
    #: None before that: an unclean election may have lost what lies below an earlier high watermark.
    served: Offset | None = None


def may_lead(state: PartitionState, me: Me) -> bool:
    """Whether this broker may lead: only as a member of the stored ISR that has lost nothing since it joined, whoever
    asks (I8)."""
    return state.leader == me.broker and state.epochs[me.broker] >= me.clean_since


def lead(
    command: PartitionCommand,
    me: Me,
    log: LogView,
    high_watermark: Offset,
    now_ms: int,
    *,
    before: Leading | None = None,
) -> Leading:
    """The leadership that a command begins. The start of its epoch is in `log.epochs` already (F3). before: the
    leadership of an earlier epoch that this process goes on from."""
    start = log.epochs[-1].start if log.epochs.last_epoch == command.state.leader_epoch else log.log_end
    leading = Leading(
        me=me.broker,
        broker_epoch=me.epoch,
        replicas=command.replicas,
        state=command.state,
        partition_epoch=command.partition_epoch,
        epoch_start=start,
        end_at_start=log.log_end if before is None else before.end_at_start,
        high_watermark=min(high_watermark, log.log_end),
        followers={},
    )
    return advanced(assigned(leading, command, now_ms), log.vouched_end)


def assigned(leading: Leading, command: PartitionCommand, now_ms: int) -> Leading:
    """The leadership with the command's replicas: new ones count from `now_ms` on, and those that are gone do not.

    A member of the ISR counts whatever the assignment says: the two are read one after the other.
    """
    others = sorted({*command.replicas, *leading.state.isr} - {leading.me})
    unheard = Follower(UNKNOWN_END, NO_EPOCH, caught_up_ms=now_ms)
    followers = {other: leading.followers.get(other, unheard) for other in others}
    return replace(leading, replicas=command.replicas, followers=followers, adding=frozenset(command.adding))


def advanced(leading: Leading, own_end: Offset) -> Leading:
    """Move the high watermark as far as the known log ends allow (I5). `own_end`: how far the leader has the log."""
    least = own_end
    for member in leading.maximal_isr:
        if member != leading.me:
            least = min(least, leading.followers[member].end)
    if least <= leading.high_watermark or len(leading.in_sync) < leading.state.min_isr:
        return leading
    return replace(leading, high_watermark=least)


def committed_end(leading: Leading, topic: TopicPartition) -> Offset:
    """The end of what is committed. Raises OffsetNotAvailable if this leader does not know it yet (K1)."""
    if leading.high_watermark < leading.end_at_start:
        raise OffsetNotAvailable(
            f"broker {leading.me} leads {topic} in leader epoch {leading.state.leader_epoch}, and does not know yet "
            f"how many of the records up to offset {leading.end_at_start} are committed. It waits for fetches of those "
            f"in sync: {len(leading.in_sync)} are, and {leading.state.min_isr} have to be. Retry"
        )
    return leading.high_watermark


def check_append(leading: Leading, *, acks_all: bool, topic: TopicPartition) -> None:
    """Refuse acks=all, before anything is written, if too few replicas are in sync (I6)."""
    if acks_all and len(leading.in_sync) < leading.state.min_isr:
        raise NotEnoughReplicas(
            f"{topic} has {len(leading.in_sync)} in-sync replicas and needs {leading.state.min_isr} for acks=all: "
            "retry when followers have caught up, or lower min.insync.replicas. "
            "See `spark-replication guide operate#acksall-is-refused`"
        )


def appended(leading: Leading, *, end_before: Offset, end: Offset, now_ms: int) -> Leading:
    """The leadership after its log has grown, and counts up to `end`. A follower that had everything was caught up
    until then (I2)."""
    at_end = [replica for replica, follower in leading.followers.items() if follower.end == end_before]
    if at_end:
        followers = dict(leading.followers)
        for replica in at_end:
            followers[replica] = replace(followers[replica], caught_up_ms=now_ms)
        leading = replace(leading, followers=followers)
    return advanced(leading, end)


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """A follower's fetch: it has everything below `offset`, and the record before that is of `last_epoch`."""

    by: BrokerId
    broker_epoch: int
    leader_epoch: int
    offset: Offset
    last_epoch: int
    clean_since: int


def check_leader_epoch(leading: Leading, leader_epoch: int) -> None:
    ours = leading.state.leader_epoch
    if leader_epoch < ours:
        raise FencedLeaderEpoch(f"leader epoch {leader_epoch} is over, {ours} is current: wait for the command")
    if leader_epoch > ours:
        raise UnknownLeaderEpoch(f"leader epoch {leader_epoch} is not known here yet, {ours} is: retry")


def check_fetch(leading: Leading, fetch: Fetch) -> None:
    """Refuse a fetch of another leader epoch, by no replica, or by an earlier life of a replica than is known (E3)."""
    if fetch.leader_epoch != leading.state.leader_epoch:
        check_leader_epoch(leading, fetch.leader_epoch)
    follower = leading.followers.get(fetch.by)
    if follower is None:
        raise NotLeader(f"broker {fetch.by} is no replica here, {list(leading.replicas)} are: wait for the command")
    if fetch.broker_epoch < follower.broker_epoch:
        raise StaleBrokerEpoch(f"broker {fetch.by} has registered again since epoch {fetch.broker_epoch}")


def diverging(leading: Leading, fetch: Fetch, log: LogView) -> Diverging | None:
    """Where the follower's log and this one part; None if the fetch is on this log, or below its start (F1).

    A follower without records, in the midst of this log, begins anew at its start, to have all of it. A member of the
    ISR does not: the high watermark is at most its end, and must not fall.
    """
    if fetch.offset <= log.log_end and log.epoch_before(fetch.offset) == fetch.last_epoch:
        return None
    if fetch.offset <= log.log_end and fetch.last_epoch == NO_EPOCH and _is_member(leading, fetch):
        return None
    if fetch.offset < log.log_start:
        return None
    if fetch.offset == log.log_start and fetch.last_epoch == log.epochs.epoch_at(log.log_start):
        return None  # the record before it is gone from here, but whoever wrote this one wrote that
    end = log.epochs.end_of(fetch.last_epoch, log_start=log.log_start, log_end=log.log_end)
    if end is None:
        return Diverging(epoch=log.epochs.last_epoch, end=log.log_end)
    return Diverging(epoch=end.epoch, end=end.end)


def _is_member(leading: Leading, fetch: Fetch) -> bool:
    return fetch.by in leading.state.isr and leading.state.epochs[fetch.by] >= fetch.clean_since


def on_log(leading: Leading, fetch: Fetch, log: LogView) -> bool:
    """Whether the fetch offset can be taken as the follower's log end: it lies on this log, and not below log_start,
    where no epoch is left to compare with."""
    return fetch.offset >= log.log_start and diverging(leading, fetch, log) is None


def fetched_by(leading: Leading, fetch: Fetch, log: LogView, now_ms: int) -> Leading:
    """The leadership after a fetch that is on this log and so reports its end. Caught up means: at or past the log end
    of its previous fetch (I2)."""
    known = leading.followers[fetch.by]
    if fetch.offset >= log.log_end:
        caught_up_ms = now_ms
    elif known.broker_epoch == fetch.broker_epoch and fetch.offset >= known.leader_end:
        caught_up_ms = max(known.caught_up_ms, known.fetched_ms)
    else:
        caught_up_ms = known.caught_up_ms
    follower = Follower(
        fetch.offset,
        fetch.broker_epoch,
        caught_up_ms,
        leader_end=log.log_end,
        fetched_ms=now_ms,
        clean_since=fetch.clean_since,
    )
    return advanced(replace(leading, followers={**leading.followers, fetch.by: follower}), log.vouched_end)


def within(following: Following, log: LogView) -> Following:
    """Limit what the follower knows to its log: nothing is known of records that are gone, or never came."""
    high_watermark = min(max(following.high_watermark, log.log_start), log.log_end)
    served = None if following.served is None else min(following.served, log.log_end)
    if (high_watermark, served) == (following.high_watermark, following.served):
        return following
    return replace(following, high_watermark=high_watermark, served=served)


def readable_end(high_watermark: Offset, offset: Offset, log: LogView) -> Offset:
    """How far a consumer may read from `offset`: up to the high watermark, and nothing between it and log end (F4)."""
    if not log.log_start <= offset <= log.log_end:
        raise OffsetOutOfRange(f"offset {offset} is outside {log.log_start} to {log.log_end}: start within that")
    return high_watermark


def truncation(log: LogView, answer: Diverging) -> Offset:
    """Where a follower cuts its log if the leader answers where the logs part: at the lesser of both ends (F1)."""
    own = log.epochs.end_of(answer.epoch, log_start=log.log_start, log_end=log.log_end)
    if own is None:
        return min(answer.end, log.log_end)
    return min(answer.end, own.end)


def end_of_epoch(log: LogView, epoch: int) -> EpochEnd | None:
    """The answer to OffsetsForLeaderEpoch; None if the epoch is unknown."""
    return log.epochs.end_of(epoch, log_start=log.log_start, log_end=log.log_end)
