"""Reading the mirror: without Spark, or with a session that has Delta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_replication.mirror.brokers import BROKERS
from spark_replication.mirror.columns import Table
from spark_replication.mirror.partitions import PARTITIONS
from spark_replication.mirror.status import STATUS
from spark_replication.mirror.topics import TOPICS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Those of which there may be tombstones.
TABLES: dict[str, Table[Any]] = {table.name: table for table in (PARTITIONS, BROKERS, TOPICS)}


def read_table(name: str, path: str) -> pa.Table:
    """One row each of what exists; the columns' comments say what they mean."""
    return DeltaTable(TABLES[name].path(path)).to_pyarrow_table(filters=~pc.field("deleted"))


def read_partitions(path: str) -> pa.Table:
    return read_table(PARTITIONS.name, path)


def read_status(path: str) -> pa.Table:
    """One row, once a controller has written the tables: how far they are, and who writes them."""
    return DeltaTable(STATUS.path(path)).to_pyarrow_table()


def load_partitions(spark: SparkSession, path: str) -> DataFrame:
    """Likewise, as a DataFrame."""
    return spark.read.format("delta").load(PARTITIONS.path(path)).where("NOT deleted")


def load_partition_changes(
    spark: SparkSession, path: str, *, first_version: int = 0, last_version: int | None = None
) -> DataFrame:
    """Every value that rows took in these versions of the table, with _commit_version and _commit_timestamp (M3).

    "Who led orders-3 at version N" is the last of its changes up to N.
    """
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first_version)
    if last_version is not None:
        reader = reader.option("endingVersion", last_version)
    return reader.load(PARTITIONS.path(path)).where("_change_type <> 'update_preimage'")
