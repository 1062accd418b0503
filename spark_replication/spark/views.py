"""The mirror's tables as views of a Spark session: each query of one reads the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from spark_replication.errors import InvalidRequest
from spark_replication.mirror.brokers import BROKERS
from spark_replication.mirror.events import EVENTS
from spark_replication.mirror.load import load_partition_changes, load_partitions, load_table
from spark_replication.mirror.partitions import PARTITIONS
from spark_replication.mirror.paths import mirror_path
from spark_replication.mirror.status import STATUS
from spark_replication.mirror.topics import TOPICS
from spark_replication.spark.session import DELTA_EXTENSION, java_reason

ROUTES = ("topic", "partition", "leader", "leader_epoch", "host", "port", "address", "topic_id")
LEADERSHIPS = ("topic", "partition", "leader", "leader_epoch", "kind", "why", "because", "cause")
LEADERLESS = ("topic", "partition", "waiting_for", "replicas", "elr", "last_known_leader", "changed_at")


def register_views(spark: SparkSession, path: str) -> None:
    """Make temporary views of the tables below this path, in place of earlier views of the same names:

    | view | its rows |
    | --- | --- |
    | partitions, topics | what exists |
    | brokers | those that are registered, and those that were: state 'gone' |
    | events | what happened, what set it off, and what became of it |
    | leaderships | who led each partition from when until when (null: still), how elected, and because of what |
    | status | one: up to where the tables are complete, and who writes them |
    | routes | partitions whose leader has confirmed that it leads, and where it is reached |
    | leaderless | partitions without a leader, and what each waits for |
    | under_min_isr | acks=all writes are refused there |
    | under_replicated | some replicas are not in sync, which may be those that a reassignment is adding |
    | not_preferred | another leads than the first replica |

    InvalidRequest: the session has no Delta, or there are no tables."""
    with readable(spark, path):
        partitions = load_partitions(spark, path)
        views = {
            "partitions": partitions,
            # This table's tombstones are for readers, too.
            "brokers": load_table(spark, BROKERS, path),
            "topics": load_table(spark, TOPICS, path).where("NOT deleted"),
            "events": load_table(spark, EVENTS, path),
            "leaderships": leaderships(spark, path),
            "status": load_table(spark, STATUS, path),
            "routes": led_partitions(spark, path).where("leader IS NOT NULL").select(*ROUTES),
            "leaderless": partitions.where("leader IS NULL").select(*LEADERLESS),
            "under_min_isr": partitions.where("size(isr) < min_isr"),
            "under_replicated": partitions.where("size(isr) < size(replicas)"),
            "not_preferred": partitions.where("leader <> replicas[0]"),
        }
        for name, view in views.items():
            view.createOrReplaceTempView(name)


def leaderships(spark: SparkSession, path: str) -> DataFrame:
    """As far back as events are kept. leader null: from then on nobody led."""
    of_partition = Window.partitionBy("topic", "partition").orderBy("number")
    leads = sql.struct("leader", "leader_epoch")
    changes = (
        load_table(spark, EVENTS, path)
        .where("partition IS NOT NULL")
        .withColumn("before", sql.lag(leads).over(of_partition))
        .where(sql.col("before").isNull() | ~leads.eqNullSafe(sql.col("before")))
    )
    until = sql.lead("at").over(of_partition).alias("until")
    return changes.select(*LEADERSHIPS[:4], sql.col("at").alias("since"), until, *LEADERSHIPS[4:])


def led_partitions(spark: SparkSession, path: str) -> DataFrame:
    """All partitions, with nulls in place of a leader that has not confirmed that it leads, or is not registered."""
    brokers = load_table(spark, BROKERS, path).where("NOT deleted")
    partitions = load_partitions(spark, path)
    leads = (partitions["leader"] == brokers["broker"]) & (partitions["active_epoch"] == partitions["leader_epoch"])
    return partitions.join(brokers, leads, "left").select(
        partitions["topic"],
        partitions["partition"],
        brokers["broker"].alias("leader"),
        sql.when(brokers["broker"].isNotNull(), partitions["leader_epoch"]).alias("leader_epoch"),
        brokers["host"],
        brokers["port"],
        sql.concat(brokers["host"], sql.lit(":"), brokers["port"].cast("string")).alias("address"),
        partitions["topic_id"],
    )


def history(spark: SparkSession, topic: str, partition: int, *, mirror: str | None = None) -> DataFrame:
    """Each value that the row of this partition took, the newest first, with _commit_version and _commit_timestamp: as
    far back as the table keeps its history."""
    path = mirror_path(mirror)
    with readable(spark, path):
        changes = load_partition_changes(spark, path)
        of_partition = changes.where((sql.col("topic") == topic) & (sql.col("partition") == partition))
        return of_partition.orderBy(sql.col("_commit_version").desc())


def changes_since(spark: SparkSession, version: int, *, mirror: str | None = None) -> DataFrame:
    """Each value that rows of `partitions` took after this version of the table, with _commit_version and
    _commit_timestamp. The greatest _commit_version of the answer is what to ask with the next time.

    InvalidRequest: the table no longer keeps what followed that version."""
    path = mirror_path(mirror)
    with readable(spark, path):
        (last,) = DeltaTable.forPath(spark, PARTITIONS.path(path)).history(1).collect()
    # Delta refuses to begin after the last version. Nothing new is no error.
    first = max(0, min(version + 1, last["version"]))
    with readable(
        spark, path, f"Its changes since version {version} are no longer kept: read it whole, and go on there"
    ):
        changes = load_partition_changes(spark, path, first_version=first)
    return changes.where(sql.col("_commit_version") > version)


@contextmanager
def readable(spark: SparkSession, path: str, advice: str = "Name the mirror.path of a cluster") -> Iterator[None]:
    """InvalidRequest in place of what Spark raises when it looks at the tables below this path."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        reason = java_reason(error).rstrip(".")
        if DELTA_EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
            raise InvalidRequest(
                f"this Spark session has no Delta ({reason}): set spark.sql.extensions={DELTA_EXTENSION} with Delta's "
                "jars before it starts, or make it with spark_replication.spark.session.build_session"
            ) from error
        raise InvalidRequest(f"Spark cannot read the tables at {path} ({reason}). {advice}") from error
