"""What core asks ZooKeeper to store, and what ZooKeeper answers: values, so that a decision can be compared whole.

A write names the version that it was decided against. The writes of a group are checked and stored together, or not at
all (one multi()). Groups may share a multi(), and each is answered on its own.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from spark_replication.errors import ReplicationError
from spark_replication.model import (
    ABSENT,
    BrokerId,
    ClusterSettings,
    PartitionState,
    TopicConfig,
    TopicPartition,
    TopicState,
)


class StoredPartition(msgspec.Struct, frozen=True):
    """leaderAndISR as read."""

    state: PartitionState
    #: The partition epoch.
    version: int
    #: The znode's mzxid.
    zxid: int = 0
    #: The znode's time, by ZooKeeper's clock.
    at_ms: int = 0


class StoredAssignment(msgspec.Struct, frozen=True):
    """A topic's znode as read."""

    state: TopicState
    version: int
    #: The znode's mzxid.
    zxid: int = 0
    #: The znode's time, by ZooKeeper's clock.
    at_ms: int = 0


class Made(NamedTuple):
    """What a write made of its node."""

    version: int = 0
    #: ZooKeeper's order of the write.
    zxid: int = 0
    #: ZooKeeper's time of the write; 0 if not known.
    at_ms: int = 0


class PartitionWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Make leaderAndISR `state` if it is at `version` (ABSENT: create it)."""

    partition: TopicPartition
    state: PartitionState
    version: int = ABSENT
    #: The epochs of the brokers whose membership or clean chain the decision used: the same multi() checks them.
    relies_on: dict[BrokerId, int] = {}


class TopicWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Make the topic's assignment `state` if it is at `version` (ABSENT: create it, its topic_id and its config)."""

    topic: str
    state: TopicState
    version: int = ABSENT
    #: Given to create a topic, and only then.
    config: TopicConfig | None = None


class BrokerRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Remove /brokers/ids/[id] if that broker's epoch is still `epoch`: somebody saw that life end."""

    broker: BrokerId
    epoch: int


class DeletionMark(msgspec.Struct, frozen=True, kw_only=True):
    """Make /admin/delete_topics/[topic]: with it the topic is going to be deleted, whoever is controller."""

    topic: str


class PartitionRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a leaderAndISR of a topic that is being deleted, at whatever version. One that is gone already is done."""

    partition: TopicPartition


class TopicRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the topic, its topic_id, its config and its deletion mark; all its partitions are removed already."""

    topic: str
    topic_id: str


class TopicConfigWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Write /config/topics/[topic]. Only controllers do: their epoch is condition enough."""

    topic: str
    config: TopicConfig


class ClusterConfigWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Write /config/cluster, likewise."""

    config: ClusterSettings


class RequestRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a request below /admin that is done, or refused. One that is gone already is done."""

    path: str


Write = (
    PartitionWrite
    | TopicWrite
    | BrokerRemoval
    | DeletionMark
    | PartitionRemoval
    | TopicRemoval
    | TopicConfigWrite
    | ClusterConfigWrite
    | RequestRemoval
)
Group = tuple[Write, ...]


class Stored(msgspec.Struct, frozen=True):
    """The group is in ZooKeeper."""

    #: What each of its writes made.
    made: tuple[Made, ...]
    #: The partitions of the group that their leaders have written since, as far as it is known.
    newer: dict[TopicPartition, StoredPartition] = {}


class Refused(msgspec.Struct, frozen=True):
    """A condition of the group failed and nothing of it was stored."""

    #: The partitions of the group as they are in ZooKeeper; None if there is no such, or it cannot be read.
    current: dict[TopicPartition, StoredPartition | None]
    #: The assignments that the group was to write, likewise.
    topics: dict[str, StoredAssignment | None] = {}
    #: The partitions of the group that have no leaderAndISR, though one was to be changed.
    gone: frozenset[TopicPartition] = frozenset()
    #: Why the group can never be stored, whatever is there. None if it may be, once it is decided again.
    unstorable: ReplicationError | None = None


class Deposed(msgspec.Struct, frozen=True):
    """Another controller has taken over: nothing was stored, and nothing will be."""


GroupAnswer = Stored | Refused | Deposed


class IsrWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A leader's own change of ISR, ELR and last_known_elr, against the partition epoch it knows (I1)."""

    partition: TopicPartition
    topic_id: str
    broker: BrokerId
    broker_epoch: int
    state: PartitionState
    version: int
    #: The broker epochs of those that join, from their fetches. Each must be registered so, and not shutting down (I3).
    joining: dict[BrokerId, int] = {}
    #: Those that leave the ISR, for metrics that count such changes.
    leaving: frozenset[BrokerId] = frozenset()


class IsrCommitted(msgspec.Struct, frozen=True):
    version: int


class IsrRefused(msgspec.Struct, frozen=True):
    """A condition failed."""

    #: What is stored, read after the refusal. None if the partition or its topic is gone.
    current: StoredPartition | None


class IsrUnanswered(msgspec.Struct, frozen=True):
    """The connection was lost before the answer came. The write may have taken effect: it stays in flight (I4)."""


IsrAnswer = IsrCommitted | IsrRefused | IsrUnanswered
