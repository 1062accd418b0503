"""What a broker of a running cluster tells of tables: what they lack, and what the writer beside it does."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_replication as sr
from spark_replication.live.exposition import PREFIX
from tests.live.tables.guarded_writers import wait_for_writers
from tests.live.tables.written import SCHEMA, produce, write
from tests.scrapes import Scrape
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ONE = {"page.enabled": False, "min.insync.replicas": 1, "table.flush.ms": 1_000}
LOOKS_S = 40.0  # a broker looks every 10 s


def scraped(cluster: sr.LocalCluster) -> Scrape:
    return Scrape.of({"broker 1": cluster.admin.metrics(1)})


def of_table(cluster: sr.LocalCluster, topic: str) -> dict[str, float]:
    names = ("rows_behind", "seconds_behind", "partitions_not_known", "held_back_bytes")
    told = {name: scraped(cluster).named(f"{PREFIX}table_{name}") for name in names}
    return {name: each.value for name, found in told.items() for each in found if ("topic", topic) in each.labels}


def test_what_a_table_lacks_is_told_until_somebody_writes_it_and_again_after_an_election(tmp_path: Path) -> None:
    settings = {**ONE, "table.writer.enabled": False, "retention.bytes": 0, "segment.bytes": 1_024}
    with sr.LocalCluster.start(brokers=1, directory=tmp_path, config=settings) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1, config={"table": True})
        cluster.admin.create_topic("plain", SCHEMA, partitions=1, replication_factor=1)
        cluster.wait_healthy()
        for first in range(0, 500, 100):
            produce(cluster, first, 100)  # a segment
        produce(cluster, 0, 10, topic="plain")
        eventually(lambda: of_table(cluster, "orders"), "the broker has looked", LOOKS_S)
        eventually(lambda: of_table(cluster, "orders")["held_back_bytes"] > 0, "its log is kept for the table", LOOKS_S)
        told = of_table(cluster, "orders")
        assert told.keys() == {"partitions_not_known", "held_back_bytes"}, "nobody has said where the table ends"
        assert told["partitions_not_known"] == 1
        write(cluster)
        whole = {"rows_behind": 0, "seconds_behind": 0, "partitions_not_known": 0, "held_back_bytes": 0}
        eventually(lambda: of_table(cluster, "orders") == whole, "its table has everything", LOOKS_S)
        produce(cluster, 500, 70)
        eventually(lambda: of_table(cluster, "orders")["rows_behind"] == 70, "its table lacks what came since", LOOKS_S)
        assert 0 <= of_table(cluster, "orders")["seconds_behind"] < LOOKS_S
        assert of_table(cluster, "plain") == {}
        assert scraped(cluster).value("tables") == 1
        assert scraped(cluster).value("table_writer_alive") == 0
        cluster.kill_broker(1)
        cluster.restart_broker(1)
        cluster.wait_healthy()
        eventually(lambda: of_table(cluster, "orders"), "the broker has looked", LOOKS_S)
        assert of_table(cluster, "orders").keys() == {"partitions_not_known", "held_back_bytes"}


def test_what_the_writer_beside_a_broker_does_is_told_by_the_broker(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=1, directory=tmp_path, config=ONE) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1, config={"table": True})
        cluster.wait_healthy()
        produce(cluster, 0, 300)
        wait_for_writers(cluster)

        def rows() -> float:
            found = scraped(cluster)
            return found.value("table_writer_rows_total") if found.named(f"{PREFIX}table_writer_rows_total") else 0

        eventually(lambda: rows() == 300, "the broker tells of its writer's rows", 2 * LOOKS_S)
        found = scraped(cluster)
        assert found.value("table_writer_alive") == 1
        assert found.value("table_writer_commits_total") >= 1
        assert found.value("table_writer_tables") == 1
        assert found.value("table_writer_silent_seconds") < LOOKS_S
        assert found.value("table_writer_last_commit_seconds") < 2 * LOOKS_S
        assert found.value("table_writer_refused_commits_total") == 0
