"""The rows of partitions, topics and brokers, as functions of a description of the cluster. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Awaited, Metadata, TopicMetadata
from spark_replication.model import BrokerId
from spark_replication.page.answers import BrokerRow, PartitionRow, TopicRow
from spark_replication.page.asking import Sizes
from spark_replication.page.history import Totals
from spark_replication.view.conditions import conditions_of_command


def partition_row(command: PartitionCommand, awaited: Awaited | None) -> PartitionRow:
    state = command.state
    return PartitionRow(
        partition=command.partition,
        conditions=conditions_of_command(command),
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=command.partition_epoch,
        min_isr=state.min_isr,
        replicas=command.replicas,
        isr=tuple(broker for broker in command.replicas if broker in state.isr),
        elr=tuple(broker for broker in command.replicas if broker in state.elr),
        elected=state.elected,
        waits=None if awaited is None else awaited.reason,
    )


def partition_rows(topic: TopicMetadata) -> list[PartitionRow]:
    """The rows of a topic's partitions, by number."""
    commands = sorted(topic.partitions, key=lambda each: each.partition)
    return [partition_row(each, topic.waiting.get(each.partition)) for each in commands]


def topic_row(name: str, rows: Sequence[PartitionRow]) -> TopicRow:
    counts = Counter(chain.from_iterable(row.conditions for row in rows))
    return TopicRow(
        name=name,
        partitions=len(rows),
        replicas=max((len(row.replicas) for row in rows), default=0),
        leaderless=counts["leaderless"],
        under_min_isr=counts["under_min_isr"],
        under_replicated=counts["under_replicated"],
        moving=counts["moving"],
    )


def with_totals(row: TopicRow, totals: Totals | None) -> TopicRow:
    if totals is None:
        return row
    return replace(
        row,
        bytes=totals.bytes,
        bytes_per_s=totals.bytes_per_s,
        records_per_s=totals.records_per_s,
        lag=totals.lag,
    )


def broker_rows(metadata: Metadata) -> list[BrokerRow]:
    """The rows of all brokers that are registered or have replicas."""
    leads: Counter[BrokerId] = Counter()
    hosts: Counter[BrokerId] = Counter()
    lacking: Counter[BrokerId] = Counter()
    for topic in metadata.topics:
        for command in topic.partitions:
            hosts.update(command.replicas)
            if len(command.state.isr) < len(command.replicas):
                lacking.update(set(command.replicas) - command.state.isr)
            if command.state.leader is not None:
                leads[command.state.leader] += 1
    rows = []
    for broker in sorted(metadata.brokers.keys() | hosts.keys()):
        registration = metadata.brokers.get(broker)
        is_stopping = registration is not None and registration.shutting_down
        rows.append(
            BrokerRow(
                id=broker,
                condition="gone" if registration is None else "stopping" if is_stopping else "live",
                address=None if registration is None else registration.address,
                rack=None if registration is None else registration.rack,
                epoch=None if registration is None else registration.epoch,
                leads=leads[broker],
                hosts=hosts[broker],
                lacking=lacking[broker],
            )
        )
    return rows


def with_sizes(row: BrokerRow, sizes: Sizes, bytes_on: Mapping[BrokerId, int]) -> BrokerRow:
    return replace(row, bytes=bytes_on.get(row.id), error=sizes.errors.get(row.id, ""))
