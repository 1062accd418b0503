"""`spark-replication topics describe`: which settings hold for a topic, and where they come from."""

from __future__ import annotations

import json

from spark_replication.messages.observing import DescribeSettings, SettingInForce, ToldSettings
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


def test_a_topic_is_described_though_nobody_tells_which_settings_hold(run: Run, cluster: FakeCluster) -> None:
    described = run("topics", "describe", "-b", cluster.bootstrap, "orders", "--format=json")
    (orders,) = json.loads(described.out)
    assert (described.exit, orders["settings_in_force"]) == (0, [])
    assert orders["settings_unknown"] == "INVALID_REQUEST: no action describe_settings"
    assert "is not known: INVALID_REQUEST" in run("topics", "describe", "-b", cluster.bootstrap, "orders").out
