"""When a guarded writer of tables ends, and who finds it while it lives."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

import spark_replication as sr
from spark_replication.live.tables.process import GONE_S
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA
from tests.live.cluster.test_local_cluster import processes_of
from tests.live.tables.guarded_writers import wait_for_writers, writer_of, writer_pids
from tests.waiting import eventually

BROKERS = 2
CONFIG = {"page.enabled": False, "table": True, "min.insync.replicas": 1}
LEASE_MS = 4_000
ENDS_S = 60.0

pytestmark = [pytest.mark.live, pytest.mark.trust, pytest.mark.timeout(240)]


def make_topic(cluster: sr.LocalCluster) -> dict[int, int]:
    """Returns the writers' pids."""
    cluster.admin.create_topic("orders", SCHEMA, partitions=BROKERS, replication_factor=BROKERS)
    return wait_for_writers(cluster)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_writers_outlive_no_cluster_that_is_stopped_and_the_next_one_finds_those_that_live(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path, config=CONFIG) as first:
        pids = make_topic(first)
        second = sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path, config=CONFIG)
        assert wait_for_writers(second) == pids
        kill(pids[1])
        eventually(lambda: writer_pids(second).get(1, pids[1]) != pids[1], "it is started again, once", ENDS_S)
        found = writer_pids(second)
        assert found[2] == pids[2]
        second.stop()
        assert [pid for pid in found.values() if lives(pid)] == []
    assert processes_of(tmp_path) == []


def test_a_writer_whose_broker_is_gone_ends(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path, config=CONFIG) as cluster:
        pids = make_topic(cluster)
        cluster.kill_broker(1)
        began_s = time.monotonic()
        eventually(lambda: not lives(pids[1]), "it ends by itself", GONE_S + ENDS_S)
        assert time.monotonic() - began_s > GONE_S - 1, "a broker that comes back at once finds it"
        assert "its writer ends" in writer_of(tmp_path, 1).log_path.read_text()
        assert lives(pids[2])
        cluster.restart_broker(1)
        assert wait_for_writers(cluster)[2] == pids[2]


def test_writers_of_a_cluster_whose_process_was_killed_end_after_its_brokers(tmp_path: Path) -> None:
    starter = multiprocessing.get_context("spawn").Process(target=started_and_killed, args=(tmp_path,))
    starter.start()
    starter.join()
    assert starter.exitcode == -signal.SIGKILL
    eventually(lambda: not processes_of(tmp_path), "all have ended", LEASE_MS / 1_000 + GONE_S + ENDS_S)


def started_and_killed(directory: Path) -> None:
    cluster = sr.LocalCluster.start(
        brokers=BROKERS, directory=directory, config={**CONFIG, "broker.lease.ms": LEASE_MS}
    )
    make_topic(cluster)
    os.kill(os.getpid(), signal.SIGKILL)
