"""The mirror's tables as views of a Spark session. Each query of a view reads the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_replication.errors import InvalidRequest
from spark_replication.mirror.asking.load import load_partition_changes, load_partitions, load_table
from spark_replication.mirror.delta.paths import mirror_path
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.events import EVENTS
from spark_replication.mirror.tables.groups import GROUPS
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.status import STATUS
from spark_replication.mirror.tables.topics import TOPICS
from spark_replication.spark.session import DELTA_EXTENSION, java_reason
from spark_replication.view.conditions import IN_SQL

ROUTES = ("topic", "partition", "leader", "leader_epoch", "host", "port", "address", "topic_id")
# Expressions are in SQL: those of pyspark.sql.functions differ between this process's sessions and Spark Connect's.
_OF_PARTITION = "OVER (PARTITION BY topic, partition ORDER BY number)"
LEADERSHIPS = (
    *("topic", "partition", "leader", "leader_epoch", "at AS since", f"lead(at) {_OF_PARTITION} AS until"),
    *("kind", "why", "because", "cause"),
)
LED = (
    *("partitions.topic", "partitions.partition", "brokers.broker AS leader"),
    "CASE WHEN brokers.broker IS NOT NULL THEN partitions.leader_epoch END AS leader_epoch",
    *("brokers.host", "brokers.port", "concat(brokers.host, ':', CAST(brokers.port AS STRING)) AS address"),
    "partitions.topic_id",
)
LEADERLESS = ("topic", "partition", "waiting_for", "replicas", "elr", "last_known_leader", "changed_at")


def register_views(spark: SparkSession, path: str) -> None:
    """Make temporary views of the tables below this path, in place of earlier views of the same names:

    | view | its rows |
    | --- | --- |
    | partitions, topics | what exists |
    | brokers | those that are registered, and those that were: state 'gone' |
    | events | what happened, what set it off, and what became of it |
    | leaderships | who led each partition, since when, until when (null if still), how elected, and because of what |
    | groups | how far each consumer group is in each partition that it reads |
    | status | one row: up to where the tables are complete, and who writes them |
    | routes | partitions whose leader has confirmed that it leads, and where it is reached |
    | leaderless | partitions without a leader, and what each waits for |
    | under_min_isr | partitions that refuse acks=all writes |
    | under_replicated | partitions with replicas out of sync, other than those that a reassignment is adding |
    | moving | partitions to which a reassignment adds replicas, or from which it removes some |
    | not_preferred | partitions led by another replica than the first |

    Raises InvalidRequest if the session has no Delta, or if there are no tables."""
    with readable(spark, path):
        partitions = load_partitions(spark, path)
        views = {
            "partitions": partitions,
            # Readers see the tombstones of this table, too.
            "brokers": load_table(spark, BROKERS, path),
            "topics": load_table(spark, TOPICS, path).where("NOT deleted"),
            "events": load_table(spark, EVENTS, path),
            "leaderships": leaderships(spark, path),
            "groups": load_table(spark, GROUPS, path),
            "status": load_table(spark, STATUS, path),
            "routes": led_partitions(spark, path).where("leader IS NOT NULL").select(*ROUTES),
            "leaderless": partitions.where(IN_SQL["leaderless"]).select(*LEADERLESS),
            "under_min_isr": partitions.where(IN_SQL["under_min_isr"]),
            "under_replicated": partitions.where(IN_SQL["under_replicated"]),
            "moving": partitions.where(IN_SQL["moving"]),
            "not_preferred": partitions.where("leader <> replicas[0]"),
        }
        for name, view in views.items():
            view.createOrReplaceTempView(name)


def leaderships(spark: SparkSession, path: str) -> DataFrame:
    """Who led each partition, as far back as events are kept. A null leader means that nobody led from then on."""
    return (
        load_table(spark, EVENTS, path)
        .where("partition IS NOT NULL")
        .selectExpr("*", f"lag(struct(leader, leader_epoch)) {_OF_PARTITION} AS before")
        .where("before IS NULL OR NOT struct(leader, leader_epoch) <=> before")
        .selectExpr(*LEADERSHIPS)
    )


def led_partitions(spark: SparkSession, path: str) -> DataFrame:
    """All partitions. The columns of a leader are null if it has not confirmed that it leads, or is not registered."""
    brokers = load_table(spark, BROKERS, path).where("NOT deleted").alias("brokers")
    partitions = load_partitions(spark, path).alias("partitions")
    leads = (partitions["leader"] == brokers["broker"]) & (partitions["active_epoch"] == partitions["leader_epoch"])
    return partitions.join(brokers, leads, "left").selectExpr(*LED)


def history(spark: SparkSession, topic: str, partition: int, *, mirror: str | None = None) -> DataFrame:
    """Each value that the row of this partition took, the newest first, with _commit_version and _commit_timestamp, as
    far back as the table keeps its history."""
    path = mirror_path(mirror)
    with readable(spark, path):
        changes = load_partition_changes(spark, path)
        of_partition = changes.where((sql.col("topic") == topic) & (sql.col("partition") == partition))
        return of_partition.orderBy(sql.col("_commit_version").desc())


def changes_since(spark: SparkSession, version: int, *, mirror: str | None = None) -> DataFrame:
    """Each value that rows of `partitions` took after this version of the table, with _commit_version and
    _commit_timestamp. Ask the next time with the greatest _commit_version of the answer.

    Raises InvalidRequest if the table no longer keeps the changes after that version."""
    path = mirror_path(mirror)
    with readable(spark, path):
        (last,) = DeltaTable.forPath(spark, PARTITIONS.path(path)).history(1).collect()
    # Delta refuses to begin after the last version, but it is no error if nothing is new.
    first = max(0, min(version + 1, last["version"]))
    with readable(
        spark, path, f"Its changes since version {version} are no longer kept: read it whole, and go on there"
    ):
        changes = load_partition_changes(spark, path, first_version=first)
    return changes.where(sql.col("_commit_version") > version)


@contextmanager
def readable(spark: SparkSession, path: str, advice: str = "Name the mirror.path of a cluster") -> Iterator[None]:
    """Raise InvalidRequest in place of Spark's errors about the tables below this path."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        reason = java_reason(error).rstrip(".")
        if DELTA_EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
            raise InvalidRequest(
                f"this Spark session has no Delta ({reason}): set spark.sql.extensions={DELTA_EXTENSION} with Delta's "
                "jars before it starts, or make it by sr.session()"
            ) from error
        raise InvalidRequest(f"Spark cannot read the tables at {path} ({reason}). {advice}") from error
