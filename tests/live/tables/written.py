"""A cluster's topics, written to their tables by this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

import spark_replication as sr
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.live.tables.agreement import differences
from spark_replication.live.tables.table_topics import table_topics
from spark_replication.live.tables.table_writers import TableWriters
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.tables.verifying import TableFault, faults_of

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
PATIENCE_S = 60.0


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"row {each}" for each in numbers])], SCHEMA)


def produce(
    cluster: sr.LocalCluster, first: int, count: int, *, topic: str = "orders", partition: int = 0
) -> list[int]:
    """In batches of ten. Returns the offsets of their first rows."""
    with sr.Producer(cluster.bootstrap) as producer:
        sent = [
            producer.send(topic, rows(each, min(10, first + count - each)), partition=partition)
            for each in range(first, first + count, 10)
        ]
        return [each.result().base_offset for each in sent]


def write(
    cluster: sr.LocalCluster, *topics: str, patience_s: float = PATIENCE_S, store: StoreOptions = PATIENCE
) -> TableWriters:
    """Write all that is committed."""
    with closing(Routes(cluster.bootstrap)) as routes, Reader(cluster.bootstrap, prefer="near") as reader:
        writers = TableWriters(routes, reader, store, topics=topics, at_once=True)
        writers.write_once(patience_s, threading.Event().wait)
        return writers


def faults(cluster: sr.LocalCluster, store: StoreOptions = PATIENCE) -> list[TableFault]:
    """What is wrong with all tables, and where they have other rows than the logs."""
    found: list[TableFault] = []
    with closing(Routes(cluster.bootstrap)) as routes, Reader(cluster.bootstrap) as reader:
        for topic in table_topics(routes, ()):
            last = topic.table(store).last()
            assert last is not None, topic.name
            found += [*faults_of(*last), *differences(topic, reader, *last)]
    return found


def stored(directory: Path, *columns: str, topic: str = "orders", where: str | None = None) -> list[tuple[Any, ...]]:
    """The rows of a table, sorted."""
    found = rows_of(DeltaTable(str(directory / "tables" / topic)), columns, where)
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True))


def log_folders(cluster: sr.LocalCluster, broker: int, partitions: Sequence[str]) -> list[Path]:
    """The folders of these partitions (`orders-0`) on a broker."""
    directory = Path(cluster.brokers[broker].log_dir)
    return [folder for name in partitions for folder in directory.glob(f"{name}.*")]
