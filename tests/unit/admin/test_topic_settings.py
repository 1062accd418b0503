"""`spark-replication topics describe`: which settings hold for a topic, and where they come from."""

from __future__ import annotations

import json

from msgspec.structs import replace

from spark_replication.messages.descriptions import ReplicaSize, ReplicaSizes, TableLag
from spark_replication.messages.observing import DescribeSettings, SettingInForce, ToldSettings
from spark_replication.view.table_lags import WORDS
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster


def told(broker: int, asked: DescribeSettings) -> ToldSettings:
    assert (broker, asked.topic) == (1, "orders")
    settings = (
        SettingInForce(name="retention.ms", value=1, origin="topic"),
        SettingInForce(name="segment.ms", value=9, origin="default"),
        SettingInForce(name="page.port", value=0, origin="default"),  # which no topic can have
    )
    return ToldSettings(settings=settings, of_cluster={}, directory="/data", boot_id="one")


def test_a_topics_settings_in_force_are_described_with_it(run: Run, cluster: FakeCluster) -> None:
    cluster.settings = told
    described = run("topics", "describe", "-b", cluster.bootstrap, "orders", "--format=json")
    (orders,) = json.loads(described.out)
    assert orders["settings_in_force"] == [
        {"setting": "retention.ms", "value": 1, "from": "topic"},
        {"setting": "segment.ms", "value": 9, "from": "default"},
    ]
    assert orders["settings_unknown"] == ""
    assert "retention.ms=1  (topic)" in run("topics", "describe", "-b", cluster.bootstrap, "orders").out


def test_a_partition_is_described_with_the_offset_at_which_its_log_may_begin(run: Run, cluster: FakeCluster) -> None:
    cluster.log("orders", 0).start_at = 41
    (orders,) = json.loads(run("topics", "describe", "-b", cluster.bootstrap, "orders", "--format=json").out)
    assert [each["start_at"] for each in orders["partitions"]][:2] == [41, None]
    assert " 41 " in run("topics", "describe", "-b", cluster.bootstrap, "orders").out


LAG = TableLag(end=12, rows=7, ms=4_500, held_back_bytes=30)
NOT_KNOWN = TableLag(end=None, rows=None, ms=None, held_back_bytes=9)


def told_as_table(_broker: int, _asked: DescribeSettings) -> ToldSettings:
    settings = (
        SettingInForce(name="table", value=True, origin="topic"),
        SettingInForce(name="table.path", value="/lake/tables", origin="default"),
    )
    return ToldSettings(settings=settings, of_cluster={}, directory="/data", boot_id="one")


def led(cluster: FakeCluster, *lags: TableLag | None) -> None:
    """What the leaders of the first partitions of orders say of its table."""
    brokers: dict[int, list[ReplicaSize]] = {}
    for number, lag in enumerate(lags):
        leader = cluster.log("orders", number).leader
        assert leader is not None
        size = ReplicaSize(
            topic="orders", partition=number, topic_id="id-orders", leads=True, bytes=9, high_watermark=20, table=lag
        )
        brokers.setdefault(leader, []).append(size)
    cluster.sizes = {broker: ReplicaSizes(replicas=tuple(found)) for broker, found in brokers.items()}


def test_a_topic_that_is_a_table_is_described_with_how_far_that_is_behind(run: Run, cluster: FakeCluster) -> None:
    cluster.settings = told_as_table
    count = sum(name.topic == "orders" for name in cluster.logs)
    led(cluster, LAG, *[replace(LAG, ms=1_000)] * (count - 1))
    (orders,) = json.loads(run("topics", "describe", "-b", cluster.bootstrap, "orders", "--format=json").out)
    assert orders["table"] == {
        "where": "/lake/tables/orders",
        "rows_behind": 7 * count,
        "seconds_behind": 4.5,
        "held_back_bytes": 30 * count,
        "partitions_not_known": 0,
    }
    first = {name: orders["partitions"][0][name] for name in WORDS}
    assert first == {"table_end": 12, "rows_behind": 7, "seconds_behind": 4.5, "held_back_bytes": 30}
    out = run("topics", "describe", "-b", cluster.bootstrap, "orders").out
    assert f"/lake/tables/orders, rows behind {7 * count}, seconds behind 4.5, held back {30 * count} bytes" in out
    assert "table end" in out


def test_where_a_table_ends_is_not_known_of_a_leader_that_nobody_has_told(run: Run, cluster: FakeCluster) -> None:
    led(cluster, NOT_KNOWN)
    (orders,) = json.loads(run("topics", "describe", "-b", cluster.bootstrap, "orders", "--format=json").out)
    count = len(orders["partitions"])
    assert orders["table"] == {
        "where": None,
        "rows_behind": None,
        "seconds_behind": None,
        "held_back_bytes": 9 if count == 1 else None,
        "partitions_not_known": count,
    }
    out = run("topics", "describe", "-b", cluster.bootstrap, "orders").out
    assert "where it lies is not known, rows behind not known, seconds behind not known" in out
    assert f"is not known of {count} of its partitions" in out


def test_a_topic_that_is_no_table_is_described_without_one(run: Run, cluster: FakeCluster) -> None:
    led(cluster, None)
    (orders,) = json.loads(run("topics", "describe", "-b", cluster.bootstrap, "orders", "--format=json").out)
    assert (orders["table"], WORDS.keys() & orders["partitions"][0].keys()) == (None, set())
    out = run("topics", "describe", "-b", cluster.bootstrap, "orders").out
    assert "table end" not in out
    assert "table     " not in out


def test_a_topic_is_described_though_nobody_tells_which_settings_hold(run: Run, cluster: FakeCluster) -> None:
    described = run("topics", "describe", "-b", cluster.bootstrap, "orders", "--format=json")
    (orders,) = json.loads(described.out)
    assert (described.exit, orders["settings_in_force"]) == (0, [])
    assert orders["settings_unknown"] == "INVALID_REQUEST: no action describe_settings"
    assert "is not known: INVALID_REQUEST" in run("topics", "describe", "-b", cluster.bootstrap, "orders").out
