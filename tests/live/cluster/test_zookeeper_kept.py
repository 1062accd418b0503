"""A cluster's one ZooKeeper ends, and nobody but the cluster itself starts it again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import spark_replication as sr
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA, Load
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PARTITIONS = 2
SAID_S_MAX = 5.0
BACK_S_MAX = 15.0
CONFIG = {"zookeeper.session.ms": 30_000}


def test_a_killed_zookeeper_is_said_to_be_gone_and_is_back_while_sessions_and_production_go_on(
    cluster: sr.LocalCluster, topic: str
) -> None:
    assert cluster.problems() == ()
    with Load(cluster.zookeeper, topic, PARTITIONS) as load:
        load.wait_for_more(20)
        epochs = {broker: info.epoch for broker, info in cluster.brokers.items()}
        killed = cluster.zookeeper_pids
        kill(*killed)
        ended_s = time.monotonic()
        eventually(lambda: says_gone(cluster), "it is said", SAID_S_MAX)
        left_s = BACK_S_MAX - (time.monotonic() - ended_s)
        eventually(lambda: is_back(cluster, killed), "it is back, and nothing is wrong", left_s)
        cluster.admin.create_topic(f"{topic}.after", SCHEMA, partitions=PARTITIONS)
        load.wait_for_more(20)
    load.check_history()
    assert {broker: info.epoch for broker, info in cluster.brokers.items()} == epochs, "no session ended"


def says_gone(cluster: sr.LocalCluster) -> bool:
    return any("no connection to ZooKeeper" in found for found in cluster.problems())


def is_back(cluster: sr.LocalCluster, killed: list[int]) -> bool:
    return cluster.zookeeper_pids not in ([], killed) and not cluster.problems()


def test_what_a_person_keeps_down_stays_down_and_is_not_healthy(cluster: sr.LocalCluster) -> None:
    cluster.wait_healthy()
    cluster.kill_zookeeper()
    eventually(lambda: says_gone(cluster), "it is said")
    with pytest.raises(sr.errors.RequestTimedOut, match="no connection to ZooKeeper for"):
        cluster.wait_healthy(3)
    assert cluster.zookeeper_pids == []
    cluster.restart_zookeeper()
    cluster.wait_healthy()
    kill(*cluster.zookeeper_pids)
    eventually(lambda: bool(cluster.zookeeper_pids), "it is kept alive again")
    cluster.wait_healthy()


def test_the_first_of_two_that_stops_leaves_zookeeper_to_the_second(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster") as second:
        first = sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster")
        (pid,) = second.zookeeper_pids
        first.stop()
        assert second.zookeeper_pids == [pid]
    assert second.zookeeper_pids == []
