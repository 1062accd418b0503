"""Reading the mirror: without Spark, or with a session that has Delta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.delta.reading import last_rows_of, rows_of
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.columns import Table
from spark_replication.mirror.tables.events import EVENTS
from spark_replication.mirror.tables.groups import GROUPS
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.status import STATUS
from spark_replication.mirror.tables.topics import TOPICS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The tables that may have tombstones.
TABLES: dict[str, Table[Any]] = {table.name: table for table in (PARTITIONS, BROKERS, TOPICS)}

# As a start of the change feed: Delta begins with the first version that it still has. Version 0 would be an error once
# the log's head has been cleaned up.
BEFORE_ANY_TABLE = "2000-01-01 00:00:00"

# What reading a table raises: there is none, it is another one, or there is no access to it.
UNREADABLE = (DeltaError, pa.ArrowException, OSError)


def read_table(name: str, path: str, *, columns: list[str] | None = None, timeout_ms: int | None = None) -> pa.Table:
    """One row for each thing that exists; the columns' comments say what they mean. timeout_ms: for each request to an
    object store, of which none is then repeated."""
    return rows_of(_opened(TABLES[name], path, _store(timeout_ms)), columns, "NOT deleted")


def _store(timeout_ms: int | None) -> StoreOptions:
    return PATIENCE if timeout_ms is None else {"timeout": f"{timeout_ms}ms", "max_retries": "0"}


def reason_of(error: Exception) -> str:
    """The reason in one line: Delta's own text has several."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".: ")


def read_partitions(path: str) -> pa.Table:
    return read_table(PARTITIONS.name, path)


def read_events(
    path: str, where: str | None = None, last: int | None = None, store: StoreOptions = PATIENCE
) -> pa.Table:
    """Events, in the order in which they were told. where: as mirror.asking.told_events makes it. last: at most so
    many, the newest ones."""
    opened = _opened(EVENTS, path, store)
    found = rows_of(opened, where=where) if last is None else last_rows_of(opened, "number", last, where)
    return found.sort_by("number")


def read_status(path: str, *, timeout_ms: int | None = None) -> pa.Table:
    """One row once a controller has written the tables: how far they are, and who writes them. timeout_ms: as for
    read_table."""
    return rows_of(_opened(STATUS, path, _store(timeout_ms)))


def read_groups(path: str) -> pa.Table:
    """One row for each partition that a group reads, in no order."""
    return rows_of(_opened(GROUPS, path))


def _opened(table: Table[Any], path: str, store: StoreOptions = PATIENCE) -> DeltaTable:
    return DeltaTable(table.path(path), storage_options=dict(store))


def load_table(spark: SparkSession, table: Table[Any], path: str) -> DataFrame:
    """The table with its tombstones. Each query of it reads the newest version."""
    return spark.read.format("delta").load(table.path(path))


def load_partitions(spark: SparkSession, path: str) -> DataFrame:
    """One row for each partition that exists."""
    return load_table(spark, PARTITIONS, path).where("NOT deleted")


def load_partition_changes(
    spark: SparkSession, path: str, *, first_version: int | None = None, last_version: int | None = None
) -> DataFrame:
    """Every value that rows took in these versions of the table, with _commit_version and _commit_timestamp (M3).
    first_version: None for the first that the table still keeps.

    "Who led orders-3 at version N" is the last of its changes up to N.
    """
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    if first_version is None:
        reader = reader.option("startingTimestamp", BEFORE_ANY_TABLE)
    else:
        reader = reader.option("startingVersion", first_version)
    if last_version is not None:
        reader = reader.option("endingVersion", last_version)
    # A tombstone that is removed appears as a deletion, which is no value of its row.
    return reader.load(PARTITIONS.path(path)).where("_change_type IN ('insert', 'update_postimage')")
