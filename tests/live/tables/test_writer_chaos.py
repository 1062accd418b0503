"""Guarded writers of a topic's table under chaos: they, brokers and the controller are killed, stopped and woken, and
each row that was acknowledged is in the table once. CHAOS_S says for how long (60 s)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

import spark_replication as sr
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.test_command_line import Shell
from tests.live.tables.guarded_writers import rows_in, rows_told, wait_for_writers, writer_pids
from tests.live.tables.written import faults
from tests.waiting import eventually

CHAOS_S = float(os.environ.get("CHAOS_S", "60"))
BROKERS, PARTITIONS = 3, 3
FLUSH_MS = 500
STOPPED_S = (0.5, 9.0)
BETWEEN_S = (0.2, 3.0)
CATCH_UP_S = 60.0
TAKEN_OVER_S = 12.0
KILLS = 3
CONFIG = {
    "page.enabled": False,
    "table": True,
    "table.flush.ms": FLUSH_MS,
    "replica.lag.time.ms": 5_000,
    "zookeeper.session.ms": 6_000,
}

pytestmark = [pytest.mark.live, pytest.mark.trust, pytest.mark.timeout(CHAOS_S + 300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path, config=CONFIG) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=PARTITIONS, replication_factor=BROKERS)
        cluster.wait_healthy()
        yield cluster


@contextmanager
def written_by_hand(cluster: sr.LocalCluster, log: Path) -> Iterator[None]:
    """All the time, from here on."""
    writer = Shell(cluster.zookeeper).starts("table", "write", "orders")
    try:
        yield
        assert writer.poll() is None, "it goes on, whatever happens"
    finally:
        writer.send_signal(signal.SIGTERM)
        log.write_text("".join(writer.communicate(timeout=60)))
        assert writer.returncode == 0


class Chaos:
    def __init__(self, cluster: sr.LocalCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)
        self.done: Counter[str] = Counter()

    def go_on(self, until_s: float) -> None:
        kinds = {
            "kill_writer": self._kill_writer,
            "stop_writer": self._stop_writer,
            "kill_broker": self._kill_broker,
            "stop_broker": self._stop_broker,
            "kill_controller": self._kill_controller,
        }
        while time.monotonic() < until_s:
            kind = self._rng.choices([*kinds], [4, 4, 1, 1, 1])[0]
            kinds[kind]()
            self.done[kind] += 1
            time.sleep(self._rng.uniform(*BETWEEN_S))

    def _writer(self) -> int | None:
        return self._rng.choice([None, *sorted(writer_pids(self._cluster).values())])

    def _kill_writer(self) -> None:
        pid = self._writer()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def _stop_writer(self) -> None:
        pid = self._writer()
        if pid is not None:
            self._stopped(pid)

    def _kill_broker(self) -> None:
        self._cluster.wait_healthy()
        os.kill(self._broker(), signal.SIGKILL)

    def _stop_broker(self) -> None:
        self._cluster.wait_healthy()
        self._stopped(self._broker())

    def _broker(self) -> int:
        return self._rng.choice([broker.pid for broker in self._cluster.brokers.values()])

    def _kill_controller(self) -> None:
        self._cluster.wait_healthy()
        kill(self._cluster.controller_pid)

    def _stopped(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._rng.uniform(*STOPPED_S))
        os.kill(pid, signal.SIGCONT)


def test_each_acknowledged_row_is_in_the_table_once(cluster: sr.LocalCluster, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, for {CHAOS_S} s")  # noqa: T201 (told with -s)
    chaos = Chaos(cluster, seed)
    with written_by_hand(cluster, tmp_path / "by-hand.log"):
        with Load(cluster.zookeeper, "orders", PARTITIONS) as load:
            wait_for_writers(cluster)
            load.wait_for_more(20)
            chaos.go_on(time.monotonic() + CHAOS_S)
            cluster.wait_healthy()
            load.wait_for_more(20)
        told = rows_told(load)
        eventually(lambda: len(rows_in(cluster, "orders")) >= len(told), "the table catches up", CATCH_UP_S)
        assert rows_in(cluster, "orders") == told
        assert faults(cluster) == []
    version = DeltaTable(str(tmp_path / "tables" / "orders")).version()
    print(f"{len(told)} rows in {version} versions; {dict(chaos.done)}")  # noqa: T201 (told with -s)


def test_what_a_killed_writer_was_to_write_is_written_by_somebody(cluster: sr.LocalCluster) -> None:
    took_s = []
    for number in range(KILLS):
        pids = wait_for_writers(cluster)
        (topic,) = cluster.admin.describe_topics(["orders"])
        partition = topic.partitions[number % PARTITIONS]
        assert partition.leader is not None
        kill(pids[partition.leader])
        began_s = time.monotonic()
        with sr.Producer(cluster.bootstrap) as producer:
            told = producer.send("orders", {"number": [number]}, partition=partition.partition).result(60)
        wait_for_row(cluster, (partition.partition, told.base_offset, number))
        took_s.append(time.monotonic() - began_s)
    print(f"after a kill -9 in the table by {[round(each, 1) for each in took_s]} s")  # noqa: T201 (told with -s)


def wait_for_row(cluster: sr.LocalCluster, row: tuple[int, int, int]) -> None:
    eventually(lambda: row in rows_in(cluster, "orders"), "it is in the table", TAKEN_OVER_S)
