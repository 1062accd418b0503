"""Unclean recovery of a leaderless partition (L4): who is asked for its log, which answers count, and who wins.

A controller keeps recoveries in memory alone: its successor asks again. An answer counts only from the present life of
a broker, and only at the partition's present leader epoch: any other may have been true of another log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from spark_replication.core.law.brokers import Brokers
from spark_replication.messages.commands import ReplicaLogInfo
from spark_replication.messages.envelope import NONE
from spark_replication.model import BrokerId, Offset


class LogEnd(msgspec.Struct, frozen=True, order=True):
    """Compares as recoveries do: the highest last written epoch, then the longest log."""

    last_epoch: int
    end: Offset


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """leader_epoch: of the partition, which an answer must know. required: who must have answered; none = anybody.

    by_hand: a person asked for it, so it goes on whatever the strategy says. asked: at which broker epochs; asked_ms:
    when that was last.
    """

    leader_epoch: int
    required: frozenset[BrokerId]
    started_ms: int
    asked_ms: int
    by_hand: bool = False
    asked: Mapping[BrokerId, int] = {}
    answers: Mapping[BrokerId, LogEnd] = {}


def to_ask(recovery: Recovery, replicas: Sequence[BrokerId], brokers: Brokers) -> tuple[BrokerId, ...]:
    """The live replicas that were not asked yet in this life."""
    return tuple(
        replica
        for replica in replicas
        if replica in brokers.electable and recovery.asked.get(replica) != brokers.epochs[replica]
    )


def asking(recovery: Recovery, asked: Sequence[BrokerId], brokers: Brokers, now_ms: int) -> Recovery:
    """What an earlier life of these answered is forgotten."""
    return replace(
        recovery,
        asked_ms=now_ms,
        asked={**recovery.asked, **{broker: brokers.epochs[broker] for broker in asked}},
        answers={broker: end for broker, end in recovery.answers.items() if broker not in asked},
    )


def answered(
    recovery: Recovery, broker: BrokerId, broker_epoch: int, info: ReplicaLogInfo, brokers: Brokers
) -> Recovery:
    """With this answer. A stale one makes that broker one to be asked again; an error leaves it without answer."""
    if broker not in recovery.asked or broker in recovery.answers or info.error != NONE:
        return recovery
    if brokers.epochs.get(broker) != broker_epoch or info.current_epoch != recovery.leader_epoch:
        return replace(recovery, asked={other: epoch for other, epoch in recovery.asked.items() if other != broker})
    return replace(recovery, answers={**recovery.answers, broker: LogEnd(info.last_epoch, info.end)})


def asked_anew(recovery: Recovery, now_ms: int, timeout_ms: int) -> Recovery:
    """Who has not answered for a whole timeout is asked again: the request or the answer may be lost."""
    if now_ms - recovery.asked_ms < timeout_ms:
        return recovery
    return replace(recovery, asked={broker: recovery.asked[broker] for broker in recovery.answers})


def winner(
    recovery: Recovery, replicas: Sequence[BrokerId], brokers: Brokers, *, now_ms: int, timeout_ms: int
) -> BrokerId | None:
    """The replica to elect now; None: others may answer yet, or somebody required has not."""
    counted = {
        replica: recovery.answers[replica]
        for replica in replicas
        if replica in recovery.answers
        and replica in brokers.electable
        and recovery.asked.get(replica) == brokers.epochs[replica]
    }
    if not counted or not recovery.required <= counted.keys():
        return None
    if len(counted) < len(replicas) and now_ms - recovery.started_ms < timeout_ms:
        return None
    # max() keeps the first of equals: assignment order.
    return max(counted, key=counted.__getitem__)
