"""Strangers who open connections and say nothing, until a broker has no descriptor left: it leads, stores and serves
on, and hangs up on them."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from tests.live.cluster.sides import MODES, sides

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
BEYOND = 120  # how many more descriptors each broker may have than it has
DEADLINE_S = 60.0


class Limited:
    def __init__(self, cluster: sr.LocalCluster, settings: dict[str, Any]) -> None:
        self.cluster = cluster
        self.settings = settings
        self.written = 0
        config = {"segment.bytes": 1 << 16}
        cluster.admin.create_topic("orders", SCHEMA, partitions=4, replication_factor=2, config=config)
        self.works()
        for broker in cluster.brokers.values():
            limit = len([*Path(f"/proc/{broker.pid}/fd").iterdir()]) + BEYOND
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, limit))

    def works(self) -> None:
        """For a client that connects anew, with batches that need new segments."""
        batch = pa.record_batch([pa.array(range(self.written, self.written + 4_000))], schema=SCHEMA)
        with sr.Producer(self.cluster.bootstrap, security=self.settings) as producer:
            sent = [producer.send("orders", batch, partition=partition) for _ in range(6) for partition in range(4)]
            for each in sent:
                each.result(DEADLINE_S)
        self.written += 4_000
        with sr.Reader(self.cluster.bootstrap, security=self.settings) as reader:
            assert next(iter(reader.read("orders", partition=0))).batch.num_rows > 0

    def leaders(self) -> dict[str, tuple[int | None, int]]:
        (topic,) = self.cluster.admin.describe_topics(["orders"])
        return {str(each.partition): (each.leader, each.leader_epoch) for each in topic.partitions}


@pytest.fixture(params=MODES)
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Limited]:
    serving, client = sides(request.param, tmp_path)
    config = {**serving, "page.enabled": False}
    with sr.LocalCluster.start(brokers=2, directory=tmp_path / "cluster", config=config) as cluster:
        yield Limited(cluster, client)


def test_idle_connections_of_strangers_take_no_leadership_and_keep_nobody_out(limited: Limited) -> None:
    before, pids = limited.leaders(), {id_: each.pid for id_, each in limited.cluster.brokers.items()}
    with ExitStack() as strangers:
        for broker in limited.cluster.brokers.values():
            for _ in range(3 * BEYOND):
                strangers.enter_context(socket.create_connection((broker.host, broker.port), timeout=DEADLINE_S))
        for _ in range(3):
            limited.works()
        assert limited.leaders() == before
        assert {id_: each.pid for id_, each in limited.cluster.brokers.items()} == pids
        for id_ in pids:
            log = limited.cluster.directory / f"logs/broker-{id_}/broker.log"
            assert "descriptors run out: hung up on" in log.read_text()
    limited.works()
