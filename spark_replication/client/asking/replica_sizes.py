"""Asks brokers for the sizes of their logs, the lags of followers and the progress of reassignments.

A broker that does not answer is left out: what it has is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.core.replica.copying import left_of
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import DESCRIBE_REPLICAS
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import DescribeReplicas, FollowerLag, Metadata, ReplicaSize, TableLag
from spark_replication.model import BrokerId, Offset, PartitionNumber, Registration, TopicPartition


def replica_sizes(
    routes: Routes,
    brokers: Mapping[BrokerId, Registration],
    partitions: tuple[TopicPartition, ...] | None,
    deadline: Deadline,
) -> list[ReplicaSize]:
    """The sizes that these brokers report for these partitions, or for all that they have with None."""
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
    """The bytes of each partition, as its leader reports. If no leader answered, those of the largest replica."""
    best: dict[TopicPartition, ReplicaSize] = {}
    for size in sizes:
        known = best.get(size.topic_partition)
        if known is None or (known.leads, known.bytes) < (size.leads, size.bytes):
            best[size.topic_partition] = size
    return {partition: size.bytes for partition, size in best.items()}


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as its broker describes it."""

    topic: str
    partition: PartitionNumber
    broker: BrokerId
    leads: bool
    bytes: int
    log_start: Offset
    high_watermark: Offset
    log_end: Offset
    #: The leader epoch of the last record; -1 if there is none.
    last_epoch: int
    #: The lag of each follower; empty if the broker does not lead.
    lags: dict[BrokerId, FollowerLag]
    #: How far the topic's table is behind; None if the topic is no table, or the broker does not lead.
    table: TableLag | None = None


def replicas_of(
    routes: Routes, metadata: Metadata, partitions: tuple[TopicPartition, ...], deadline: Deadline
) -> list[ReplicaDescription]:
    """The replicas of these partitions, sorted. A replica of a topic that was made again since is left out, and so is
    one whose broker does not answer."""
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
            table=size.table,
        )
        for broker, registration in metadata.brokers.items()
        for size in replica_sizes(routes, {broker: registration}, partitions, deadline)
        if current.get(size.topic_partition) == size.topic_id
    ]
    return sorted(found, key=lambda each: (each.topic, each.partition, each.broker))


class ReassignmentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A reassignment that is under way. It completes once the whole target is in the ISR."""

    partition: str
    #: The target in its order, then the replicas that are being removed.
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    #: What the replicas that are being added lack, together. None if the leader does not say.
    bytes_left: int | None
    #: At the pace of the last seconds. None if that is unknown, or the copy never ends at this pace.
    time_left_ms: int | None


def moving_of(metadata: Metadata) -> list[PartitionCommand]:
    """The partitions that are being reassigned, sorted."""
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
