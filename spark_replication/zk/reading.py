"""What controllers and brokers both read: topics, partitions, brokers. Pipelined; values are checked as they enter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_replication.core.cluster import BrokersRead, StoredTopic
from spark_replication.core.writes import StoredPartition
from spark_replication.messages import PartitionCommand
from spark_replication.model import (
    BrokerEpoch,
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
    names = session.children_now(paths.TOPICS)
    states = session.read_many([paths.topic(name) for name in names])
    configs = session.read_many([paths.topic_config(name) for name in names])
    return {
        name: StoredTopic(
            state=decode(state.data, TopicState, paths.topic(name)),
            version=state.version,
            config=_config(name, config),
        )
        for name, state, config in zip(names, states, configs, strict=True)
        if state is not None
    }


def read_partitions(session: Session, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, StoredPartition]:
    """leaderAndISR of those that have one: a partition may be assigned, and have none yet."""
    partitions = list(wanted)
    nodes = session.read_many([paths.leader_and_isr(partition) for partition in partitions])
    return {
        partition: stored_partition(partition, node)
        for partition, node in zip(partitions, nodes, strict=True)
        if node is not None
    }


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


def commands_of(
    topics: Mapping[str, StoredTopic], partitions: Mapping[TopicPartition, StoredPartition]
) -> list[PartitionCommand]:
    """Each partition as brokers are told of it; sorted."""
    return [
        PartitionCommand(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=topics[partition.topic].state.topic_id,
            replicas=topics[partition.topic].state.partitions[partition.partition],
            state=stored.state,
            partition_epoch=stored.version,
        )
        for partition, stored in sorted(partitions.items())
    ]


def _config(topic: str, node: Node | None) -> TopicConfig:
    return TopicConfig() if node is None else decode(node.data, TopicConfig, paths.topic_config(topic))
