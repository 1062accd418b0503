"""The writers of topics' tables that guardians keep beside a cluster's brokers, and what the table has of a load."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

import spark_replication as sr
from spark_replication.live.guarding.table_writer import FOLDER
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.process.processes import LockedProcess
from spark_replication.tables.types import OFFSET, PARTITION
from tests.live.cluster.history import Load
from tests.waiting import eventually

START_S = 60.0


def writer_of(directory: Path, broker: int) -> LockedProcess:
    """directory: the cluster's."""
    return LockedProcess(directory / "logs" / f"broker-{broker}" / FOLDER)


def writer_pids(cluster: sr.LocalCluster) -> dict[int, int]:
    """Of the writers that live, by their brokers."""
    found = {broker: writer_of(cluster.directory, broker).pid() for broker in cluster.brokers}
    return {broker: pid for broker, pid in found.items() if pid is not None}


def wait_for_writers(cluster: sr.LocalCluster) -> dict[int, int]:
    eventually(lambda: writer_pids(cluster).keys() == cluster.brokers.keys(), "a writer beside each broker", START_S)
    return writer_pids(cluster)


def table_of(cluster: sr.LocalCluster, topic: str) -> pa.Table | None:
    uri = str(cluster.directory / "tables" / topic)
    if not DeltaTable.is_deltatable(uri):
        return None
    return rows_of(DeltaTable(uri), [PARTITION, OFFSET, "number"], None)


def rows_in(cluster: sr.LocalCluster, topic: str) -> list[tuple[int, int, int]]:
    """Partition, offset and number of each row, sorted."""
    found = table_of(cluster, topic)
    return [] if found is None else sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def rows_told(load: Load) -> list[tuple[int, int, int]]:
    """What was acknowledged, likewise."""
    return sorted((each.partition, each.offset, each.number) for each in load.acknowledged)
