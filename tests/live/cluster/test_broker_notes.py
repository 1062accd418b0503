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


def put_aside(cluster: sr.LocalCluster) -> list[str]:
    return [str(each) for each in cluster.admin.health().reasons if "put aside" in str(each)]


def test_a_log_that_was_put_aside_unasked_is_a_problem_until_it_has_gone(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=2, directory=tmp_path, config={"page.enabled": False}) as cluster:
        for name in ("orders", "clicks"):
            cluster.admin.create_topic(name, SCHEMA, replication_factor=2)
        cluster.wait_healthy()
        cluster.kill_broker(2)
        cluster.admin.delete_topic("orders")
        cluster.restart_broker(2)
        eventually(lambda: put_aside(cluster), "the broker tells what it has put aside", DEADLINE_S)
        (told,) = put_aside(cluster)
        assert "broker 2 has put aside logs that no topic has, and that nobody asked it to delete: orders-0" in told
        cluster.wait_healthy()
        (folder,) = tmp_path.glob("**/quarantine/orders-0.*.unassigned-*")
        folder.rename(tmp_path / "rescued")
        cluster.kill_broker(2)
        cluster.restart_broker(2)
        eventually(lambda: put_aside(cluster) == [], "there is nothing left to rescue", DEADLINE_S)
