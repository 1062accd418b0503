"""What a complete set says of a table (M2): which of its rows are not shown yet, and what is shown that is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from spark_replication.mirror.latest_rows import Batch
from spark_replication.mirror.partitions import PartitionGone, PartitionRow
from spark_replication.model import TopicPartition


class Shown(NamedTuple):
    zxid: int
    active_epoch: int
    deleted: bool


def compared(
    batch: Batch,
    shown: Mapping[TopicPartition, Shown],
    *,
    knows: Callable[[TopicPartition], bool],
    cluster_id: str,
    now_ms: int,
) -> Batch:
    """What to write of it. knows: whether the controller has said of a partition that it is there, or gone."""
    complete = batch.complete
    if complete is None:
        return batch
    live = [row for row in batch.live if not _is_shown(row, shown.get(row.command.topic_partition))]
    vanished = [
        PartitionGone(cluster_id=cluster_id, partition=partition, zxid=complete.zxid, told_ms=now_ms)
        for partition, row in shown.items()
        if row.zxid < complete.zxid
        and not row.deleted
        and not knows(partition)
        and not complete.unreadable.hides(partition)
    ]
    return Batch(live, [*batch.gone, *vanished], complete)


def _is_shown(row: PartitionRow, shown: Shown | None) -> bool:
    if shown is None:
        return False
    return shown.zxid > row.zxid or (shown.zxid == row.zxid and shown.active_epoch >= row.active_epoch)
