"""Events, in the past tense. When a watch fires, an adapter reads what it points at, and reports all of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import Made, StoredPartition
from spark_replication.core.tables.sealing import TableEnd
from spark_replication.messages.commands import BrokerNotes, ReplicaLogInfos
from spark_replication.messages.mending import DiskDamage
from spark_replication.messages.requests import Request
from spark_replication.model import BrokerEpoch, BrokerId, PartitionNumber, Registration, ReplicaOf, TopicPartition


class TookOver(msgspec.Struct, frozen=True):
    """This controller won /controller, and has loaded everything."""


class BrokersRead(msgspec.Struct, frozen=True, kw_only=True):
    """/brokers/ids changed."""

    #: All that are registered.
    brokers: dict[BrokerId, Registration]
    #: The epochs of all that were ever registered.
    broker_epochs: dict[BrokerId, BrokerEpoch]
    unreadable: Unreadable = ALL_READ
    #: The write that made each registration what it is.
    registered: dict[BrokerId, Made] = {}
    #: ZooKeeper's order of the moment when a registration last came or went.
    zxid: int = 0


class PartitionsRead(msgspec.Struct, frozen=True):
    """Leaders changed their ISR, or a write of this controller met another's."""

    #: What is stored.
    partitions: dict[TopicPartition, StoredPartition]
    #: Those that cannot be read, and why.
    unreadable: Unreadable = ALL_READ


class NodesUnreadable(msgspec.Struct, frozen=True):
    """Nodes below this folder cannot be read. These are all of them: any others of earlier events are mended."""

    folder: str
    #: Why, by path.
    reasons: Mapping[str, str]


class BrokerDeathReported(msgspec.Struct, frozen=True):
    """A guardian, or a broken control connection, reports that this process has ended, whatever epochs it had."""

    broker: BrokerId
    incarnation: str


class ReplicasFailed(msgspec.Struct, frozen=True):
    """This life of the broker cannot keep these: its disk is full or failing (B4)."""

    broker: BrokerId
    epoch: int
    replicas: tuple[ReplicaOf, ...]


class ReplicasDamaged(msgspec.Struct, frozen=True):
    """What the disk of this life of the broker did not give back as it was written (D1). This is all that it knows: any
    other replicas of earlier events have no damage any longer."""

    broker: BrokerId
    epoch: int
    replicas: Mapping[ReplicaOf, DiskDamage]


class BrokerNoted(msgspec.Struct, frozen=True):
    """What people are to know of this life of the broker."""

    broker: BrokerId
    epoch: int
    notes: BrokerNotes


class LogsAhead(msgspec.Struct, frozen=True):
    """This life of the broker has logs of a later leader epoch than was commanded: ZooKeeper is as of an earlier time
    (Z2)."""

    broker: BrokerId
    epoch: int
    #: The last leader epoch of each log.
    last_epochs: Mapping[ReplicaOf, int]


class LogInfoRead(msgspec.Struct, frozen=True):
    """A broker answered GetReplicaLogInfo."""

    broker: BrokerId
    answer: ReplicaLogInfos


class TableAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a topic was sealed, or could not be (TB5)."""

    topic: str
    topic_id: str
    #: What the table says of the partitions that it was asked about; empty if it could not be sealed.
    told: Mapping[PartitionNumber, TableEnd] = {}
    #: Of which partitions it could not be sealed.
    failed: tuple[PartitionNumber, ...] = ()
    #: Why not.
    why: str = ""


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """A request came: by RPC, by a node below /admin, or from the controller itself."""

    asked: Request
    #: Of an RPC: the number under which the answer is owed.
    request: int | None = None
    #: The node below /admin, which is removed once the request is done.
    path: str | None = None
    #: Where an RPC came from.
    asked_by: str = ""


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed since `since_ms`."""

    since_ms: int


Event = (
    TookOver
    | BrokersRead
    | PartitionsRead
    | NodesUnreadable
    | BrokerDeathReported
    | ReplicasFailed
    | ReplicasDamaged
    | BrokerNoted
    | LogsAhead
    | LogInfoRead
    | Requested
    | TableAnswered
    | Ticked
)
