"""The driver's own ZooKeeper: whoever needs it keeps it alive, and the last to go ends it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_replication as sr
from spark_replication.config import Settings, settings_from
from spark_replication.errors import RequestTimedOut
from spark_replication.live.controller.host import ControllerHost
from spark_replication.spark import cluster as spark_cluster
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, stop_directory
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA
from tests.live.spark.applications import Application
from tests.live.spark.waiting import wait_for
from tests.waiting import eventually

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(600)]

BROKERS = 2
SAID_S_MAX = 5.0
BACK_S_MAX = 15.0
GIVEN_UP_S = 3.0
COMMANDS_S_MAX = 30.0  # its session need not end: the one before it has resigned
SETTINGS = {"zookeeper.session.ms": 30_000}


def served(directory: Path) -> EmbeddedZooKeeper:
    found = EmbeddedZooKeeper.found_in(directory / "zookeeper")
    assert found is not None
    return found


def test_a_killed_zookeeper_stands_in_the_status_and_is_back(spark: SparkSession, tmp_path: Path) -> None:
    with sr.SparkCluster.start(spark, {"data.dir": str(tmp_path), **SETTINGS}, brokers=BROKERS) as cluster:
        epoch = cluster.status().controller_epoch
        killed = cluster.zookeeper_pids
        kill(*killed)
        ended_s = time.monotonic()

        def is_said() -> bool:
            return any("no connection to ZooKeeper" in problem for problem in cluster.status().problems)

        def is_back() -> bool:
            return cluster.zookeeper_pids not in ([], killed) and not cluster.status().problems

        # Looked at now and then: who asks without a pause takes the processor that the server is to start with.
        wait_for("it is said", is_said, SAID_S_MAX)
        wait_for("it is back", is_back, BACK_S_MAX - (time.monotonic() - ended_s))
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=BROKERS)
        assert cluster.status().controller_epoch == epoch, "the same candidacy"
    assert served(tmp_path).pids == []


def test_the_first_driver_to_stop_leaves_zookeeper_to_the_one_that_stands_by(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    settings = {"data.dir": str(data), **SETTINGS}
    standby = Application(tmp_path / "standby", f"local[{BROKERS + 2}]", brokers=BROKERS, data=data)
    try:
        first = sr.SparkCluster.start(spark, settings, brokers=BROKERS)
        pids = first.zookeeper_pids
        standby.launch()
        wait_for("the second driver to stand by", lambda: "standing by" in standby.says())
        first.stop()
        zookeeper = served(data)
        assert zookeeper.pids == pids, "the second driver uses it"

        def connect() -> Session:
            return Session.connect(
                zookeeper.address, Settings().zookeeper_chroot, session_timeout_ms=10_000, request_timeout_ms=10_000
            )

        with closing(BrokerStore(connect)) as store:
            commanding = wait_for("the second driver to command", store.controller, COMMANDS_S_MAX)
        assert commanding.epoch == 2
        standby.wait_started()
        kill(*zookeeper.pids)
        eventually(lambda: zookeeper.pids not in ([], pids), "the second driver keeps it alive", BACK_S_MAX)
        standby.wait_healthy()
        standby.stop()
        assert zookeeper.pids == [], "the last user ends it"
    finally:
        standby.clean_up()
        stop_directory(data / "zookeeper")


def test_one_that_stands_by_does_so_for_as_long_as_zookeeper_says_that_another_commands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A ZooKeeper that nobody keeps: it was given."""
    monkeypatch.setattr(spark_cluster, "START_TIMEOUT_S", GIVEN_UP_S)
    zookeeper = EmbeddedZooKeeper.start(tmp_path / "given", 60)
    settings = {"zookeeper.connect": zookeeper.address, "request.timeout.ms": 2_000, "data.dir": str(tmp_path)}
    other = ControllerHost(
        zookeeper.address,
        name="other",
        host="127.0.0.1",
        settings=settings_from(settings),
        security=NO_SECURITY,
        seat=tmp_path / "seat",
        mirror_path=str(tmp_path / "mirror"),
    )
    try:
        other.start()
        other.wait_active()
        with ThreadPoolExecutor(1) as pool:
            standing_by = pool.submit(sr.SparkCluster.start, spark, settings, BROKERS)
            wait_for("it stands by", lambda: "standing by" in caplog.text)
            began_s = time.monotonic()
            with pytest.raises(TimeoutError):
                standing_by.result(timeout=2 * GIVEN_UP_S)
            assert time.monotonic() - began_s >= 2 * GIVEN_UP_S, "it stands by for longer than a start may take"
            kill(*zookeeper.pids)
            with pytest.raises(RequestTimedOut, match=r"no driver commands.*no connection to ZooKeeper"):
                standing_by.result(timeout=60)
    finally:
        other.close()
        zookeeper.stop()
