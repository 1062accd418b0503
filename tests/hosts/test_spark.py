"""A cluster on Spark over several hosts: wherever guardians come to be, whatever goes, no broker is left behind, none
is made in vain, and clients go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

import spark_replication as sr
from tests.hosts.bed import Bed
from tests.hosts.driver_away import go_away_and_come_back
from tests.hosts.stage import CENTRE, DRIVERS, ROWS, Stage
from tests.live.spark.waiting import wait_for
from tests.printed import printed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WORKERS = ["a", "b", "c", "d", "e", "f"]
SLOTS = 4  # of a driver: on four of the six hosts
UNNOTICED_S = 5.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Bed([CENTRE, *DRIVERS, *WORKERS]) as bed:
        yield Stage(bed, WORKERS, SLOTS)


def test_a_killed_executor_strands_no_broker_and_makes_none(stage: Stage) -> None:
    first = stage.brokers.pids()
    assert sorted(first) == [1, 2, 3]
    with stage.loaded("executor") as load:
        began = time.monotonic()
        before = stage.brokers.lease(1)
        stage.spark.kill_executors(stage.brokers.host(1))
        wait_for("its next guardian", lambda: stage.brokers.lease(1) != before)
        stage.driver.wait_healthy()
        assert load.longest_wait_s(began) < UNNOTICED_S
    assert stage.brokers.pids() == first
    assert sorted(stage.brokers.directories()) == [1, 2, 3]


def test_a_broker_whose_worker_is_gone_is_kept_from_elsewhere(stage: Stage) -> None:
    """Spark gives the driver a slot on another host in its place, more than once."""
    first = stage.brokers.pids()
    with stage.loaded("workers") as load:
        began = time.monotonic()
        gone = []
        for _ in range(2):
            broker = wait_for("a broker with an executor on its host", stage.guarded_at_home)
            host, before = stage.brokers.host(broker), stage.brokers.lease(broker)
            gone.append(host)
            stage.spark.process(host).kill()
            stage.spark.kill_executors(host)
            wait_for(
                "another to keep it",
                lambda broker=broker, before=before: stage.brokers.lease(broker) != before,  # type: ignore[misc]
            )
            said = f"broker {broker} has no guardian on its host"
            wait_for("it to be said", lambda said=said: said in stage.driver.status()[-1])  # type: ignore[misc]
        assert load.longest_wait_s(began) < UNNOTICED_S
        for host in gone:
            stage.spark.start_worker(host)
            stage.spark.wait_registered(host)
    assert stage.brokers.pids() == first
    assert sorted(stage.brokers.directories()) == [1, 2, 3]


def test_a_decommissioned_worker_strands_no_broker(stage: Stage) -> None:
    """Its executor goes, with the guardian in it; its broker stays, and is kept from another host."""
    first, broker = stage.brokers.pids(), wait_for("a broker with an executor on its host", stage.guarded_at_home)
    host, before = stage.brokers.host(broker), stage.brokers.lease(broker)
    with stage.loaded("decommission") as load:
        began = time.monotonic()
        stage.spark.process(host).signal(signal.SIGPWR)
        wait_for("its executor to go", lambda: not stage.spark.executors(host))
        wait_for("another to keep it", lambda: stage.brokers.lease(broker) != before)
        assert load.longest_wait_s(began) < UNNOTICED_S
        stage.spark.process(host).kill()
        stage.spark.start_worker(host)
        stage.spark.wait_registered(host)
    assert stage.brokers.pids() == first
    assert sorted(stage.brokers.directories()) == [1, 2, 3]


def test_a_restarted_master_costs_nothing(stage: Stage) -> None:
    first = stage.brokers.pids()
    with stage.loaded("master") as load:
        began = time.monotonic()
        stage.spark.process(stage.bed[CENTRE]).kill()
        load.wait_for_more(ROWS)
        stage.spark.start_master()
        broker = wait_for("a broker with an executor on its host", stage.guarded_at_home)
        before = stage.brokers.lease(broker)
        stage.spark.kill_executors(stage.brokers.host(broker))
        wait_for("its next guardian", lambda: stage.brokers.lease(broker) != before)
        assert load.longest_wait_s(began) < UNNOTICED_S
    assert stage.brokers.pids() == first


def test_a_drivers_host_that_is_cut_off_is_replaced_and_commands_no_more_when_it_is_back(stage: Stage) -> None:
    first = stage.brokers.pids()
    stage.standby.launch()
    wait_for("it to stand by", lambda: "standing by" in stage.standby.process.says())
    with stage.loaded("driver") as load:
        began = time.monotonic()
        go_away_and_come_back(stage, load, 0.0)
        assert load.longest_wait_s(began) < UNNOTICED_S
    assert stage.brokers.pids() == first


def test_what_a_host_that_is_gone_for_good_had_comes_to_be_on_others(stage: Stage) -> None:
    """Its replicas are taken off it first: a broker that holds anything is not replaced by an empty one."""
    lost = 3
    host = stage.brokers.host(lost)
    with sr.Admin(stage.zookeeper, security=stage.security) as admin, stage.loaded("gone") as load:
        began = time.monotonic()
        host.destroy()
        load.wait_for_more(ROWS)
        assert load.longest_wait_s(began) < UNNOTICED_S + 5
        said = f"broker {lost} is down, and no guardian is on a host that has its directory"
        wait_for("it to be said", lambda: said in stage.commanding.status()[-1])
        *fewer, until, again, applied = printed("operate", "spark-replication reassign plan --replication-factor 2")
        stage.types(*fewer)  # the one that is out of sync goes
        assert until.startswith("spark-replication brokers --watch 2 ")
        wait_for("another in its place", lambda: sorted(admin.metadata().brokers) == [1, 2, 4])
        stage.types(again, applied)
        replicas = {partition.replicas for topic in admin.metadata().topics for partition in topic.partitions}
        assert {tuple(sorted(each)) for each in replicas} == {(1, 2, 4)}
        load.wait_for_more(ROWS)
