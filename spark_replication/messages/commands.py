"""Controller to broker. Every command carries the controller's epoch; a lower one than known is refused (C1)."""

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
    Scalar,
    TopicConfig,
    TopicPartition,
    require,
)


class PartitionCommand(Part, frozen=True, kw_only=True):
    """A partition as persisted. (state.leader_epoch, partition_epoch) orders commands (E2).

    adding, removing: of `replicas`, while it is being reassigned.
    """

    topic: str
    partition: PartitionNumber
    topic_id: str
    replicas: tuple[BrokerId, ...]
    state: PartitionState
    partition_epoch: Epoch
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def order(self) -> tuple[int, int]:
        return self.state.leader_epoch, self.partition_epoch


class ToBroker(Message, frozen=True, kw_only=True):
    """A command of the controller of that epoch. The sender says the rest: for which life of the broker it is (None:
    whoever hears it), and its number among all that this controller sends, repetitions not counted."""

    controller_epoch: Epoch
    broker_epoch: Epoch | None = None
    number: Count = 0


class LeaderAndIsr(ToBroker, frozen=True, kw_only=True):
    """Lead or follow these. init: the first command of a controller to this broker, naming all its partitions."""

    partitions: tuple[PartitionCommand, ...]
    topics: dict[str, TopicConfig]
    brokers: dict[BrokerId, Registration]
    init: bool = False


class StopPartition(Part, frozen=True, kw_only=True):
    """Stop what is of this leader epoch, up to this partition epoch (None: all of it): what a replica was told later
    than that makes the stop an old one (E2)."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    leader_epoch: Epoch
    delete: bool
    partition_epoch: Epoch | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def order(self) -> tuple[int, float]:
        """The latest that it covers."""
        return self.leader_epoch, math.inf if self.partition_epoch is None else self.partition_epoch

    def covers(self, order: tuple[int, float]) -> bool:
        """Whether a replica that was last told at `order` is to stop."""
        return order <= self.order


class StopReplica(ToBroker, frozen=True, kw_only=True):
    partitions: tuple[StopPartition, ...]


class UpdateMetadata(ToBroker, frozen=True, kw_only=True):
    """What any broker tells clients: these partitions changed; these are all the brokers that live.

    deleted: topics that are no more; removed: partitions of topics that live on. complete: `partitions` are all there
    are, whatever an earlier controller had no time to take back, but for those that this one cannot read: of them a
    broker keeps what it knows. settings: of the cluster, all that are set; None: as
    they were.
    """

    partitions: tuple[PartitionCommand, ...]
    brokers: dict[BrokerId, Registration]
    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    removed: tuple[TopicPartition, ...] = ()
    complete: bool = False
    settings: dict[str, Scalar] | None = None
    unreadable_topics: tuple[str, ...] = ()
    unreadable_partitions: tuple[TopicPartition, ...] = ()


LOG_INFO_PARTITIONS_MAX = 2_000  # of one GetReplicaLogInfo


class LogInfoWanted(Part, frozen=True, kw_only=True):
    """leader_epoch: of the leaderless partition: a replica that knows a later one goes on as it is."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    leader_epoch: Epoch

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class GetReplicaLogInfo(ToBroker, frozen=True, kw_only=True):
    """How much of these is in your log? Who answers stops following: the answer must not go stale (L4)."""

    partitions: tuple[LogInfoWanted, ...]

    def __post_init__(self) -> None:
        require(
            len(self.partitions) <= LOG_INFO_PARTITIONS_MAX,
            f"{len(self.partitions)} partitions: at most {LOG_INFO_PARTITIONS_MAX} a request",
        )


class ReplicaLogInfo(Part, frozen=True, kw_only=True):
    """last_epoch: of the last record in the log (-1: it is empty). current_epoch: the leader epoch known last."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    last_epoch: EpochOrNone = -1
    current_epoch: EpochOrNone = -1
    end: Offset = 0
    error: str = NONE

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaLogInfos(Message, frozen=True, kw_only=True):
    """The answer to GetReplicaLogInfo, of this life of the broker."""

    broker_epoch: Epoch
    partitions: tuple[ReplicaLogInfo, ...]


class CommandAnswer(Message, frozen=True, kw_only=True):
    """Per partition (`orders-3`) an error code, NONE for those carried out; `broker_epoch` says which life answered."""

    broker_epoch: Epoch
    errors: dict[str, str] = msgspec.field(default_factory=dict)


Command = LeaderAndIsr | StopReplica | UpdateMetadata | GetReplicaLogInfo
