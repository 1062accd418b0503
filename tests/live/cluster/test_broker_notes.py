"""What a broker tells people of itself, as `health` shows it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import spark_replication as sr
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SCHEMA = pa.schema([("number", pa.int64())])
DEADLINE_S = 30.0
ASIDE = "broker 2 has put aside logs that no topic has, and that nobody asked it to delete:"


def put_aside(cluster: sr.LocalCluster) -> list[str]:
    return [str(each) for each in cluster.admin.health().reasons if "put aside" in str(each)]


def test_a_log_that_was_put_aside_unasked_is_a_problem_until_it_has_gone(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=2, directory=tmp_path, config={"page.enabled": False}) as cluster:
        for name in ("orders", "clicks"):
            cluster.admin.create_topic(name, SCHEMA, partitions=2, replication_factor=2)
        cluster.wait_healthy()
        (topic,) = cluster.admin.describe_topics(["orders"])
        topic_id = topic.topic_id
        cluster.kill_broker(2)
        cluster.admin.delete_topic("orders")
        cluster.restart_broker(2)
        eventually(lambda: put_aside(cluster), "the broker tells what it has put aside", DEADLINE_S)
        (told,) = put_aside(cluster)
        assert f"{ASIDE} orders-0 (topic {topic_id}), orders-1 (topic {topic_id})." in told
        cluster.wait_healthy()
        (folder,) = tmp_path.glob("**/quarantine/orders-0.*.unassigned-*")
        folder.rename(tmp_path / "rescued")
        cluster.kill_broker(2)
        cluster.restart_broker(2)
        # Not that nothing is told: so it is before a broker that has come back tells anything.
        rest = f"{ASIDE} orders-1 (topic {topic_id})."
        eventually(lambda: any(rest in each for each in put_aside(cluster)), "the other is left to rescue", DEADLINE_S)
