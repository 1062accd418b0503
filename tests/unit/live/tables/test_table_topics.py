"""Which topics are tables, and by what settings: told by two answers, however many topics there are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from spark_replication.client.finding.routes import Routes
from spark_replication.config import settings_from
from spark_replication.core.settings_in_force import in_force
from spark_replication.core.tables.retaining import TableRetention
from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.live.tables.table_topics import table_topics
from spark_replication.messages.observing import DescribeSettings, ToldSettings
from spark_replication.model import Scalar
from spark_replication.tables.upkeep import UpkeepRules
from tests.unit.client.fake_cluster import FakeCluster


class Told:
    """What a cluster has in force, and how often it was asked."""

    def __init__(self, **of_cluster: Scalar) -> None:
        self.of_cluster = {name.replace("_", "."): value for name, value in of_cluster.items()}
        self.asked: list[DescribeSettings] = []

    def __call__(self, _broker: int, asked: DescribeSettings) -> ToldSettings:
        self.asked.append(asked)
        return ToldSettings(
            settings=in_force(settings_from(self.of_cluster), {}), of_cluster={}, directory="", boot_id=""
        )


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with contextlib.closing(FakeCluster()) as started:
        yield started


def make(cluster: FakeCluster, topic: str, **own: Scalar) -> None:
    cluster.create(topic)
    settings = {name.replace("_", "."): value for name, value in own.items()}
    cluster.topics[topic] = replace(cluster.topics[topic], settings=settings)


def looked(cluster: FakeCluster, *names: str) -> dict[str, tuple[int, int, str]]:
    routes = Routes(cluster.bootstrap)
    with contextlib.closing(routes):
        return {
            each.name: (each.rules.flush_ms, each.rules.file_bytes, each.settings.table_path)
            for each in table_topics(routes, names)
        }


def test_a_topic_has_its_own_settings_over_those_of_the_cluster(cluster: FakeCluster) -> None:
    cluster.settings = told = Told(table_path="/tables", table_flush_ms=7_000)
    make(cluster, "one", table=True)
    make(cluster, "two", table=True, table_flush_ms=900, table_file_bytes=2 << 20)
    make(cluster, "none", table=False)
    of_a_file = settings_from({}).table_file_bytes
    assert looked(cluster) == {"one": (7_000, of_a_file, "/tables"), "two": (900, 2 << 20, "/tables")}
    assert [each.topic for each in told.asked] == [None], "no topic is asked for by itself"


def test_how_a_table_is_tidied_is_the_topics_to_say(cluster: FakeCluster) -> None:
    cluster.settings = Told(table=True, table_path="/tables", table_retention_ms=5_000)
    make(cluster, "one", table_retention_bytes=70, table_file_bytes=2 << 20)
    make(cluster, "two", table_retention_ms=-1)
    with contextlib.closing(Routes(cluster.bootstrap)) as routes:
        rules = {each.name: each.upkeep_rules for each in table_topics(routes, ("one", "two"))}
        task = next(table_topics(routes, ["one"])).upkeep_task({})
    assert rules["one"] == UpkeepRules(file_bytes=2 << 20, retention=TableRetention(ms=5_000, bytes=70))
    assert not rules["two"].retention.is_on
    assert task.rules == rules["one"]


def test_a_cluster_whose_topics_are_tables_has_those_that_do_not_say_otherwise(cluster: FakeCluster) -> None:
    cluster.settings = Told(table=True, table_path="/tables")
    make(cluster, "not", table=False)
    assert looked(cluster).keys() == cluster.topics.keys() - {"not"}


def test_settings_that_only_a_newer_release_knows_do_not_matter(cluster: FakeCluster) -> None:
    cluster.settings = Told(table_path="/tables")
    make(cluster, "one", table=True, table_colour="red", retention_ms=5)
    assert looked(cluster).keys() == {"one"}


def test_named_topics_have_to_be_tables(cluster: FakeCluster) -> None:
    cluster.settings = Told(table_path="/tables")
    make(cluster, "one", table=True)
    assert looked(cluster, "one").keys() == {"one"}
    with pytest.raises(InvalidRequest, match="topic orders is no table: spark-replication topics configure orders"):
        looked(cluster, "orders")
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic none"):
        looked(cluster, "none")


def test_a_topic_without_a_schema_has_no_columns_for_a_table(cluster: FakeCluster) -> None:
    cluster.settings = Told(table=True, table_path="/tables")
    make(cluster, "bare")
    cluster.topics["bare"] = msgspec.structs.replace(cluster.topics["bare"], schema="")
    assert "bare" not in looked(cluster)
