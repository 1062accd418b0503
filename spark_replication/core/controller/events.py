"""What happened, in the past tense. An adapter reads what a watch pointed at and tells it whole."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import Made, StoredPartition
from spark_replication.messages.commands import ReplicaLogInfos
from spark_replication.messages.requests import Request
from spark_replication.model import BrokerEpoch, BrokerId, Registration, ReplicaOf, TopicPartition


class TookOver(msgspec.Struct, frozen=True):
    """This controller won /controller, and has loaded everything."""


class BrokersRead(msgspec.Struct, frozen=True, kw_only=True):
    """/brokers/ids changed: all that are registered now, and the epochs of those that ever were.

    registered: what made each registration what it is. zxid: when one last came or went.
    """

    brokers: dict[BrokerId, Registration]
    broker_epochs: dict[BrokerId, BrokerEpoch]
    unreadable: Unreadable = ALL_READ
    registered: dict[BrokerId, Made] = {}
    zxid: int = 0


class PartitionsRead(msgspec.Struct, frozen=True):
    """Leaders changed their ISR, or a write of ours met another: what is stored now. unreadable: of those that cannot
    be read now, why."""

    partitions: dict[TopicPartition, StoredPartition]
    unreadable: Unreadable = ALL_READ


class NodesUnreadable(msgspec.Struct, frozen=True):
    """All below this folder that cannot be read, and why, by path: none is left of those heard of before."""

    folder: str
    reasons: Mapping[str, str]


class BrokerDeathReported(msgspec.Struct, frozen=True):
    """A guardian, or a broken control connection, says that this process has ended, whatever epochs it had."""

    broker: BrokerId
    incarnation: str


class ReplicasFailed(msgspec.Struct, frozen=True):
    """This life of the broker cannot keep these: its disk is full or failing (B4)."""

    broker: BrokerId
    epoch: int
    replicas: tuple[ReplicaOf, ...]


class LogInfoRead(msgspec.Struct, frozen=True):
    """A broker answered GetReplicaLogInfo."""

    broker: BrokerId
    answer: ReplicaLogInfos


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asks for something, by RPC (`request` is the number under which the answer is owed) or by a node below
    /admin (`path`, which is removed when it is done), or the controller itself. asked_by: where an RPC came from."""

    asked: Request
    request: int | None = None
    path: str | None = None
    asked_by: str = ""


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed since then."""

    since_ms: int


Event = (
    TookOver
    | BrokersRead
    | PartitionsRead
    | NodesUnreadable
    | BrokerDeathReported
    | ReplicasFailed
    | LogInfoRead
    | Requested
    | Ticked
)
