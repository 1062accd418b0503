"""The tables of sr.connect in a Spark session: the same columns and rows as pandas', from the mirror or as told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_replication as sr
from spark_replication.admin.notebook import spark_frames
from spark_replication.admin.notebook.connected import ConnectedCluster
from spark_replication.errors import InvalidRequest
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

TABLES: dict[str, Callable[[ConnectedCluster], Any]] = {
    "partitions": lambda cluster: cluster.partitions(),
    "partitions of a topic": lambda cluster: cluster.partitions(["orders"]),
    "brokers": lambda cluster: cluster.brokers(),
    "topics": lambda cluster: cluster.topics(),
    "lag": lambda cluster: cluster.lag()[["topic", "partition", "follower", "leader", "in_sync"]],  # ms goes on
    "events": lambda cluster: cluster.events(),
    "events of a topic": lambda cluster: cluster.events(topics=["orders"]),
    "events of a partition or broker": lambda cluster: cluster.events(partitions=["orders-1"], brokers=[1]),
    "the last events": lambda cluster: cluster.events(last=2),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    """One of its partitions has no leader."""
    with sr.LocalCluster.start(brokers=2, config={"min.insync.replicas": 1}) as cluster:
        schema = pa.schema([("id", pa.int64())])
        cluster.admin.create_topic("orders", schema, partitions=3, replication_factor=1)
        cluster.admin.create_topic("returns", schema, partitions=1, replication_factor=2)
        (topic,) = cluster.admin.describe_topics(["orders"])
        (leader,) = topic.partitions[0].replicas
        cluster.kill_broker(leader)

        def is_leaderless() -> bool:
            return cluster.admin.describe_topics(["orders"])[0].partitions[0].leader is None

        eventually(is_leaderless, "the death to be known")
        yield cluster


def rows(table: Any) -> list[tuple[Any, ...]]:
    """In an order, whoever told them; times and lists alike."""
    if isinstance(table, DataFrame):
        found = [tuple(each.values()) for each in table.toArrow().to_pylist()]
    else:
        found = [*table.itertuples(index=False)]
    return sorted((tuple(map(plain, each)) for each in found), key=repr)


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if value is None or str(value) == "<NA>":
        return None
    return value.timestamp() if hasattr(value, "timestamp") else value


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("mirrored", [True, False])
def test_the_same_rows(cluster: sr.LocalCluster, spark: SparkSession, name: str, mirrored: bool) -> None:
    mirror = cluster.mirror_path if mirrored else None
    with sr.connect(cluster.zookeeper) as told, sr.connect(cluster.zookeeper, spark, mirror=mirror) as in_spark:

        def same() -> bool:
            here, there = TABLES[name](told), TABLES[name](in_spark)
            assert [*here.columns] == there.columns
            return rows(here) == rows(there)

        eventually(same, "the mirror to have caught up")
        if name == "partitions":
            assert [*told.partitions().condition].count("leaderless") >= 1


def test_what_the_mirror_tells_is_the_newest(cluster: sr.LocalCluster, spark: SparkSession) -> None:
    with sr.connect(f"delta:{cluster.mirror_path}", spark) as connected:
        partitions = connected.partitions()
        cluster.admin.create_topic("later", pa.schema([("id", pa.int64())]), partitions=1, replication_factor=1)
        eventually(lambda: partitions.where("topic = 'later'").count() == 1, "the mirror to have caught up")
        cause = connected.events(topics=["later"]).first().cause
        assert connected.events(cause=cause).where("topic <> 'later'").count() == 0
        assert connected.events(cause=cause).count() >= 1


def test_a_session_without_delta_has_what_was_told(
    cluster: sr.LocalCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_frames, "has_delta", lambda _spark: False)
    with sr.connect(cluster.zookeeper, spark, mirror="/nowhere") as connected:
        assert connected.brokers().count() == 1


def test_no_tables_are_an_error(cluster: sr.LocalCluster, spark: SparkSession) -> None:
    with (
        sr.connect(cluster.zookeeper, spark, mirror="/nowhere") as connected,
        pytest.raises(InvalidRequest, match="Spark cannot read the tables at /nowhere"),
    ):
        connected.partitions()
