"""Partitions as a controller would tell of them."""

from __future__ import annotations

from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.rows import NEVER_CONFIRMED, MirrorRow
from spark_replication.model import PartitionState

CLUSTER = "cluster-a"


def command(
    topic: str = "orders",
    partition: int = 3,
    *,
    leader: int | None = 1,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    topic_id: str = "first",
) -> PartitionCommand:
    isr = frozenset() if leader is None else frozenset({leader, 2})
    return PartitionCommand(
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        replicas=(2, 1, 3),
        state=PartitionState(
            leader=leader, leader_epoch=leader_epoch, isr=isr, min_isr=2, epochs=dict.fromkeys(isr, 0)
        ),
        partition_epoch=partition_epoch,
    )


def row(
    told: PartitionCommand,
    zxid: int,
    *,
    active_epoch: int = NEVER_CONFIRMED,
    cluster_id: str = CLUSTER,
    deleted: bool = False,
) -> MirrorRow:
    return MirrorRow(
        cluster_id=cluster_id, command=told, zxid=zxid, updated_at_ms=0, active_epoch=active_epoch, deleted=deleted
    )
