"""What core asks ZooKeeper to hold, and what ZooKeeper answers: values, so that a decision can be compared whole.

A write names the version that it was decided against. The versions of a group are checked and stored together or not
at all (one multi()); groups may share a multi(), and each is answered on its own.
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
    """leaderAndISR as read: version is the partition epoch, zxid the znode's mzxid, at_ms its time, by ZooKeeper's
    clock."""

    state: PartitionState
    version: int
    zxid: int = 0
    at_ms: int = 0


class StoredAssignment(msgspec.Struct, frozen=True):
    """A topic's znode as read: zxid is its mzxid, at_ms its time."""

    state: TopicState
    version: int
    zxid: int = 0
    at_ms: int = 0


class Made(NamedTuple):
    """What a write made of its node: its version there, and ZooKeeper's order and time of that. at_ms 0: not known."""

    version: int = 0
    zxid: int = 0
    at_ms: int = 0


class PartitionWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Make leaderAndISR `state` if it is at `version` (ABSENT: create it).

    relies_on: brokers whose membership or clean chain the decision used, at these epochs: checked in the same multi().
    """

    partition: TopicPartition
    state: PartitionState
    version: int = ABSENT
    relies_on: dict[BrokerId, int] = {}


class TopicWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Make the topic's assignment `state` if it is at `version`. ABSENT: create it, its topic_id and its config, which
    is given then and only then."""

    topic: str
    state: TopicState
    version: int = ABSENT
    config: TopicConfig | None = None


class BrokerRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Remove /brokers/ids/[id] if that broker's epoch is still `epoch`: somebody saw that life end."""

    broker: BrokerId
    epoch: int


class DeletionMark(msgspec.Struct, frozen=True, kw_only=True):
    """/admin/delete_topics/[topic]: from now on the topic goes, whoever is controller."""

    topic: str


class PartitionRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the leaderAndISR of a topic that is being deleted, at whatever version it is; gone already is done."""

    partition: TopicPartition


class TopicRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the topic, its topic_id, its config and its deletion mark; all its partitions are removed already."""

    topic: str
    topic_id: str


class TopicConfigWrite(msgspec.Struct, frozen=True, kw_only=True):
    """/config/topics/[topic]. Only controllers write it: their epoch is condition enough."""

    topic: str
    config: TopicConfig


class ClusterConfigWrite(msgspec.Struct, frozen=True, kw_only=True):
    """/config/cluster, likewise."""

    config: ClusterSettings


class RequestRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """The request below /admin is done, or refused; gone already is done."""

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

    # By each of its writes.
    made: tuple[Made, ...]
    # Its partitions that their leaders have written since, as far as it is known.
    newer: dict[TopicPartition, StoredPartition] = {}


class Refused(msgspec.Struct, frozen=True):
    """A condition of the group failed and nothing of it was stored."""

    # What its partitions are in ZooKeeper; None: no such, or it cannot be read.
    current: dict[TopicPartition, StoredPartition | None]
    # What the assignments are that it was to write, likewise.
    topics: dict[str, StoredAssignment | None] = {}
    # Why it can never be stored, whatever is there; None: it may be, once it is decided again.
    unstorable: ReplicationError | None = None


class Deposed(msgspec.Struct, frozen=True):
    """Another controller has taken over: nothing was stored, and nothing will be."""


GroupAnswer = Stored | Refused | Deposed


class IsrWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A leader's own change of ISR, ELR and last_known_elr, against the partition epoch it knows (I1).

    joining: who is let in, at the broker epoch of its fetches: checked to be registered so and not shutting down (I3).
    leaving: who was in the ISR, and is not in that of `state`: for who counts such changes.
    """

    partition: TopicPartition
    topic_id: str
    broker: BrokerId
    broker_epoch: int
    state: PartitionState
    version: int
    joining: dict[BrokerId, int] = {}
    leaving: frozenset[BrokerId] = frozenset()


class IsrCommitted(msgspec.Struct, frozen=True):
    version: int


class IsrRefused(msgspec.Struct, frozen=True):
    """A condition failed. What is stored now, read after that; None: the partition or its topic is gone."""

    current: StoredPartition | None


class IsrUnanswered(msgspec.Struct, frozen=True):
    """The connection went before the answer came: the write may have taken effect. It stays in flight (I4)."""


IsrAnswer = IsrCommitted | IsrRefused | IsrUnanswered
