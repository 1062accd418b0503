"""The commands of the controller to brokers. Each carries the controller's epoch: a broker refuses a command of a lower
epoch than it knows (C1).
"""

from __future__ import annotations

import math

import msgspec

from spark_replication.messages.envelope import NONE, Message, Part
from spark_replication.model import (
    BrokerId,
    Count,
    Epoch,
    EpochOrNone,
    Offset,
    PartitionNumber,
    PartitionState,
    Registration,
    ReplicaOf,
    Scalar,
    TimeMs,
    TopicConfig,
    TopicPartition,
    require,
)


class PartitionCommand(Part, frozen=True, kw_only=True):
    """A partition as persisted. (state.leader_epoch, partition_epoch) orders commands (E2)."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    replicas: tuple[BrokerId, ...]
    state: PartitionState
    partition_epoch: Epoch
    #: The members of `replicas` that a reassignment adds and removes.
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def order(self) -> tuple[int, int]:
        return self.state.leader_epoch, self.partition_epoch


class ToBroker(Message, frozen=True, kw_only=True):
    """A command of the controller. The controller's sender sets broker_epoch and number."""

    controller_epoch: Epoch
    #: The life of the broker that the command is for; None for any.
    broker_epoch: Epoch | None = None
    #: Rises with each command that this controller sends. A repeated command keeps its number.
    number: Count = 0


class LeaderAndIsr(ToBroker, frozen=True, kw_only=True):
    """Lead or follow these partitions."""

    partitions: tuple[PartitionCommand, ...]
    topics: dict[str, TopicConfig]
    brokers: dict[BrokerId, Registration]
    #: Whether the controller has just taken over: then the command names all partitions of the broker.
    init: bool = False


class StopPartition(Part, frozen=True, kw_only=True):
    """Stop the replica, unless it has applied a newer command than (leader_epoch, partition_epoch) (E2)."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    leader_epoch: Epoch
    delete: bool
    #: None covers every partition epoch of this leader epoch.
    partition_epoch: Epoch | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def order(self) -> tuple[int, float]:
        """The newest order that the stop covers."""
        return self.leader_epoch, math.inf if self.partition_epoch is None else self.partition_epoch

    def covers(self, order: tuple[int, float]) -> bool:
        """Whether a replica whose newest command has this order is to stop."""
        return order <= self.order


class StopReplica(ToBroker, frozen=True, kw_only=True):
    partitions: tuple[StopPartition, ...]


class UpdateMetadata(ToBroker, frozen=True, kw_only=True):
    """Learn what every broker tells clients: partitions, brokers, topics, and the cluster's settings."""

    #: The partitions that changed.
    partitions: tuple[PartitionCommand, ...]
    #: All registered brokers.
    brokers: dict[BrokerId, Registration]
    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    #: Topics that were deleted.
    deleted: tuple[str, ...] = ()
    #: Partitions that were removed from topics that live on.
    removed: tuple[TopicPartition, ...] = ()
    #: Whether `partitions` names all partitions: a broker forgets the others, which an earlier controller may have had
    #: no time to take back. It keeps what it knows of those that this controller cannot read.
    complete: bool = False
    #: All settings that are set for the cluster; None if they have not changed.
    settings: dict[str, Scalar] | None = None
    #: What the controller cannot read.
    unreadable_topics: tuple[str, ...] = ()
    unreadable_partitions: tuple[TopicPartition, ...] = ()
    #: The partitions of `topics` that are assigned and have no state yet, or whose state somebody has removed.
    unmade: tuple[TopicPartition, ...] = ()


LOG_INFO_PARTITIONS_MAX = 2_000  # in one GetReplicaLogInfo


class LogInfoWanted(Part, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    topic_id: str
    #: The leader epoch of the leaderless partition. A replica that knows a later one keeps its role.
    leader_epoch: Epoch

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class GetReplicaLogInfo(ToBroker, frozen=True, kw_only=True):
    """Tell how far the logs of these partitions reach. A replica that answers stops following, so that its answer stays
    true (L4)."""

    partitions: tuple[LogInfoWanted, ...]

    def __post_init__(self) -> None:
        require(
            len(self.partitions) <= LOG_INFO_PARTITIONS_MAX,
            f"{len(self.partitions)} partitions: at most {LOG_INFO_PARTITIONS_MAX} a request",
        )


class ReplicaLogInfo(Part, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    topic_id: str
    #: The leader epoch of the last record in the log; -1 if the log is empty.
    last_epoch: EpochOrNone = -1
    #: The newest leader epoch that the replica knows.
    current_epoch: EpochOrNone = -1
    end: Offset = 0
    error: str = NONE

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaLogInfos(Message, frozen=True, kw_only=True):
    """The answer to GetReplicaLogInfo."""

    #: The life of the broker that answers.
    broker_epoch: Epoch
    partitions: tuple[ReplicaLogInfo, ...]


class PutAside(Part, frozen=True, kw_only=True):
    """A log in a broker's quarantine that nobody has asked it to delete."""

    replica: ReplicaOf
    #: Below the broker's log.dir.
    folder: str
    #: When it is deleted.
    until_ms: TimeMs


class TableBehind(Part, frozen=True, kw_only=True):
    """A topic whose table lacks rows that it was to have by now."""

    topic: str
    #: How many of those that the broker leads.
    partitions: Count
    #: When the first of these rows was appended.
    since_ms: TimeMs


# omit_defaults: a controller that does not know the fields from `secrets` on can decode what has no trouble.
class BrokerNotes(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What people are to know of a broker."""

    #: Of ZooKeeper's clock, where the broker's own is not believed (D3); below 0: it is behind.
    clock_ahead_ms: int = 0
    put_aside: tuple[PutAside, ...] = ()
    #: Why its files of tokens, certificates and keys cannot be used as they are, and what holds meanwhile.
    secrets: str = ""
    #: Of the partitions that it leads.
    tables_behind: tuple[TableBehind, ...] = ()


class TellNotes(Message, frozen=True, kw_only=True):
    """Report what people are to know of this life of the broker, since it has changed."""

    broker_id: BrokerId
    broker_epoch: Epoch
    notes: BrokerNotes


class CommandAnswer(Message, frozen=True, kw_only=True):
    """The answer to LeaderAndIsr, StopReplica and UpdateMetadata."""

    #: The life of the broker that answers.
    broker_epoch: Epoch
    #: An error code per partition (`orders-3`), NONE for each that was carried out.
    errors: dict[str, str] = msgspec.field(default_factory=dict)
    #: The last leader epoch of each log that is above the one commanded (Z2).
    last_epochs: dict[str, Epoch] = msgspec.field(default_factory=dict)
    #: In the answer to all of the metadata, which a new controller and a new registration begin with.
    notes: BrokerNotes | None = None


Command = LeaderAndIsr | StopReplica | UpdateMetadata | GetReplicaLogInfo
