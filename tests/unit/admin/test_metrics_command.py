"""`spark-replication metrics`: whom it asks, and what for."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_replication.client.asking import group_metrics
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.groups import GroupDescription, GroupPartitionDescription
from spark_replication.client.producing.producer import Producer
from spark_replication.errors import NotController
from tests.scrapes import Scrape
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeCluster
from tests.unit.client.told_groups import group, position


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "broker 1, per partition: False\n"),  # who is the controller
        (["--controller", "--per-partition"], "broker 1, per partition: True\n"),
        (["--broker", "2"], "broker 2, per partition: False\n"),
    ],
)
def test_the_text_is_printed_as_it_came(run: Run, cluster: FakeCluster, options: list[str], told: str) -> None:
    assert run("metrics", "-b", cluster.bootstrap, *options) == (0, told, "")


@pytest.mark.parametrize(
    "options", [["--controller", "--broker", 1], ["--groups", "--broker", 1], ["--groups", "--controller"]]
)
def test_one_of_them_is_asked(run: Run, cluster: FakeCluster, options: list[object]) -> None:
    found = run("metrics", "-b", cluster.bootstrap, *options)
    assert (found.exit, "Either --broker, --controller or --groups" in found.err) == (2, True)


def test_how_far_groups_are_behind_is_told_by_topics(run: Run, cluster: FakeCluster) -> None:
    cluster.log().now_ms = 1_000
    cluster.create("quiet")
    with Producer(cluster.bootstrap) as producer:
        batch = pa.record_batch([pa.array(range(4), pa.int64())], schema=SCHEMA)
        producer.send("orders", batch, partition=0).result()
    cluster.groups.add(group("etl", positions=[position(0, 1), position(1, 0), position(0, 0, topic="quiet")]))
    cluster.groups.add(group("audit", positions=[position(0, 4)]))

    def scraped() -> Scrape:
        found = run("metrics", "-b", cluster.bootstrap, "--groups")
        assert (found.exit, found.err) == (0, "")
        return Scrape.of({"groups": found.out})

    told = scraped()
    of = [("etl", "orders"), ("etl", "quiet"), ("audit", "orders")]
    lags = [told.value("group_lag_records", group=group, topic=topic) for group, topic in of]
    assert lags == [3, 0, 0]
    seconds = [told.value("group_lag_seconds", group=group, topic=topic) for group, topic in of]
    assert (seconds[0] > 1e9, seconds[1:]) == (True, [0, 0]), "since 1970"
    cluster.lead(None, partition=2)
    assert {dict(each.labels)["topic"] for each in scraped().named("spark_replication_group_lag_records")} == {"quiet"}


def test_the_groups_that_are_most_behind_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "SERIES_MAX", 2)
    told = Scrape.of({"": group_metrics.group_exposition([behind("a", 1), behind("b", 5), behind("c", 3)])})
    assert [(dict(each.labels)["group"], each.value) for each in told.named("spark_replication_group_lag_records")] == [
        *(("b", 5), ("c", 3))
    ]


def behind(name: str, records: int) -> GroupDescription:
    partition = GroupPartitionDescription(
        topic="orders", partition=0, offset=0, committed_ms=0, log_start=0, end=records, lag_ms=0, member=None
    )
    return GroupDescription(group=name, state="empty", members=(), partitions=(partition,))


def test_a_broker_that_is_not_there_is_not_waited_for(run: Run, cluster: FakeCluster) -> None:
    found = run("metrics", "-b", cluster.bootstrap, "--broker", "9")
    assert (found.exit, found.out) == (1, "")
    assert "broker 9 is not registered, [1, 2] are" in found.err


def test_a_controller_is_waited_for(cluster: FakeCluster) -> None:
    cluster.controller = None
    with Admin(cluster.bootstrap, deadline_ms=PASSES_MS) as admin:
        with pytest.raises(NotController):
            admin.metrics()
        assert admin.metrics(2) == "broker 2, per partition: False\n"
