"""One replica's part in its partition: leading with a high watermark, or following by leader epoch.

Leading is a frozen value; each function takes what happened and gives the next one. Its rules:
- the high watermark is the least log end over the maximal ISR, moves only if the committed ISR has min_isr members, and
  never falls within one process's leadership (I5); nothing else may move it (`advanced`).
- a follower's log end and its broker epoch are one pair: an end reported under another epoch counts for nothing (I8).
- where logs part is told by leader epoch, never by high watermark (F1).
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
    """What decisions need to know of a log.

    flushed_end: what lies below it is on the disk; None: it does not matter (flush is not always).
    """

    log_start: Offset
    log_end: Offset
    epochs: EpochHistory
    flushed_end: Offset | None = None

    @property
    def vouched_end(self) -> Offset:
        """How far this replica counts as having the log."""
        return self.log_end if self.flushed_end is None else self.flushed_end

    def epoch_before(self, offset: Offset) -> int:
        """Of the record before `offset`; NO_EPOCH for an empty log."""
        return self.epochs.epoch_at(offset - 1) if offset > self.log_start else NO_EPOCH


class Follower(msgspec.Struct, frozen=True):
    """What its fetches told. end: UNKNOWN_END until it reported one that is on the leader's log, in this epoch.

    leader_end: the leader's log end at its last fetch, at fetched_ms: if its next is at or past it, it was caught up.
    clean_since: as its last fetch said (I8).
    Invariant: end <= the leader's log end.
    """

    end: Offset
    broker_epoch: int
    caught_up_ms: int
    leader_end: Offset = 0
    fetched_ms: int = 0
    clean_since: int = 0


class Me(msgspec.Struct, frozen=True):
    """This broker in this life: a registration begins another epoch. clean_since: rule I8."""

    broker: BrokerId
    epoch: int
    clean_since: int


class PendingIsr(msgspec.Struct, frozen=True):
    """An ISR change in flight, against partition epoch `version`."""

    state: PartitionState
    version: int
    joining: dict[BrokerId, int]


class Leading(msgspec.Struct, frozen=True, kw_only=True):
    """A leadership of this process.

    epoch_start: the offset where this leader epoch starts. end_at_start: the log end when this process began to lead.
    state: as stored at partition_epoch; pending: the change in flight, never against another state than this leader's.
    barred: whom ZooKeeper refused to let join, at these broker epochs: not asked for again before the next tick.
    adding: of the replicas, those that a reassignment brings.
    """

    me: BrokerId
    broker_epoch: int
    replicas: tuple[BrokerId, ...]
    state: PartitionState
    partition_epoch: int
    epoch_start: Offset
    end_at_start: Offset
    high_watermark: Offset
    followers: Mapping[BrokerId, Follower]
    pending: PendingIsr | None = None
    barred: Mapping[BrokerId, int] = {}
    adding: frozenset[BrokerId] = frozenset()

    @property
    def copying(self) -> frozenset[BrokerId]:
        """Whom a throttle may hold up: no acknowledgement waits for them (A3)."""
        return self.adding - self.maximal_isr if self.adding else self.adding

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """Committed plus joining: an acknowledgement waits for both, since the change may have taken effect (I4)."""
        return self.state.isr | self.pending.state.isr if self.pending is not None else self.state.isr

    @property
    def void(self) -> frozenset[BrokerId]:
        """The members that have registered uncleanly since they joined: whatever they report, they are not in sync
        before they have left and joined again (I8)."""
        found = _NOBODY  # nearly always: with each append it is asked whether enough are in sync
        for member, joined in self.state.epochs.items():
            follower = self.followers.get(member)
            if follower is not None and follower.clean_since > joined:
                found |= {member}
        return found

    @property
    def in_sync(self) -> frozenset[BrokerId]:
        """What min ISR is compared with."""
        void = self.void
        return self.state.isr - void if void else self.state.isr


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """Follows `leader` (None: nobody leads) at this epoch, from its own log's end.

    created: the leader epoch that the partition was made at (E4).
    served: how far consumers may read here: what this leader has called committed since it found this whole log on its
    own; None before. Below the high watermark of before there may be what an unclean election has lost.
    """

    leader: BrokerId | None
    leader_epoch: int
    partition_epoch: int
    high_watermark: Offset
    created: int = 0
    served: Offset | None = None


def may_lead(state: PartitionState, me: Me) -> bool:
    """A broker leads only as a member of the stored ISR that has lost nothing since it joined, whoever asks (I8)."""
    return state.leader == me.broker and state.epochs[me.broker] >= me.clean_since


def lead(command: PartitionCommand, me: Me, log: LogView, high_watermark: Offset, now_ms: int) -> Leading:
    """The leadership that a command begins; the epoch's start is in `log.epochs` already (F3)."""
    start = log.epochs[-1].start if log.epochs.last_epoch == command.state.leader_epoch else log.log_end
    leading = Leading(
        me=me.broker,
        broker_epoch=me.epoch,
        replicas=command.replicas,
        state=command.state,
        partition_epoch=command.partition_epoch,
        epoch_start=start,
        end_at_start=log.log_end,
        high_watermark=min(high_watermark, log.log_end),
        followers={},
    )
    return advanced(assigned(leading, command, now_ms), log.vouched_end)


def assigned(leading: Leading, command: PartitionCommand, now_ms: int) -> Leading:
    """The leadership with the command's replicas: one that is new is counted from now on, one that is gone no longer.

    A member of the ISR is followed whatever the assignment says: the two are read one after the other.
    """
    others = sorted({*command.replicas, *leading.state.isr} - {leading.me})
    unheard = Follower(UNKNOWN_END, NO_EPOCH, caught_up_ms=now_ms)
    followers = {other: leading.followers.get(other, unheard) for other in others}
    return replace(leading, replicas=command.replicas, followers=followers, adding=frozenset(command.adding))


def advanced(leading: Leading, own_end: Offset) -> Leading:
    """With the high watermark that the known log ends allow (I5). own_end: how far the leader itself has the log."""
    least = own_end
    for member in leading.maximal_isr:
        if member != leading.me:
            least = min(least, leading.followers[member].end)
    if least <= leading.high_watermark or len(leading.in_sync) < leading.state.min_isr:
        return leading
    return replace(leading, high_watermark=least)


def check_append(leading: Leading, *, acks_all: bool, topic: TopicPartition) -> None:
    """I6: refused before anything is written."""
    if acks_all and len(leading.in_sync) < leading.state.min_isr:
        raise NotEnoughReplicas(
            f"{topic} has {len(leading.in_sync)} in-sync replicas and needs {leading.state.min_isr} for acks=all: "
            "retry when followers have caught up, or lower min.insync.replicas"
        )


def appended(leading: Leading, *, end_before: Offset, end: Offset, now_ms: int) -> Leading:
    """The leader's log grew, and counts up to `end`. A follower that had everything was caught up until now (I2)."""
    at_end = [replica for replica, follower in leading.followers.items() if follower.end == end_before]
    if at_end:
        followers = dict(leading.followers)
        for replica in at_end:
            followers[replica] = replace(followers[replica], caught_up_ms=now_ms)
        leading = replace(leading, followers=followers)
    return advanced(leading, end)


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """A follower has everything below `offset`, and the record before it is of `last_epoch`."""

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
    """E3: of this leader epoch, from a replica in the assignment, and from no earlier life of it than known."""
    check_leader_epoch(leading, fetch.leader_epoch)
    follower = leading.followers.get(fetch.by)
    if follower is None:
        raise NotLeader(f"broker {fetch.by} is no replica here, {list(leading.replicas)} are: wait for the command")
    if fetch.broker_epoch < follower.broker_epoch:
        raise StaleBrokerEpoch(f"broker {fetch.by} has registered again since epoch {fetch.broker_epoch}")


def diverging(leading: Leading, fetch: Fetch, log: LogView) -> Diverging | None:
    """Where the follower's log and this one part; None: the fetch is on this log (F1).

    One without records in the midst of this log begins anew at its start, to have all of it. Not a member of the ISR:
    what is committed ends where it ends, or below that, and that must not fall.
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
    """Whether the fetch reports an end: one that parts from this log does not, nor one below its start, of which nobody
    can say what it is."""
    return fetch.offset >= log.log_start and diverging(leading, fetch, log) is None


def fetched_by(leading: Leading, fetch: Fetch, log: LogView, now_ms: int) -> Leading:
    """A fetch that is on this log reports its end; caught up = at or past the log end of its previous fetch (I2)."""
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
    """As far as its log goes: of records that are gone, or never came, nothing is known."""
    high_watermark = min(max(following.high_watermark, log.log_start), log.log_end)
    served = None if following.served is None else min(following.served, log.log_end)
    if (high_watermark, served) == (following.high_watermark, following.served):
        return following
    return replace(following, high_watermark=high_watermark, served=served)


def readable_end(high_watermark: Offset, offset: Offset, log: LogView) -> Offset:
    """How far a consumer may read from `offset`: nothing between high watermark and log end (F4)."""
    if not log.log_start <= offset <= log.log_end:
        raise OffsetOutOfRange(f"offset {offset} is outside {log.log_start} to {log.log_end}: start within that")
    return high_watermark


def truncation(log: LogView, answer: Diverging) -> Offset:
    """Where a follower cuts its log when the leader says where the logs part: at the lesser of both ends (F1)."""
    own = log.epochs.end_of(answer.epoch, log_start=log.log_start, log_end=log.log_end)
    if own is None:
        return min(answer.end, log.log_end)
    return min(answer.end, own.end)


def end_of_epoch(log: LogView, epoch: int) -> EpochEnd | None:
    """OffsetsForLeaderEpoch; None: unknown."""
    return log.epochs.end_of(epoch, log_start=log.log_start, log_end=log.log_end)
