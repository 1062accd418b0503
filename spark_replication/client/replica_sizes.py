"""How large logs are, asked of every broker that has them. Who does not answer is left out: what it has is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from spark_replication.client.deadline import Deadline
from spark_replication.client.routes import ASK_MS, Routes
from spark_replication.errors import ReplicationError
from spark_replication.messages import DescribeReplicas, ReplicaSize, ReplicaSizes
from spark_replication.model import BrokerId, Registration, TopicPartition


def replica_sizes(
    routes: Routes,
    brokers: Mapping[BrokerId, Registration],
    partitions: tuple[TopicPartition, ...] | None,
    deadline: Deadline,
) -> list[ReplicaSize]:
    found: list[ReplicaSize] = []
    asked = DescribeReplicas(partitions=partitions)
    for registration in brokers.values():
        with suppress(ReplicationError):
            answer = routes.call(
                registration.address, "describe_replicas", asked, ReplicaSizes, deadline.within_ms(ASK_MS)
            )
            found.extend(answer.replicas)
    return found


def bytes_of(sizes: Iterable[ReplicaSize]) -> dict[TopicPartition, int]:
    """Of each partition, as its leader says; where none answered, the most that a replica has."""
    best: dict[TopicPartition, ReplicaSize] = {}
    for size in sizes:
        known = best.get(size.topic_partition)
        if known is None or (known.leads, known.bytes) < (size.leads, size.bytes):
            best[size.topic_partition] = size
    return {partition: size.bytes for partition, size in best.items()}
