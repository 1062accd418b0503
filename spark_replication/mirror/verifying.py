"""Where a table differs from what is stored, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from spark_replication.mirror.columns import Column
from spark_replication.mirror.partitions import PARTITIONS, PartitionGone, PartitionRow
from spark_replication.model import TopicPartition

# What only the mirror knows; and active_epoch, which is compared with the decided epoch.
_ITS_OWN = frozenset({"active_epoch", "updated_at", "cluster_id", "deleted"})
_COMPARED: tuple[Column[PartitionRow, PartitionGone], ...] = tuple(
    column for column in PARTITIONS.columns if column.name not in _ITS_OWN
)


class Difference(msgspec.Struct, frozen=True):
    """stored: in ZooKeeper; shown: in the table. Of a row that one of them lacks, `column` is empty."""

    partition: TopicPartition
    column: str
    stored: Any
    shown: Any


def differences(stored: Sequence[PartitionRow], shown: Iterable[dict[str, Any]]) -> list[Difference]:
    """shown: the rows of what exists, of columns as the table has them."""
    wanted = {row.command.topic_partition: row for row in stored}
    found = {TopicPartition(row["topic"], row["partition"]): row for row in shown}
    missing = [Difference(partition, "", "it is there", "no row") for partition in wanted.keys() - found.keys()]
    left = [Difference(partition, "", "there is none", "a row") for partition in found.keys() - wanted.keys()]
    both = wanted.keys() & found.keys()
    unlike = [each for partition in both for each in _unlike(partition, wanted[partition], found[partition])]
    return sorted([*missing, *left, *unlike], key=lambda each: (each.partition, each.column))


def _unlike(partition: TopicPartition, stored: PartitionRow, shown: dict[str, Any]) -> Iterable[Difference]:
    for column in _COMPARED:
        value = column.live(stored)
        if shown.get(column.name) != value:
            yield Difference(partition, column.name, value, shown.get(column.name))
    state = stored.command.state
    if state.leader is not None and shown.get("active_epoch") != state.leader_epoch:
        yield Difference(partition, "active_epoch", state.leader_epoch, shown.get("active_epoch"))
