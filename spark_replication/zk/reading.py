"""What controllers and brokers both read: topics, partitions, brokers. Pipelined; values are checked as they enter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.law.writes import StoredPartition
from spark_replication.model import (
    BrokerEpoch,
    ClusterSettings,
    PartitionState,
    Registration,
    TopicConfig,
    TopicPartition,
    TopicState,
    decode,
)
from spark_replication.zk import paths
from spark_replication.zk.session import Node, Session, Watch


def read_topics(session: Session) -> dict[str, StoredTopic]:
    """Every topic with its config. One that is deleted during the read is left out."""
    return topics_of(session, read_topic_nodes(session))


def read_topic_nodes(session: Session) -> dict[str, Node]:
    names = session.children_now(paths.TOPICS)
    nodes = session.read_many([paths.topic(name) for name in names])
    return {name: node for name, node in zip(names, nodes, strict=True) if node is not None}


def topics_of(session: Session, nodes: Mapping[str, Node]) -> dict[str, StoredTopic]:
    configs = session.read_many([paths.topic_config(name) for name in nodes])
    return {
        name: StoredTopic(
            state=decode(node.data, TopicState, paths.topic(name)),
            version=node.version,
            config=_config(name, config),
        )
        for (name, node), config in zip(nodes.items(), configs, strict=True)
    }


def read_settings(session: Session) -> ClusterSettings:
    """Those of the cluster."""
    node = session.read_now(paths.CLUSTER_CONFIG)
    return ClusterSettings() if node is None else decode(node.data, ClusterSettings, paths.CLUSTER_CONFIG)


def read_partitions(session: Session, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, StoredPartition]:
    """leaderAndISR of those that have one: a partition may be assigned, and have none yet."""
    partitions = list(wanted)
    nodes = session.read_many([paths.leader_and_isr(partition) for partition in partitions])
    return {
        partition: stored_partition(partition, node)
        for partition, node in zip(partitions, nodes, strict=True)
        if node is not None
    }


def read_tombstones(
    session: Session,
    nodes: Mapping[str, Node],
    topics: Mapping[str, StoredTopic],
    assigned: Mapping[TopicPartition, StoredPartition],
) -> dict[TopicPartition, StoredPartition]:
    """leaderAndISR of partitions that were removed from a topic that lives (E4).

    A topic's node says how many children it has: only where there are more than assigned partitions are they listed.
    """
    known = Counter(partition.topic for partition in assigned)
    names = [name for name, node in nodes.items() if node.children > known[name]]
    listed = session.children_many([paths.topic(name) for name in names])
    wanted = [
        TopicPartition(name, int(child))
        for name, children in zip(names, listed, strict=True)
        for child in children
        if is_partition_number(child) and int(child) not in topics[name].state.partitions
    ]
    return read_partitions(session, sorted(wanted))


def is_partition_number(name: str) -> bool:
    return name.isdecimal() and name == str(int(name))


def read_brokers(session: Session, watch: Watch | None = None) -> BrokersRead:
    """Registrations, each with the watch, then epochs: so an epoch is never older than the registration it is for."""
    ids = session.children_now(paths.BROKER_IDS, watch)
    registered = session.read_many([f"{paths.BROKER_IDS}/{id_}" for id_ in ids], watch)
    known = session.children_now(paths.BROKER_EPOCHS)
    epochs = session.read_many([f"{paths.BROKER_EPOCHS}/{id_}" for id_ in known])
    return BrokersRead(
        brokers={
            int(id_): decode(node.data, Registration, f"{paths.BROKER_IDS}/{id_}")
            for id_, node in zip(ids, registered, strict=True)
            if node is not None
        },
        broker_epochs={
            int(id_): decode(node.data, BrokerEpoch, f"{paths.BROKER_EPOCHS}/{id_}")
            for id_, node in zip(known, epochs, strict=True)
            if node is not None
        },
    )


def stored_partition(partition: TopicPartition, node: Node) -> StoredPartition:
    state = decode(node.data, PartitionState, paths.leader_and_isr(partition))
    return StoredPartition(state, node.version, node.zxid)


def _config(topic: str, node: Node | None) -> TopicConfig:
    return TopicConfig() if node is None else decode(node.data, TopicConfig, paths.topic_config(topic))
