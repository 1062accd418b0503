"""The details of a topic, a partition or a broker, for the view of its own: what the board does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from spark_replication.errors import ReplicationError
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata, TableLag, TopicMetadata
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.page.answers import (
    Age,
    BrokerDetail,
    Hosted,
    PartitionDetail,
    PartitionRow,
    PartitionSize,
    PartitionTable,
    ReplicaRow,
    Role,
    ShownTable,
    TopicDetail,
)
from spark_replication.page.asking import Sizes
from spark_replication.page.board import Board
from spark_replication.page.history import History
from spark_replication.storage.format.batches import schema_of_text
from spark_replication.view.health import problems
from spark_replication.view.problem import mend_from
from spark_replication.view.table_lags import topic_table_lag

HOSTED_MAX = 1_000
COLUMNS_MAX = 500
TYPE_CHARACTERS_MAX = 200


class ShownState(NamedTuple):
    board: Board
    sizes: Sizes
    history: History
    #: The age of the sizes.
    age: Age


def topic_detail(seen: ShownState, name: str) -> TopicDetail | None:
    found = seen.board.topic(name)
    if found is None:
        return None
    told, rows = found
    columns, schema_error = _columns(told.config.schema, name)
    return TopicDetail(
        name=name,
        topic_id=told.topic_id,
        settings=dict(sorted(told.config.settings.items())),
        columns=columns,
        schema_error=schema_error,
        schema_version=told.config.schema_version,
        sizes=[_size(seen, told, row) for row in rows],
        table=_table(seen, told, rows),
        series=seen.history.of_topic(name),
        age=seen.age,
    )


def _columns(schema: str, topic: str) -> tuple[list[tuple[str, str]], str]:
    """The columns of a schema, or why it cannot be read: an error, which the view shows beside all else."""
    if not schema:
        return [], ""
    try:
        fields = list(schema_of_text(schema, f"the description of {topic}"))[:COLUMNS_MAX]
    except ReplicationError as error:
        return [], str(error)
    return [(each.name, str(each.type)[:TYPE_CHARACTERS_MAX]) for each in fields], ""


def _size(seen: ShownState, topic: TopicMetadata, row: PartitionRow) -> PartitionSize:
    partition = TopicPartition(topic.name, row.partition)
    told = (seen.sizes.of(partition, topic.topic_id, broker) for broker in row.replicas)
    has = [found for found in told if found is not None]
    best = max(has, key=lambda each: (each.leads, each.bytes), default=None)
    lags = [each.lag for each in has if each.lag is not None]
    return PartitionSize(
        partition=row.partition,
        bytes=None if best is None else best.bytes,
        bytes_per_s=seen.history.bytes_per_s(partition),
        lag=max(lags, default=None),
        log_start=None if best is None else best.start,
        high_watermark=None if best is None else best.high_watermark,
        log_end=None if best is None else best.end,
    )


def _table(seen: ShownState, topic: TopicMetadata, rows: Iterable[PartitionRow]) -> ShownTable | None:
    """As leaders tell of it. A topic of which nobody does is a table if its own settings say so."""
    found = {row.partition: _table_lag(seen, topic, row) for row in rows}
    if not topic.config.settings.get("table", any(each is not None for each in found.values())):
        return None
    return ShownTable(
        whole=topic_table_lag(found.values()),
        partitions=[
            PartitionTable(
                partition=partition,
                table_end=None if lag is None else lag.end,
                rows_behind=None if lag is None else lag.rows,
                ms_behind=None if lag is None else lag.ms,
                held_back_bytes=None if lag is None else lag.held_back_bytes,
            )
            for partition, lag in found.items()
        ],
    )


def _table_lag(seen: ShownState, topic: TopicMetadata, row: PartitionRow) -> TableLag | None:
    if row.leader is None:
        return None
    told = seen.sizes.of(TopicPartition(topic.name, row.partition), topic.topic_id, row.leader)
    return None if told is None else told.table


def partition_sizes(seen: ShownState, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionSize]:
    """The sizes of those of these partitions that exist."""
    found: dict[TopicPartition, PartitionSize] = {}
    for partition in partitions:
        shown = seen.board.topic(partition.topic)
        if shown is None:
            continue
        told, rows = shown
        row = next((each for each in rows if each.partition == partition.partition), None)
        if row is not None:
            found[partition] = _size(seen, told, row)
    return found


def partition_detail(seen: ShownState, topic: str, number: int) -> PartitionDetail | None:
    found, metadata = seen.board.topic(topic), seen.board.metadata
    if found is None or metadata is None:
        return None
    told, rows = found
    command = next((each for each in told.partitions if each.partition == number), None)
    row = next((each for each in rows if each.partition == number), None)
    if command is None or row is None:
        return None
    partition = command.topic_partition
    only = msgspec.structs.replace(told, partitions=(command,))
    trouble = [
        each
        for each in problems(msgspec.structs.replace(metadata, topics=(only,)), frozenset())
        if each.subject == str(partition)
    ]
    mends = [each.mend_of((each.subject,)) for each in trouble]
    return PartitionDetail(
        topic=topic,
        row=row,
        replicas=[_replica(seen, metadata, command, broker) for broker in command.replicas],
        last_known_leader=command.state.last_known_leader,
        last_known_elr=sorted(command.state.last_known_elr),
        recovering=command.state.recovering,
        start_at=command.state.lowest_offset or None,
        trouble="; ".join(str(each) for each in trouble),
        mend="; ".join(mends),
        mends=[mend_from(each) for each in mends],
        guide=next((each.guide for each in trouble if each.guide), ""),
        move=next((move for move in seen.board.moves if move.partition == str(partition)), None),
        series=seen.history.of_partition(partition),
        age=seen.age,
    )


def _replica(seen: ShownState, metadata: Metadata, command: PartitionCommand, broker: BrokerId) -> ReplicaRow:
    has = seen.sizes.of(command.topic_partition, command.topic_id, broker)
    return ReplicaRow(
        broker=broker,
        role=_role(command, broker),
        is_live=broker in metadata.brokers,
        is_adding=broker in command.adding,
        is_removing=broker in command.removing,
        bytes=None if has is None else has.bytes,
        lag=None if has is None else has.lag,
        log_start=None if has is None else has.start,
        high_watermark=None if has is None else has.high_watermark,
        log_end=None if has is None else has.end,
        error=seen.sizes.errors.get(broker, ""),
    )


def _role(command: PartitionCommand, broker: BrokerId) -> Role:
    if command.state.leader == broker:
        return "leader"
    if broker in command.state.isr:
        return "in sync"
    return "eligible" if broker in command.state.elr else "not in sync"


def broker_detail(seen: ShownState, broker: BrokerId) -> BrokerDetail | None:
    row, metadata = seen.board.broker(broker), seen.board.metadata
    if row is None or metadata is None:
        return None
    commands = [each for topic in metadata.topics for each in topic.partitions if broker in each.replicas]
    roles = ("not in sync", "eligible", "leader", "in sync")
    ranked = sorted(commands, key=lambda each: (roles.index(_role(each, broker)), each.topic, each.partition))
    return BrokerDetail(
        row=row,
        hosted=[_hosted(seen, command, broker) for command in ranked[:HOSTED_MAX]],
        series=seen.history.of_broker(broker),
        age=seen.age,
    )


def _hosted(seen: ShownState, command: PartitionCommand, broker: BrokerId) -> Hosted:
    has = seen.sizes.of(command.topic_partition, command.topic_id, broker)
    return Hosted(
        topic=command.topic,
        partition=command.partition,
        role=_role(command, broker),
        bytes=None if has is None else has.bytes,
    )
