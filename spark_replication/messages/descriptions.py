"""What admins and clients ask about a cluster: topics, registered brokers, and the sizes of logs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from spark_replication.messages.commands import BrokerNotes, PartitionCommand
from spark_replication.messages.envelope import Message, Part
from spark_replication.messages.mending import DiskDamage
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

TOPICS_A_REQUEST_MAX = 20  # in a description and in an election (KIP-966)
PARTITIONS_A_PAGE_MAX = 2_000


class GetMetadata(Message, frozen=True, kw_only=True):
    """Describe what clients route by, in one answer. DescribeTopics describes topics to people, by pages."""

    #: None for all topics.
    topics: tuple[str, ...] | None = None
    #: The partitions that are wanted of a topic, if not all. Whoever answers may tell of others, too.
    only: dict[str, tuple[PartitionNumber, ...]] = msgspec.field(default_factory=dict)
    #: The mark of an answer that the asker has: if it still holds, its topics are not sent again.
    unless: str = ""


class PageStart(Part, frozen=True, kw_only=True):
    """Where a page begins: at a topic, or at a partition of it."""

    topic: str
    #: The topic whose earlier partitions are on the page before. A topic that was made again since begins anew.
    topic_id: str = ""
    partition: PartitionNumber = 0


class DescribeTopics(Message, frozen=True, kw_only=True):
    """Describe one page of topics, in the order of their names."""

    #: None for all topics.
    topics: tuple[str, ...] | None = None
    #: The `next` of the page before.
    start: PageStart | None = None
    partitions_max: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_A_PAGE_MAX)] = PARTITIONS_A_PAGE_MAX

    def __post_init__(self) -> None:
        require(
            len(set(self.topics or ())) <= TOPICS_A_REQUEST_MAX,
            f"{len(set(self.topics or ()))} topics: at most {TOPICS_A_REQUEST_MAX} a request",
        )


class Awaited(Part, frozen=True, kw_only=True):
    """Why a partition has no leader, as the controller decided it (L4)."""

    #: One of core.law.election's reasons. A newer controller may have others.
    reason: str
    #: If the reason is log_info, the replicas whose log info is required; empty if any replica's will do.
    required: frozenset[BrokerId] = frozenset()
    #: If the reason is table, why that cannot be sealed, as far as is known.
    why: str = ""


# omit_defaults: a reader that does not know the fields from `waiting` on can decode a topic that has no trouble.
class TopicMetadata(Part, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    topic_id: str
    config: TopicConfig
    partitions: tuple[PartitionCommand, ...]
    #: Why a partition has no leader, by partition. Only the controller says so.
    waiting: dict[int, Awaited] = msgspec.field(default_factory=dict)
    #: The brokers whose disk refuses a partition, by partition. Only the controller says so.
    refused: dict[int, tuple[BrokerId, ...]] = msgspec.field(default_factory=dict)
    #: What the disks of brokers have damaged, by partition. Only the controller says so.
    damaged: dict[int, dict[BrokerId, DiskDamage]] = msgspec.field(default_factory=dict)
    #: Partitions of which there is no more to tell: their state in ZooKeeper could not be read (Z1), or is yet to be
    #: made.
    hidden: tuple[PartitionNumber, ...] = ()

    @property
    def numbers(self) -> tuple[PartitionNumber, ...]:
        """All partitions of the topic, in order. Whoever places rows by their number, or reads all, counts the hidden
        ones, too: else a key's rows go elsewhere, and rows are missed without an error."""
        return tuple(sorted([command.partition for command in self.partitions] + list(self.hidden)))


class Metadata(Message, frozen=True, kw_only=True):
    """The answer to GetMetadata: what routing needs. Brokers leave the last seven fields at their defaults."""

    cluster_id: str
    #: All registered brokers.
    brokers: dict[BrokerId, Registration]
    topics: tuple[TopicMetadata, ...]
    #: The controller's host:port, if there is one.
    controller: str | None = None
    #: For how long the controller has had no connection to ZooKeeper; 0 while it has one.
    zookeeper_silent_ms: Count = 0
    #: What the controller cannot read in ZooKeeper, and why.
    unreadable: tuple[str, ...] = ()
    #: What people are to know of brokers.
    notes: dict[BrokerId, BrokerNotes] = msgspec.field(default_factory=dict)
    #: Why the mirror is not written; empty if it is.
    mirror_error: str = ""
    #: Why the controller's files of tokens, certificates and keys cannot be used as they are. Unset if they can: a
    #: client of an earlier release can decode that.
    secrets: str | UnsetType = UNSET
    #: Names the description of all topics: one that differs has another mark. Empty where only some were asked for.
    mark: str = ""
    #: The topics are those of the answer with this mark, and left out.
    is_unchanged: bool = False


class TopicPage(Message, frozen=True, kw_only=True):
    """The answer to DescribeTopics. An unknown topic is left out. A topic may be cut between two pages."""

    topics: tuple[TopicMetadata, ...]
    #: None if this is the last page.
    next: PageStart | None = None


class DescribeReplicas(Message, frozen=True, kw_only=True):
    """Describe the sizes and ends of a broker's logs, and how far behind its followers are."""

    #: None for all partitions.
    partitions: tuple[TopicPartition, ...] | None = None


class CopySize(Part, frozen=True, kw_only=True):
    """How far the copy of a replica that is being added has come."""

    bytes_left: Count
    #: How fast bytes_left shrinks: copied minus appended. None if that is not known yet.
    bytes_per_second: int | None


class FollowerLag(Part, frozen=True, kw_only=True):
    """How far a follower is behind its leader, by its last fetch."""

    #: None if the follower has not reported its log end in this leader epoch.
    records: Count | None
    #: For how long the follower has not been caught up; 0 if it has the whole log.
    ms: Count


class TableLag(Part, frozen=True, kw_only=True):
    """How far the topic's table is behind a partition's leader, by what a writer has told that leader."""

    #: Below it, the table has every row. None if no writer has told this leader in its epoch.
    end: Offset | None
    #: Committed rows that the table lacks. None if the end is not known: never 0 in its place.
    rows: Count | None
    #: How old the first of them is; 0 if there is none. None if the end is not known, or the disk does not say.
    ms: Count | None
    #: What the log keeps for nothing but that the table is not known to have it.
    held_back_bytes: Count


class ReplicaSize(Part, frozen=True, kw_only=True):
    """The size and the ends of one replica's log."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    #: Whether this broker leads the partition: a leader's numbers are the newest.
    leads: bool
    bytes: Count
    log_start: Offset = 0
    high_watermark: Offset = 0
    log_end: Offset = 0
    #: The leader epoch of the last record; -1 if there is none.
    last_epoch: int = -1
    #: The lag of each follower. Only a leader says so.
    lags: dict[BrokerId, FollowerLag] = msgspec.field(default_factory=dict)
    #: The replicas that are being added and are not in the ISR yet. Only a leader says so.
    copies: dict[BrokerId, CopySize] = msgspec.field(default_factory=dict)
    #: Only a leader says so, and only of a topic that is a table.
    table: TableLag | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaSizes(Message, frozen=True, kw_only=True):
    """The answer to DescribeReplicas. A replica that is not on this broker is left out."""

    replicas: tuple[ReplicaSize, ...]
