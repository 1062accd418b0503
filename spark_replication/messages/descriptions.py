"""What admins and clients are told: topics, who lives, how large the logs are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.envelope import Message, Part
from spark_replication.model import (
    BrokerId,
    Count,
    Offset,
    PartitionNumber,
    Registration,
    TopicConfig,
    TopicPartition,
    require,
)

TOPICS_A_REQUEST_MAX = 20  # that a description or an election names (KIP-966)
PARTITIONS_A_PAGE_MAX = 2_000


class GetMetadata(Message, frozen=True, kw_only=True):
    """None: all topics. What clients route by; whoever describes topics to people asks by pages: DescribeTopics."""

    topics: tuple[str, ...] | None = None


class PageStart(Part, frozen=True, kw_only=True):
    """Where a page begins: at a topic, or in its midst. topic_id: of which the earlier partitions were told."""

    topic: str
    topic_id: str = ""
    partition: PartitionNumber = 0


class DescribeTopics(Message, frozen=True, kw_only=True):
    """A page of these topics, or (None) of all, by name. start: the `next` of the page before."""

    topics: tuple[str, ...] | None = None
    start: PageStart | None = None
    partitions_max: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_A_PAGE_MAX)] = PARTITIONS_A_PAGE_MAX

    def __post_init__(self) -> None:
        require(
            len(set(self.topics or ())) <= TOPICS_A_REQUEST_MAX,
            f"{len(set(self.topics or ()))} topics: at most {TOPICS_A_REQUEST_MAX} a request",
        )


class Awaited(Part, frozen=True, kw_only=True):
    """Why a partition has no leader, as the controller decided it (L4)."""

    # One of core.law.election's reasons; a newer controller may have others.
    reason: str
    # With log_info: who must have told of its log; none: nobody in particular.
    required: frozenset[BrokerId] = frozenset()


# omit_defaults: who knows no `waiting` reads whatever waits for nothing.
class TopicMetadata(Part, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    topic_id: str
    config: TopicConfig
    partitions: tuple[PartitionCommand, ...]
    # By partition: told by the controller alone.
    waiting: dict[int, Awaited] = msgspec.field(default_factory=dict)


class Metadata(Message, frozen=True, kw_only=True):
    """Topics with their partitions, and who lives: what routing needs. `controller` is host:port, if there is one.
    zookeeper_silent_ms: for how long the controller, if it tells this, has had no connection to ZooKeeper; 0: it has
    one. unreadable: what of ZooKeeper's the controller cannot read, and why. mirror_error: why the mirror is not
    written; empty: it is."""

    cluster_id: str
    brokers: dict[BrokerId, Registration]
    topics: tuple[TopicMetadata, ...]
    controller: str | None = None
    zookeeper_silent_ms: Count = 0
    unreadable: tuple[str, ...] = ()
    mirror_error: str = ""


class TopicPage(Message, frozen=True, kw_only=True):
    """The answer to DescribeTopics. A topic that is not known is left out; one that is cut goes on, on the next page.
    next: None: this is the last."""

    topics: tuple[TopicMetadata, ...]
    next: PageStart | None = None


class DescribeReplicas(Message, frozen=True, kw_only=True):
    """How large are the logs of these that you have (None: of all), where do they end, and how far are followers?"""

    partitions: tuple[TopicPartition, ...] | None = None


class CopySize(Part, frozen=True, kw_only=True):
    """Of a replica that is being added: what it lacks, and by how much that became less each second, copied less
    appended; None: that is not known yet."""

    bytes_left: Count
    bytes_per_second: int | None


class FollowerLag(Part, frozen=True, kw_only=True):
    """How far a follower is behind its leader, by its last fetch."""

    #: None: it has not told the leader where its log ends, in this leader epoch.
    records: Count | None
    #: For how long it has not had the whole log. 0: it has.
    ms: Count


class ReplicaSize(Part, frozen=True, kw_only=True):
    """leads: this broker does, and so it knows best. copies: of the replicas that are being added and are not in the
    ISR yet, as their leader sees them."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    leads: bool
    bytes: Count
    log_start: Offset = 0
    high_watermark: Offset = 0
    log_end: Offset = 0
    #: The leader epoch of the last record; -1: there is none.
    last_epoch: int = -1
    #: Of all followers, told by the leader alone.
    lags: dict[BrokerId, FollowerLag] = msgspec.field(default_factory=dict)
    copies: dict[BrokerId, CopySize] = msgspec.field(default_factory=dict)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaSizes(Message, frozen=True, kw_only=True):
    """The answer to DescribeReplicas: of those that are here."""

    replicas: tuple[ReplicaSize, ...]
