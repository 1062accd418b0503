"""Reading the mirror: without Spark, or with a session that has Delta."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_replication.mirror.feed import partitions_path, status_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_partitions(path: str) -> pa.Table:
    """The partitions that exist, one row each; the columns' comments say what they mean."""
    return DeltaTable(partitions_path(path)).to_pyarrow_table(filters=~pc.field("deleted"))


def read_status(path: str) -> pa.Table:
    """One row, once a controller has written the tables: how far they are, and who writes them."""
    return DeltaTable(status_path(path)).to_pyarrow_table()


def load_partitions(spark: SparkSession, path: str) -> DataFrame:
    """Likewise, as a DataFrame."""
    return spark.read.format("delta").load(partitions_path(path)).where("NOT deleted")


def load_partition_changes(
    spark: SparkSession, path: str, *, first_version: int = 0, last_version: int | None = None
) -> DataFrame:
    """Every value that rows took in these versions of the table, with _commit_version and _commit_timestamp (M3).

    "Who led orders-3 at version N" is the last of its changes up to N.
    """
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first_version)
    if last_version is not None:
        reader = reader.option("endingVersion", last_version)
    return reader.load(partitions_path(path)).where("_change_type <> 'update_preimage'")
