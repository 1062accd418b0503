"""Reading the mirror, with a Spark session that has Delta. `.toArrow()` turns an answer into a pyarrow Table."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from spark_replication.mirror.delta_tables import partitions_path


def load_partitions(spark: SparkSession, path: str) -> DataFrame:
    """The partitions that exist, one row each; the columns' comments say what they mean."""
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
