"""How large logs are, and how far followers and reassignments, asked of every broker that has some. Who does not answer
is left out: what it has is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from spark_replication.client.deadline import Deadline
from spark_replication.client.routes import ASK_MS, Routes
from spark_replication.core.replica.copying import left_of
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import DESCRIBE_REPLICAS
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import DescribeReplicas, FollowerLag, Metadata, ReplicaSize
from spark_replication.model import BrokerId, Offset, PartitionNumber, Registration, TopicPartition


def replica_sizes(
    routes: Routes,
    brokers: Mapping[BrokerId, Registration],
    partitions: tuple[TopicPartition, ...] | None,
    deadline: Deadline,
) -> list[ReplicaSize]:
    """partitions: None = all that each has."""
    found: list[ReplicaSize] = []
    if partitions == ():
        return found
    asked = DescribeReplicas(partitions=partitions)
    for registration in brokers.values():
        with suppress(ReplicationError):
            answer = routes.call(registration.address, DESCRIBE_REPLICAS, asked, deadline.within_ms(ASK_MS))
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


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as its broker told."""

    topic: str
    partition: PartitionNumber
    broker: BrokerId
    leads: bool
    bytes: int
    log_start: Offset
    high_watermark: Offset
    log_end: Offset
    #: The leader epoch of the last record; -1: there is none.
    last_epoch: int
    #: Of all followers; told by who leads.
    lags: dict[BrokerId, FollowerLag]


def replicas_of(
    routes: Routes, metadata: Metadata, partitions: tuple[TopicPartition, ...], deadline: Deadline
) -> list[ReplicaDescription]:
    """Sorted. One of a topic that was made again since is left out, as is one whose broker does not answer."""
    current = {command.topic_partition: command.topic_id for topic in metadata.topics for command in topic.partitions}
    found = [
        ReplicaDescription(
            topic=size.topic,
            partition=size.partition,
            broker=broker,
            leads=size.leads,
            bytes=size.bytes,
            log_start=size.log_start,
            high_watermark=size.high_watermark,
            log_end=size.log_end,
            last_epoch=size.last_epoch,
            lags=size.lags,
        )
        for broker, registration in metadata.brokers.items()
        for size in replica_sizes(routes, {broker: registration}, partitions, deadline)
        if current.get(size.topic_partition) == size.topic_id
    ]
    return sorted(found, key=lambda each: (each.topic, each.partition, each.broker))


class ReassignmentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """replicas: the target in its order, then those that are being removed. It completes once all of the target are in
    the ISR.

    bytes_left: what those that are being added lack, together. time_left_ms: at the pace of the last seconds. None:
    unknown, since the leader does not answer, has not looked for long enough, or sees no end at this pace.
    """

    partition: str
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    bytes_left: int | None
    time_left_ms: int | None


def moving_of(metadata: Metadata) -> list[PartitionCommand]:
    """Those that are being reassigned, sorted."""
    found = [each for topic in metadata.topics for each in topic.partitions if each.adding or each.removing]
    return sorted(found, key=lambda each: each.topic_partition)


def reassignments_of(moving: Iterable[PartitionCommand], sizes: Iterable[ReplicaSize]) -> list[ReassignmentDescription]:
    told = {(size.topic_partition, size.topic_id): size for size in sizes if size.leads}
    found = []
    for command in moving:
        bytes_left, time_left_ms = left_of(command, told.get((command.topic_partition, command.topic_id)))
        found.append(
            ReassignmentDescription(
                partition=str(command.topic_partition),
                replicas=command.replicas,
                adding=command.adding,
                removing=command.removing,
                isr=tuple(broker for broker in command.replicas if broker in command.state.isr),
                bytes_left=bytes_left,
                time_left_ms=time_left_ms,
            )
        )
    return found
