"""Which topics may be: names (T1), numbers of partitions, assignments. What is wrong is said, and nothing changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spark_replication.config import with_topic
from spark_replication.core.cluster import ClusterState
from spark_replication.core.placement import place
from spark_replication.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicAlreadyExists,
)
from spark_replication.messages import CreateTopic
from spark_replication.model import BrokerId

NAME_LENGTH_MAX = 249
PARTITIONS_MAX = 10_000  # of one topic: its assignment must fit one znode of 512 KB
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def check_name(name: str, existing: Iterable[str]) -> None:
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX or name in (".", ".."):
        raise InvalidTopic(
            f"{name!r} is no topic name: letters, digits, '.', '_' and '-', at most {NAME_LENGTH_MAX} of them"
        )
    alike = name.replace(".", "_")
    for other in existing:
        if other == name:
            raise TopicAlreadyExists(f"topic {name} exists already")
        if other.replace(".", "_") == alike:
            raise InvalidTopic(f"topic {name} differs from {other} only by '.' and '_': their metrics would collide")


def assignment_for(creation: CreateTopic, cluster: ClusterState) -> dict[int, tuple[BrokerId, ...]]:
    """What the new topic's replicas are, or the error that says why it cannot be made."""
    check_name(creation.name, cluster.topics)
    with_topic(cluster.settings, creation.config)
    if creation.assignment is not None:
        if creation.partitions is not None or creation.replication_factor is not None:
            raise InvalidReplicaAssignment("give an assignment, or partitions and a replication factor: not both")
        check_assignment(creation.assignment, cluster)
        return dict(sorted(creation.assignment.items()))
    count = 1 if creation.partitions is None else creation.partitions
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitions(f"{count} partitions: a topic has from 1 to {PARTITIONS_MAX}")
    factor = creation.replication_factor
    if factor is None:
        factor = cluster.settings.default_replication_factor
    registered = {broker: cluster.registered[broker] for broker in sorted(cluster.brokers.electable)}
    present = (replicas for topic in cluster.topics.values() for replicas in topic.state.partitions.values())
    return place(range(count), factor, registered, present)


def check_assignment(assignment: Mapping[int, tuple[BrokerId, ...]], cluster: ClusterState) -> None:
    if sorted(assignment) != list(range(len(assignment))) or not 1 <= len(assignment) <= PARTITIONS_MAX:
        raise InvalidPartitions(
            f"partitions {sorted(assignment)}: they are numbered from 0 on, up to {PARTITIONS_MAX}, without a gap"
        )
    sizes = {len(replicas) for replicas in assignment.values()}
    if len(sizes) != 1:
        raise InvalidReplicaAssignment(f"partitions of one topic have equally many replicas, not {sorted(sizes)}")
    if sizes == {0}:
        raise InvalidReplicationFactor("a partition needs at least one replica")
    for partition, replicas in sorted(assignment.items()):
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"partition {partition} names a broker twice: {list(replicas)}")
        unknown = sorted(set(replicas) - cluster.broker_epochs.keys())
        if unknown:
            raise InvalidReplicaAssignment(f"partition {partition} names unknown brokers {unknown}")
        if not cluster.brokers.electable.intersection(replicas):
            raise InvalidReplicaAssignment(f"no broker of partition {partition} is alive: {list(replicas)}")
