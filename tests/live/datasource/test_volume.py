"""Many rows, read while leaders are killed, partitions move to other brokers, and a task's process dies."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.testing import assertDataFrameEqual

import spark_replication as sr
from spark_replication.errors import ReplicationError
from spark_replication.spark.registering import register_format
from tests.live.cluster.faults import kill
from tests.live.datasource.processes import descendants, kill_if_there
from tests.live.datasource.stories import SCHEMA, Topic, ended

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(1_800)]

# ROWS=10000000 is what a person runs.
ROWS = int(os.environ.get("ROWS", "600000"))
PARTITIONS = 12
BETWEEN_FAULTS_S = 1.0
WORKERS_MAX = 3  # Spark gives up a task that has failed four times


@pytest.fixture
def four(spark: SparkSession) -> Iterator[sr.LocalCluster]:
    """Brokers: one more than replicas, so that partitions can move."""
    with sr.LocalCluster.start(brokers=4) as cluster:
        register_format(spark, {"bootstrap": cluster.zookeeper})
        yield cluster


def made(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 4).selectExpr("id", "id / 4D AS amount", "concat('order ', id % 1000) AS text")


def assert_equal(found: DataFrame, expected: DataFrame) -> None:
    def sums(rows: DataFrame) -> DataFrame:
        return rows.agg(
            sql.count("*").alias("rows"),
            sql.countDistinct("id").alias("ids"),
            sql.sum("id").alias("sum"),
            sql.sum("amount").alias("amount"),
            sql.countDistinct("text").alias("texts"),
        )

    assertDataFrameEqual(sums(found), sums(expected), rtol=1e-9)
    assert found.join(expected, ["id", "amount", "text"], "left_anti").count() == 0


@contextmanager
def faults(topic: Topic) -> Iterator[dict[str, int]]:
    """As long as the block lasts, one after the other. Given: how many of each there were."""
    stopping, counts = threading.Event(), {"leaders killed": 0, "moves": 0, "workers killed": 0}
    chance = random.Random()
    cluster = topic.cluster

    def kill_leader() -> None:
        (found,) = cluster.admin.describe_topics([topic.name])
        leader = chance.choice([each.leader for each in found.partitions if each.leader is not None])
        kill(cluster.brokers[leader].pid)
        counts["leaders killed"] += 1
        cluster.wait_healthy()

    def move() -> None:
        partition = chance.randrange(PARTITIONS)
        replicas = chance.sample(sorted(cluster.brokers), 3)
        cluster.admin.apply(cluster.admin.plan_reassignment({f"{topic.name}-{partition}": replicas}))
        counts["moves"] += 1

    def kill_worker() -> None:
        workers = [
            pid for pid, command in descendants(os.getpid()).items() if "pyspark.daemon pyspark.worker" in command
        ]
        if workers and counts["workers killed"] < WORKERS_MAX:
            kill_if_there(chance.choice(workers))
            counts["workers killed"] += 1

    def run() -> None:
        while not stopping.wait(BETWEEN_FAULTS_S):
            try:
                chance.choice([kill_leader, move, kill_worker])()
            except (ReplicationError, AssertionError):
                continue  # what was to be done is not possible at this moment

    running = threading.Thread(target=run)
    running.start()
    try:
        yield counts
    finally:
        stopping.set()
        running.join()


def test_all_rows_are_read_once_whatever_dies_or_moves_meanwhile(
    four: sr.LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    name = "many"
    four.admin.create_topic(name, SCHEMA, partitions=PARTITIONS)
    topic = Topic(four, spark, name)
    with faults(topic) as counts:
        topic.write(made(spark), partitionBy="id")
        assert_equal(topic.rows(minPartitions=48), made(spark))
        table, told = str(tmp_path / "table"), {"checkpointLocation": str(tmp_path / "checkpoint")}
        rows = topic.stream(maxRecordsPerTrigger=max(1, ROWS // 5))
        ended(rows.writeStream.format("delta").options(**told).trigger(availableNow=True).start(table), 600)
    assert_equal(spark.read.format("delta").load(table), made(spark))
    assert counts["leaders killed"], counts
