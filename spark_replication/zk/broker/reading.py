"""What a broker reads of what others wrote."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from spark_replication.core.controller.cluster import commands_of
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import (
    BrokerId,
    ClusterSettings,
    ControllerEpoch,
    TopicConfig,
    TopicPartition,
    decode,
    shortened,
)
from spark_replication.zk import paths
from spark_replication.zk.reading import NodeReads, Reading

log = logging.getLogger(__name__)


class ClusterRead(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that metadata is made of."""

    partitions: list[PartitionCommand]
    topics: dict[str, TopicConfig]
    topic_ids: dict[str, str]
    brokers: BrokersRead
    settings: ClusterSettings
    #: The epoch of the last controller that was elected; -1 if none ever was.
    controller_epoch: int
    unreadable: Unreadable
    #: The assigned partitions without a state.
    unmade: frozenset[TopicPartition]


def read_assigned(
    reads: NodeReads, broker_id: BrokerId, topics: Collection[str] | None = None
) -> tuple[list[PartitionCommand], Unreadable]:
    """The partitions assigned to this broker that have a state (B1), and what cannot be read. topics: None for all."""
    read = Reading(reads)
    nodes = read.topic_nodes(topics)
    assigned = {
        name: topic
        for name, topic in read.topics(nodes).items()
        if any(broker_id in replicas for replicas in topic.state.partitions.values())
    }
    wanted = [
        TopicPartition(name, number)
        for name, topic in assigned.items()
        for number, replicas in topic.state.partitions.items()
        if broker_id in replicas
    ]
    partitions = read.partitions(wanted)
    read.hide_removed(read.removed(nodes, wanted, partitions.keys()))
    return commands_of(assigned, partitions), read.unreadable


def read_all(reads: NodeReads) -> ClusterRead:
    read = Reading(reads)
    nodes = read.topic_nodes()
    topics = read.topics(nodes)
    wanted = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.state.partitions]
    found = read.partitions(wanted)
    read.hide_removed(read.removed(nodes, wanted, found.keys()))
    partitions = commands_of(topics, found)
    brokers = read.brokers()
    settings = read.settings()
    for path, why in read.unreadable.reasons.items():
        log.error("%s is left as it is: %s", shortened(path), shortened(why))
    return ClusterRead(
        partitions=partitions,
        topics={name: topic.config for name, topic in topics.items()},
        topic_ids={name: topic.state.topic_id for name, topic in topics.items()},
        brokers=brokers,
        settings=settings,
        controller_epoch=_controller_epoch(reads),
        unreadable=read.unreadable,
        unmade=frozenset(wanted) - found.keys() - read.unreadable.partitions,
    )


def _controller_epoch(reads: NodeReads) -> int:
    node = reads.read_now(paths.CONTROLLER_EPOCH)
    return -1 if node is None else decode(node.data, ControllerEpoch, paths.CONTROLLER_EPOCH).epoch
