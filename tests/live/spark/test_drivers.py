"""Drivers come and go, two of them at a time: brokers serve on, one driver commands, and nothing is left for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.spark.standalone import Standalone
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper
from tests.live.cluster.faults import stopped
from tests.live.cluster.history import SCHEMA, Load
from tests.live.spark.applications import STOP_TIMEOUT_S, Application, clean_up, lives
from tests.live.spark.waiting import children, wait_for

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(600)]

BROKERS = 3
# 1.6 MB to move, at a pace that takes minutes, in fetches that the pace can hold up.
BATCHES, ROWS = 100, 2_000
BYTES_PER_SECOND = 10_000
FETCH_BYTES = 32 << 10
SHORT_LEASE_MS, LONG_LEASE_MS = 20_000, 600_000


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path, ["127.0.0.1"] * (BROKERS + 1))
    yield standalone
    standalone.stop()


def all_brokers(application: Application) -> dict[int, int]:
    """Their pids. An executor that comes late is given its broker late, and the cluster has started without it."""
    wait_for("every broker", lambda: len(application.pids()) == BROKERS)
    return application.pids()


def test_a_killed_driver_is_followed_by_one_that_adopts_its_brokers_and_finishes_what_it_began(
    spark: Standalone, tmp_path: Path
) -> None:
    settings = {"replica.fetch.bytes.max": str(FETCH_BYTES), "broker.lease.ms": str(LONG_LEASE_MS)}
    application = Application(tmp_path, spark.url, brokers=BROKERS, settings=settings)
    try:
        before = application.start()
        brokers = all_brokers(application)
        zookeeper = before.zookeeper
        with sr.Admin(zookeeper) as admin:
            admin.create_topic("orders", SCHEMA, partitions=BROKERS)
            moving = admin.create_topic("moving", SCHEMA, partitions=1, replication_factor=2).partitions[0].replicas
            target = (moving[1], *(set(brokers) - set(moving)))
            with sr.Producer(zookeeper) as producer:
                rows = pa.record_batch([pa.array(range(ROWS))], schema=SCHEMA)
                for _ in range(BATCHES):
                    producer.send("moving", rows, partition=0).result(60)
            with Load(zookeeper, "orders", BROKERS) as load:
                load.wait_for_more(20)
                admin.configure(None, {"reassignment.bytes.per.second": BYTES_PER_SECOND})
                assert not admin.reassign({"moving-0": target})
                application.kill()
                load.wait_for_more(50)
                assert application.pids() == brokers, "they serve headless"
                after = application.start()
                assert after.controller_epoch == before.controller_epoch + 1
                assert application.pids() == brokers, "they were adopted"
                assert [found.partition for found in admin.reassignments()] == ["moving-0"]
                admin.configure(None, {"reassignment.bytes.per.second": None})
                admin.wait_reassigned(["moving-0"], 60)
                (topic,) = admin.describe_topics(["moving"])
                assert topic.partitions[0].replicas == target
                load.wait_for_more(20)
        load.check_history()
        application.stop()
    finally:
        application.clean_up()


def test_of_two_applications_one_commands_and_what_both_have_left_ends_with_its_lease(tmp_path: Path) -> None:
    settings = {"broker.lease.ms": str(SHORT_LEASE_MS)}
    first = Application(tmp_path, "local-cluster[4,1,1024]", brokers=BROKERS, settings=settings)
    second = Application(tmp_path / "second", "local[5]", brokers=BROKERS, data=first.data, settings=settings)
    try:
        before = first.start()
        brokers = all_brokers(first)
        with sr.Admin(before.zookeeper) as admin:
            admin.create_topic("orders", SCHEMA, partitions=BROKERS)
        with Load(before.zookeeper, "orders", BROKERS) as load:
            second.launch()
            wait_for("the second driver to stand by", lambda: "standing by" in second.says())
            # It hangs until its session is over; its guardians, whom it has told nothing, are refused by their brokers.
            with stopped(first.process.pid):
                leases = first.leases()
                second.wait_started()
                wait_for(
                    "the second driver's guardians to take all leases",
                    lambda: all(first.leases()[broker] != lease for broker, lease in leases.items()),
                )
                load.wait_for_more(20)
            wait_for("the first driver to stand by", lambda: "standing by" in first.says())
            second.wait_healthy()
            assert first.pids() == brokers, "they were adopted"
            # Not the next epoch: a driver whose executors take long to come has stepped aside meanwhile.
            (epoch,) = {lease.controller_epoch for lease in first.leases().values()}
            assert epoch > max(lease.controller_epoch for lease in leases.values()), "one commands, the second"
            load.wait_for_more(20)
        load.check_history()
        first.kill()
        second.kill()
        assert first.living() == set(brokers), "they serve headless"
        wait_for("the leases to run out", lambda: not first.living())
    finally:
        clean_up(first, second)


@pytest.mark.parametrize("ends_or_hangs", [signal.SIGKILL, signal.SIGSTOP])
def test_a_driver_without_its_jvm_gives_up_its_place_and_its_job_fails(
    tmp_path: Path, ends_or_hangs: signal.Signals
) -> None:
    """Whoever supervises it starts it again, or another stands by: nobody commands who cannot guard."""
    application = Application(tmp_path, "local[4]", brokers=BROKERS)
    try:
        before = application.start()
        brokers = all_brokers(application)
        (jvm,) = [pid for pid, command in children(application.process.pid) if b"deploy.SparkSubmit" in command]
        os.kill(jvm, ends_or_hangs)
        assert application.process.wait(STOP_TIMEOUT_S) == 1, application.says()
        assert "error: SPARK_GONE: Spark's " in application.says()
        assert application.living() == set(brokers), "they serve headless"
        wait_for("its JVM to be gone", lambda: not lives(jvm))
        assert application.start().controller_epoch == before.controller_epoch + 1
        assert application.pids() == brokers, "they were adopted"
        application.stop()
    finally:
        application.clean_up()


def test_a_driver_whose_application_the_master_has_given_up_ends_and_the_next_has_its_brokers(
    spark: Standalone, tmp_path: Path
) -> None:
    """No executor comes any more, and nobody has told it why."""
    application = Application(tmp_path, spark.url, brokers=BROKERS, settings={"broker.lease.ms": str(LONG_LEASE_MS)})
    try:
        before = application.start()
        brokers = all_brokers(application)
        with sr.Admin(before.zookeeper) as admin:
            admin.create_topic("orders", SCHEMA, partitions=BROKERS)
        with Load(before.zookeeper, "orders", BROKERS) as load:
            load.wait_for_more(20)
            spark.restart_master()
            assert application.process.wait(STOP_TIMEOUT_S) == 1, application.says()
            assert f"error: SPARK_GONE: the Master at {spark.url} does not know" in application.says()
            assert application.living() == set(brokers), "they serve headless"
            assert application.start().controller_epoch == before.controller_epoch + 1
            assert application.pids() == brokers, "they were adopted"
            load.wait_for_more(20)
        load.check_history()
        application.stop()
    finally:
        application.clean_up()


def test_a_driver_that_cannot_ask_zookeeper_whether_it_still_commands_stops_no_broker(tmp_path: Path) -> None:
    """It takes itself for the controller while its connection is gone, and another may have its brokers."""
    zookeeper = EmbeddedZooKeeper.start(tmp_path / "zookeeper", 60)
    settings = {"zookeeper.connect": zookeeper.address, "request.timeout.ms": "3000"}
    application = Application(tmp_path, "local[4]", brokers=BROKERS, settings=settings)
    try:
        application.start()
        brokers = all_brokers(application)
        (server,) = zookeeper.pids
        with stopped(server):
            application.process.send_signal(signal.SIGINT)
            assert application.process.wait(STOP_TIMEOUT_S) == 0, application.says()
            assert "brokers are not stopped: ZooKeeper does not say" in application.says()
            assert application.living() == set(brokers)
        application.start()
        assert application.pids() == brokers, "they were adopted"
        application.stop()
    finally:
        application.clean_up()
        zookeeper.stop()
