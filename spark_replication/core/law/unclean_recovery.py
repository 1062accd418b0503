"""Unclean recovery of a leaderless partition (L4): who is asked for its log, which answers count, and who wins.

A controller keeps recoveries in memory alone: its successor asks again. An answer counts only from the present life of
a broker, and only at the partition's present leader epoch: any other answer may be about another log.

The time to answer begins with the first question. Once nobody who was asked lives, it stops, and begins anew with the
next question: nobody can answer while no replica lives.

A replica whose disk refuses is asked, too: its log can be read, and its disk is tried again after disk.retry.ms (B4).
Until then it cannot be elected. If it has the best log, the election waits for it, for at most disk.retry.ms beyond the
time to answer: electing another loses what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import Elected
from spark_replication.messages.commands import ReplicaLogInfo
from spark_replication.messages.envelope import NONE
from spark_replication.model import BrokerId, Offset, PartitionState


class LogEnd(msgspec.Struct, frozen=True, order=True):
    """The end of a log. Ends compare as recoveries do: by the last written epoch, then by length."""

    last_epoch: int
    end: Offset


class UncleanRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """What a controller knows of one recovery under way."""

    #: The partition's leader epoch, which an answer must name.
    leader_epoch: int
    #: Who must have answered; if empty, anybody will do.
    required: frozenset[BrokerId]
    #: When the first question went to anybody who still lives; None if nobody who was asked lives.
    started_ms: int | None = None
    #: When the last question was asked.
    asked_ms: int = 0
    #: Whether a person asked for it: then it goes on whatever the strategy says.
    by_hand: bool = False
    #: Whether that person said that it is not to wait for the topic's table (TB5).
    without_table: bool = False
    #: The broker epochs of those who were asked.
    asked: Mapping[BrokerId, int] = {}
    answers: Mapping[BrokerId, LogEnd] = {}


def timed(recovery: UncleanRecovery, replicas: Sequence[BrokerId], brokers: Brokers) -> UncleanRecovery:
    """Stop the clock, and forget questions and answers, once no life that was asked can answer."""
    if any(_is_asked(recovery, replica, brokers) for replica in replicas):
        return recovery
    return replace(recovery, started_ms=None, asked={}, answers={})


def is_over(recovery: UncleanRecovery, now_ms: int, timeout_ms: int) -> bool:
    """Whether the time to answer is over. A clock that stands still never ends."""
    return recovery.started_ms is not None and now_ms - recovery.started_ms >= timeout_ms


def _is_asked(recovery: UncleanRecovery, replica: BrokerId, brokers: Brokers) -> bool:
    return _can_answer(replica, brokers) and recovery.asked.get(replica) == brokers.epochs[replica]


def _can_answer(replica: BrokerId, brokers: Brokers) -> bool:
    return replica in brokers.electable or replica in brokers.refusing


def to_ask(
    recovery: UncleanRecovery, replicas: Sequence[BrokerId], brokers: Brokers, *, now_ms: int, timeout_ms: int
) -> tuple[BrokerId, ...]:
    """The live replicas that were not asked yet in this life, and those that have not answered for a whole timeout: the
    request or the answer may be lost."""
    is_late = now_ms - recovery.asked_ms >= timeout_ms
    return tuple(
        replica
        for replica in replicas
        if _can_answer(replica, brokers)
        and (not _is_asked(recovery, replica, brokers) or (is_late and replica not in recovery.answers))
    )


def asking(recovery: UncleanRecovery, asked: Sequence[BrokerId], brokers: Brokers, now_ms: int) -> UncleanRecovery:
    """The recovery once these are asked. Answers of their earlier lives are forgotten."""
    return replace(
        recovery,
        started_ms=now_ms if recovery.started_ms is None else recovery.started_ms,
        asked_ms=now_ms,
        asked={**recovery.asked, **{broker: brokers.epochs[broker] for broker in asked}},
        answers={broker: end for broker, end in recovery.answers.items() if broker not in asked},
    )


def answered(
    recovery: UncleanRecovery, broker: BrokerId, broker_epoch: int, info: ReplicaLogInfo, brokers: Brokers
) -> UncleanRecovery:
    """The recovery with this answer. After a stale one the broker is asked again; an error is no answer."""
    if broker not in recovery.asked or broker in recovery.answers or info.error != NONE:
        return recovery
    if brokers.epochs.get(broker) != broker_epoch or info.current_epoch != recovery.leader_epoch:
        return replace(recovery, asked={other: epoch for other, epoch in recovery.asked.items() if other != broker})
    return replace(recovery, answers={**recovery.answers, broker: LogEnd(info.last_epoch, info.end)})


def winner(
    recovery: UncleanRecovery, replicas: Sequence[BrokerId], brokers: Brokers, *, now_ms: int, timeout_ms: int
) -> BrokerId | None:
    """The replica to elect. None if others may answer yet, or somebody required has not."""
    counted = _counted(recovery, replicas, brokers)
    electable = {replica: end for replica, end in counted.items() if replica in brokers.electable}
    if not electable or not recovery.required <= electable.keys():
        return None
    if len(counted) < len(replicas) and not is_over(recovery, now_ms, timeout_ms):
        return None
    # max() keeps the first of equals: assignment order.
    return max(electable, key=electable.__getitem__)


def elected(
    recovery: UncleanRecovery,
    best: BrokerId,
    state: PartitionState,
    replicas: Sequence[BrokerId],
    brokers: Brokers,
) -> Elected:
    """The election of the winner. `state` is that before it, without void members.

    A log that ends in the epoch of the last leader is a part of the log of that leader, who had every acknowledged
    record: what is beyond its end is all that it can lack. That epoch is the one below the partition's, which rose when
    the leader was lost; after ZooKeeper was put back a log that was not asked may have a later one. A log that ends in
    an earlier epoch may have other records than the acknowledged ones at its end: nobody knows from where on.

    Each member of ISR and ELR has every acknowledged record. One whose disk refuses, or who is shutting down, may have
    told where its log ends: the winner lacks no more than what is beyond its own end. The end of any other log bounds
    nothing, since it may have lost records, too.
    """
    counted = _counted(recovery, replicas, brokers)
    winner = counted[best]
    is_of_last_leader = winner.last_epoch == recovery.leader_epoch - 1 and state.last_known_elr <= counted.keys()
    if winner.end and not is_of_last_leader:
        return Elected(best, "unclean_recovery")
    bounds = [counted[replica].end for replica in sorted(state.members) if replica in counted]
    lacks_max = max(0, min(bounds) - winner.end) if bounds else None
    return Elected(best, "unclean_recovery", complete_below=winner.end, lacks_max=lacks_max)


def is_put_off(
    recovery: UncleanRecovery,
    best: BrokerId,
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    *,
    now_ms: int,
    most_ms: int,
) -> bool:
    """Whether the election waits: a better log than the winner's is on a disk that is to be tried again."""
    counted = _counted(recovery, replicas, brokers)
    return counted[best] < max(counted.values()) and not is_over(recovery, now_ms, most_ms)


def _counted(recovery: UncleanRecovery, replicas: Sequence[BrokerId], brokers: Brokers) -> dict[BrokerId, LogEnd]:
    return {
        replica: recovery.answers[replica]
        for replica in replicas
        if replica in recovery.answers and _is_asked(recovery, replica, brokers)
    }
