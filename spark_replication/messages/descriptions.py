"""What admins and clients are told: topics, who lives, how large the logs are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.envelope import Message, Part
from spark_replication.model import BrokerId, Registration, TopicConfig, TopicPartition


class DescribeTopics(Message, frozen=True, kw_only=True):
    """None: all topics."""

    topics: tuple[str, ...] | None = None


class TopicMetadata(Part, frozen=True, kw_only=True):
    name: str
    topic_id: str
    config: TopicConfig
    partitions: tuple[PartitionCommand, ...]


class Metadata(Message, frozen=True, kw_only=True):
    """Topics with their partitions, and who lives: what routing needs. `controller` is host:port, if there is one."""

    cluster_id: str
    brokers: dict[BrokerId, Registration]
    topics: tuple[TopicMetadata, ...]
    controller: str | None = None


class DescribeReplicas(Message, frozen=True, kw_only=True):
    """How large are the logs of these that you have (None: of all)?"""

    partitions: tuple[TopicPartition, ...] | None = None


class CopySize(Part, frozen=True, kw_only=True):
    """Of a replica that is being added: what it lacks, and by how much that became less each second, copied less
    appended; None: that is not known yet."""

    bytes_left: Annotated[int, msgspec.Meta(ge=0)]
    bytes_per_second: int | None


class ReplicaSize(Part, frozen=True, kw_only=True):
    """leads: this broker does, and so it knows best. copies: of the replicas that are being added and are not in the
    ISR yet, as their leader sees them."""

    topic: str
    partition: int
    topic_id: str
    leads: bool
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    copies: dict[BrokerId, CopySize] = msgspec.field(default_factory=dict)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaSizes(Message, frozen=True, kw_only=True):
    """The answer to DescribeReplicas: of those that are here."""

    replicas: tuple[ReplicaSize, ...]
