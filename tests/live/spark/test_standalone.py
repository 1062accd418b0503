"""On real Workers, under load: what dies on a host costs a guardian or a broker, and nobody's records or service."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import spark_replication as sr
from spark_replication.errors import StaleLease
from spark_replication.messages.actions import RENEW_LEASE
from spark_replication.messages.guarding import RenewLease
from spark_replication.spark.standalone import Standalone
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import NO_SECURITY
from tests.live.cluster.faults import stopped
from tests.live.cluster.history import SCHEMA, Load
from tests.live.spark.applications import Application, lives
from tests.live.spark.waiting import children, wait_for

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(420)]

BROKERS = 3
LOOPBACK = "127.0.0.1"
# An executor that is silent for so long counts as lost.
QUICK = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
}
UNNOTICED_S = 5.0
LEASE_MS = 180_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    # One slot more than guardians, as for a user's jobs.
    standalone = Standalone(tmp_path_factory.mktemp("spark"), [LOOPBACK] * (BROKERS + 1))
    yield standalone
    standalone.stop()


@pytest.fixture(scope="module")
def started(spark: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    application = Application(tmp_path_factory.mktemp("application"), spark.url, brokers=BROKERS, spark=QUICK)
    try:
        application.start()
        yield application
        application.stop()
    finally:
        application.clean_up()


@pytest.fixture
def application(started: Application) -> Application:
    started.wait_healthy()
    return started


@pytest.fixture
def zookeeper(application: Application) -> str:
    return application.found.zookeeper


@contextmanager
def loaded(zookeeper: str, topic: str) -> Iterator[Load]:
    """What is acknowledged while the block runs, and before and after it, is read once, at its offset."""
    with sr.Admin(zookeeper) as admin:
        admin.create_topic(topic, SCHEMA, partitions=BROKERS)
    with Load(zookeeper, topic, BROKERS) as load:
        load.wait_for_more(20)
        yield load
        load.wait_for_more(20)
    load.check_history()


def executors_with_guardians(spark: Standalone) -> dict[int, int]:
    """By executor, the Python worker of its guardian: the daemon's child."""
    found = {}
    for executor in spark.executors().values():
        for daemon, _ in children(executor):
            for worker, _ in children(daemon):
                found[executor] = worker
    return found


def test_a_killed_executor_stops_no_broker(application: Application, zookeeper: str, spark: Standalone) -> None:
    brokers, leases = application.pids(), application.leases()
    assert len(brokers) == BROKERS
    with loaded(zookeeper, "executor") as load:
        executor = next(iter(executors_with_guardians(spark)))
        killed_at = time.monotonic()
        os.kill(executor, signal.SIGKILL)
        application.wait_taken_over(leases)
        load.wait_for_more(20)
        assert load.longest_wait_s(killed_at) < UNNOTICED_S
    assert application.pids() == brokers, "none was started anew"


def test_a_killed_worker_and_its_executor_stop_no_broker(
    application: Application, zookeeper: str, spark: Standalone
) -> None:
    brokers, leases = application.pids(), application.leases()
    guarding = executors_with_guardians(spark)
    number, executor = next((number, pid) for number, pid in spark.executors().items() if pid in guarding)
    with loaded(zookeeper, "worker") as load:
        killed_at = time.monotonic()
        os.kill(spark.worker_pid(number), signal.SIGKILL)
        os.kill(executor, signal.SIGKILL)
        application.wait_taken_over(leases)  # three slots are left for three guardians
        load.wait_for_more(20)
        assert load.longest_wait_s(killed_at) < UNNOTICED_S
        assert application.pids() == brokers, "none was started anew"
        spark.start_worker(number)
    wait_for("an executor on the Worker that is back", lambda: number in spark.executors())


def test_a_killed_guardian_stops_no_broker(application: Application, zookeeper: str, spark: Standalone) -> None:
    brokers, leases = application.pids(), application.leases()
    with loaded(zookeeper, "guardian") as load:
        guardian = next(iter(executors_with_guardians(spark).values()))
        killed_at = time.monotonic()
        os.kill(guardian, signal.SIGKILL)
        application.wait_taken_over(leases)
        load.wait_for_more(20)
        assert load.longest_wait_s(killed_at) < UNNOTICED_S
    assert application.pids() == brokers, "none was started anew"


def test_a_killed_broker_is_started_again_by_its_guardian(application: Application, zookeeper: str) -> None:
    brokers, leases = application.pids(), application.leases()
    with loaded(zookeeper, "broker"):
        victim, pid = next(iter(brokers.items()))
        os.kill(pid, signal.SIGKILL)
        wait_for("the broker to be started again", lambda: application.pids().get(victim, pid) != pid)
    assert {broker: pid for broker, pid in application.pids().items() if broker != victim} == {
        broker: pid for broker, pid in brokers.items() if broker != victim
    }
    assert application.leases() == leases, "in its task, and no other guardian was disturbed"


def test_the_guardian_of_a_hung_host_is_refused_when_it_comes_to_itself(
    application: Application, zookeeper: str, spark: Standalone
) -> None:
    brokers, leases = application.pids(), application.leases()
    guarding = executors_with_guardians(spark)
    number, executor = next((number, pid) for number, pid in spark.executors().items() if pid in guarding)
    guardian = guarding[executor]
    # The Worker, too: it would end the executor, and with it the guardian.
    with loaded(zookeeper, "hung") as load, stopped(spark.worker_pid(number)), stopped(executor):
        hung_at = time.monotonic()
        with stopped(guardian):
            application.wait_taken_over(leases)
            load.wait_for_more(20)
            assert load.longest_wait_s(hung_at) < UNNOTICED_S
            assert application.pids() == brokers, "none was started anew"
            for broker, file in application.brokers().items():
                late = RenewLease(
                    controller_epoch=leases[broker].controller_epoch, attempt=leases[broker].attempt, lease_ms=LEASE_MS
                )
                with NO_SECURITY.client(f"{file.host}:{file.port}") as client, pytest.raises(StaleLease):
                    call(client, RENEW_LEASE, late, 5_000)
        load.wait_for_more(20)
    wait_for("the late guardian to be gone", lambda: not lives(guardian))
    assert application.pids() == brokers, "it has started none, and ended none"
