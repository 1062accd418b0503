"""The table `<mirror.path>/partitions`, as one cluster writes it: created once, then one MERGE at a time.

Which row counts is decided by its zxid, inside the MERGE, so several writers may be at it: nothing older ever
overwrites newer (M2). A deleted partition stays as a row with `deleted`: without it a late writer would bring it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.pandas.types import from_arrow_type

from spark_replication.errors import StorageFailed
from spark_replication.mirror.rows import COLUMNS, MirrorRow, to_arrow

PARTITIONS = "partitions"

# M2. `<=>`: a row of an unknown cluster is another cluster's.
SAME_PARTITION = "stored.topic = told.topic AND stored.partition = told.partition"
SAME_CLUSTER = "stored.cluster_id <=> told.cluster_id"
COUNTS = (
    f"NOT ({SAME_CLUSTER}) OR told.zxid > stored.zxid"
    " OR (told.zxid = stored.zxid AND told.active_epoch > stored.active_epoch)"
)
# A new controller has not heard yet what leaders confirmed to its predecessor: an ISR change must not undo it.
ACTIVE_EPOCH = (
    f"CASE WHEN {SAME_CLUSTER} AND stored.topic_id = told.topic_id"
    " THEN greatest(told.active_epoch, stored.active_epoch) ELSE told.active_epoch END"
)

# For MERGEs of a few rows planning is most of the time. They hold in a session of the mirror's own, not in the user's.
SMALL_MERGES = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # The rows come from memory, and are the same whenever they are read.
    "spark.databricks.delta.merge.materializeSource": "none",
}


def partitions_path(path: str) -> str:
    return f"{path.rstrip('/')}/{PARTITIONS}"


class PartitionsTable:
    """Not thread-safe: one thread writes."""

    def __init__(self, spark: SparkSession, path: str, cluster_id: str) -> None:
        self._parent = spark
        self._spark: SparkSession | None = None
        self._cluster_id = cluster_id
        self.path = partitions_path(path)

    def open(self) -> None:
        """There, and without other clusters' rows. `merge` does it too; done before, the first MERGE is shorter."""
        with self._translated():
            self._opened()

    def merge(self, rows: Sequence[MirrorRow]) -> None:
        """At most one row a partition. StorageFailed: nothing was changed, or all of it was."""
        with self._translated():
            spark = self._opened()
            told = spark.createDataFrame(to_arrow(rows)).alias("told")
            every: dict[str, str | Column] = {column.name: f"told.{column.name}" for column in COLUMNS}
            (
                DeltaTable.forPath(spark, self.path)
                .alias("stored")
                .merge(told, SAME_PARTITION)
                .whenMatchedUpdate(COUNTS, {**every, "active_epoch": ACTIVE_EPOCH})
                .whenNotMatchedInsert(values=every)
                .execute()
            )

    def _opened(self) -> SparkSession:
        if self._spark is not None:
            return self._spark
        spark = self._parent.newSession()
        for name, value in SMALL_MERGES.items():
            spark.conf.set(name, value)
        found = DeltaTable.isDeltaTable(spark, self.path)
        definition = DeltaTable.createIfNotExists(spark).location(self.path)
        for column in COLUMNS:
            definition = definition.addColumn(column.name, from_arrow_type(column.type), comment=column.comment)
        table = definition.property("delta.enableChangeDataFeed", "true").execute()
        if found:
            # MERGE replaces another cluster's rows of the same partitions; this removes those of all others.
            table.delete(~col("cluster_id").eqNullSafe(lit(self._cluster_id)))
        self._spark = spark
        return spark

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        # OSError: the JVM is gone, or the path is not one that this host can write.
        except (PySparkException, Py4JError, OSError) as error:
            # py4j names its own call in the first line, and Java's exception in the second.
            reason = " ".join(str(error).splitlines()[:2]) or type(error).__name__
            raise StorageFailed(
                f"the mirror at {self.path} was not written: {reason}. Check that Spark can write there (mirror.path)"
            ) from error
