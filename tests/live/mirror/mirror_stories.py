"""Partitions as a controller would tell of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spark_replication.config import settings_from
from spark_replication.core.controller.news import EverythingTold, News, PartitionNews
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.tables.brokers import BROKERS, BrokerRow
from spark_replication.mirror.tables.columns import Table, Tombstone
from spark_replication.mirror.tables.groups import GROUPS, GroupRow
from spark_replication.mirror.tables.partitions import NEVER_CONFIRMED, PARTITIONS, PartitionRow
from spark_replication.mirror.telling.feed import MirrorThread, Teller
from spark_replication.model import PartitionState, Registration
from tests.waiting import eventually

CLUSTER = "cluster-a"
DEADLINE_S = 60.0


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


def row(told: PartitionCommand, zxid: int, *, active_epoch: int = NEVER_CONFIRMED) -> PartitionRow:
    return PartitionRow(cluster_id=CLUSTER, command=told, zxid=zxid, told_ms=0, active_epoch=active_epoch)


def gone(topic: str, partition: int, zxid: int) -> Tombstone:
    return Tombstone(cluster_id=CLUSTER, key=(topic, partition), zxid=zxid, told_ms=0)


def changed(*told: tuple[PartitionCommand, int]) -> News:
    return News(partitions=tuple(PartitionNews(command, zxid) for command, zxid in told))


def everything(zxid: int, *told: tuple[PartitionCommand, int], unreadable: Unreadable = ALL_READ) -> News:
    """As a controller tells that came to power at this zxid."""
    return News(partitions=changed(*told).partitions, complete=EverythingTold(zxid, unreadable))


def broker_row(broker: int, zxid: int, *, shutting_down: bool = False, port: int = 9_000) -> BrokerRow:
    """It is reached at host<id>:<port + id>."""
    registration = Registration(
        host=f"host{broker}",
        port=port + broker,
        replication_port=1,
        epoch=zxid,
        incarnation="one",
        shutting_down=shutting_down,
    )
    return BrokerRow(cluster_id=CLUSTER, broker=broker, registration=registration, zxid=zxid, at_ms=0, told_ms=0)


def group_row(partition: int, position: int, *, group: str = "etl", lag: int = 4) -> GroupRow:
    """Of a log of orders that ends so many records later."""
    return GroupRow(
        cluster_id=CLUSTER,
        group=group,
        topic="orders",
        partition=partition,
        state="stable",
        position=position,
        position_epoch=2,
        log_end=position + lag,
        lag_records=lag,
        lag_ms=1_500,
        member="one",
        host="host1",
        committed_ms=7_000,
        told_ms=8_000,
    )


def write_groups(path: str, *rows: GroupRow, controller_epoch: int = 4) -> None:
    DeltaFile(GROUPS, GROUPS.path(path), CLUSTER).replace(GROUPS.rows(rows, []), controller_epoch)


def write(path: str, table: Table[Any], live: Sequence[Any], dead: Sequence[Tombstone] = ()) -> None:
    """As the mirror's thread writes it."""
    rows = table.rows(live, dead)
    DeltaFile(table, table.path(path), CLUSTER).merge(lambda _opened: rows)


def write_brokers(path: str, *live: BrokerRow, dead: Sequence[tuple[int, int]] = ()) -> None:
    """dead: ids and zxids."""
    tombstones = [Tombstone(cluster_id=CLUSTER, key=(broker,), zxid=zxid, told_ms=0) for broker, zxid in dead]
    write(path, BROKERS, live, tombstones)


def write_partitions(path: str, *live: PartitionRow, dead: Sequence[Tombstone] = ()) -> None:
    write(path, PARTITIONS, live, dead)


def thread(path: str, teller: Teller, *, interval_ms: int = 1, heartbeat_ms: int = 60_000) -> MirrorThread:
    return MirrorThread(
        path, teller, settings_from({"mirror.interval.ms": interval_ms, "mirror.heartbeat.ms": heartbeat_ms})
    )


def wait_for(condition: Callable[[], bool]) -> None:
    eventually(condition, "what the mirror's stories wait for", DEADLINE_S)
