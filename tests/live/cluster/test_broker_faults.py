"""Brokers and the controller are killed, stopped and starved of disk under acks=all load, while readers look on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr
from spark_replication.client.asking.admin import PartitionDescription
from spark_replication.config import settings_from
from spark_replication.core.controller.cluster import ClusterState, LoadedCluster
from spark_replication.core.controller.controller import decide
from spark_replication.core.controller.events import TookOver
from spark_replication.live.broker.lease import LEASE_FILE, LeaseFile
from spark_replication.messages.actions import SHUTDOWN
from spark_replication.messages.guarding import Shutdown
from spark_replication.model import TopicPartition, encode
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.zk import paths
from spark_replication.zk.operations import EXISTS, Delete
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session
from tests.live.broker import brokers
from tests.live.cluster.faults import full_disk, held_down, kill, stopped
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.waiting import eventually
from tests.live.cluster.witness import Witness

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PARTITIONS = 3
SESSION_S = 6.0
LAG_S = 8.0
TOLD_S_MAX = 4.0  # what nobody waits LAG_S or SESSION_S for, on a busy machine
CONTROLLED_STOP_S = 8.0  # far below controlled.shutdown.timeout.ms
DEADLINE_S = 60.0
ANSWER_MS_MAX = 5_000  # what a broker that has just registered takes to tell how long its logs are, on a busy machine
CONFIG = {
    "zookeeper.session.ms": int(SESSION_S * 1000),
    "replica.lag.time.ms": int(LAG_S * 1000),
    "disk.retry.ms": 2_000,
}


@contextmanager
def watched(cluster: sr.LocalCluster, topic: str, partitions: int = PARTITIONS) -> Iterator[Load]:
    """Load, and what must hold when it is over: nothing lost or doubled, every replica in sync, readers agree."""
    with Witness(cluster, topic, partitions) as witness:
        with Load(cluster.zookeeper, topic, partitions) as load:
            load.wait_for_more(20)
            yield load
            load.wait_for_more(20)
        cluster.wait_healthy()
        load.check_history()
        witness.check(load)


def partition(cluster: sr.LocalCluster, topic: str, number: int = 0) -> PartitionDescription:
    (found,) = cluster.admin.describe_topics([topic])
    return found.partitions[number]


def leader_of(cluster: sr.LocalCluster, topic: str) -> int:
    leader = partition(cluster, topic).leader
    assert leader is not None
    return leader


def pids(cluster: sr.LocalCluster) -> dict[int, int]:
    return {broker: found.pid for broker, found in cluster.brokers.items()}


def was_started_again(cluster: sr.LocalCluster, broker: int, pid: int) -> bool:
    return pids(cluster).get(broker, pid) != pid


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values)], schema=SCHEMA)


def rows(cluster: sr.LocalCluster, topic: str, number: int = 0) -> list[int]:
    found = sr.Reader(cluster.zookeeper).read(topic, partition=number)
    return [value for each in found for value in each.batch[0].to_pylist()]


def said_by(cluster: sr.LocalCluster, broker: int) -> str:
    return (Path(cluster.brokers[broker].log_dir) / "broker.log").read_text()


def test_a_killed_leader_costs_no_acknowledged_row(cluster: sr.LocalCluster, topic: str) -> None:
    before = pids(cluster)
    with watched(cluster, topic) as load:
        leader = leader_of(cluster, topic)
        began = time.monotonic()
        kill(before[leader])
        load.wait_for_more(20)
        # Its guardian told of its death, long before its session would have ended.
        assert load.longest_wait_s(began) < SESSION_S
    assert cluster.brokers[leader].pid != before[leader], "it was started again"
    assert partition(cluster, topic).leader_epoch >= 1


def test_a_broker_that_has_registered_again_is_reported_as_fast_when_it_dies(
    cluster: sr.LocalCluster, truth: Session
) -> None:
    """By whoever watched the process since before: it is the same one."""
    cluster.wait_healthy()
    before = cluster.brokers[2]
    truth.commit_now((Delete(paths.broker_id(2), EXISTS),))
    eventually(lambda: cluster.brokers[2].epoch > before.epoch, "it registers again")
    cluster.wait_healthy()
    assert cluster.brokers[2].pid == before.pid
    try:
        began = time.monotonic()
        cluster.kill_broker(2)
        eventually(lambda: truth.read_now(paths.broker_id(2)) is None, "its registration is removed")
        assert time.monotonic() - began < SESSION_S / 3, "not by the end of its session"
    finally:
        cluster.restart_broker(2)
    cluster.wait_healthy()


def test_a_killed_follower_holds_nobody_up(cluster: sr.LocalCluster) -> None:
    topic = "followed"
    cluster.wait_healthy()
    cluster.admin.create_topic(topic, SCHEMA, partitions=1)
    with watched(cluster, topic, 1) as load:
        led = partition(cluster, topic)
        began = time.monotonic()
        kill(cluster.brokers[led.replicas[1]].pid)
        load.wait_for_more(50)
        assert load.longest_wait_s(began) < TOLD_S_MAX
    assert partition(cluster, topic).leader_epoch == led.leader_epoch, "its leader led on"


def test_two_of_three_brokers_are_killed_one_after_the_other(cluster: sr.LocalCluster, topic: str) -> None:
    with watched(cluster, topic) as load:
        for _ in range(2):
            kill(cluster.brokers[leader_of(cluster, topic)].pid)
            load.wait_for_more(20)
            cluster.wait_healthy()


def test_all_brokers_are_killed_at_once_and_come_back_with_every_acknowledged_row(
    cluster: sr.LocalCluster, topic: str
) -> None:
    """Their page caches live on: each comes back cleanly, and whoever is eligible leads again (I7, I8). They take their
    ports again, so the list of addresses that the producers were given goes on to work."""
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        load.wait_for_more(20)
        kill(*pids(cluster).values())
        load.wait_for_more(20, timeout_s=60)
    cluster.wait_healthy()
    load.check_history()


def test_a_killed_controller_is_followed_by_one_of_the_next_epoch(cluster: sr.LocalCluster, topic: str) -> None:
    with watched(cluster, topic) as load:
        began = time.monotonic()
        kill(cluster.controller_pid)
        load.wait_for_more(200)
        assert load.longest_wait_s(began) < TOLD_S_MAX, "produce needs no controller"
        cluster.wait_healthy()
        cluster.admin.create_topic(f"{topic}.after", SCHEMA, partitions=1)


def test_the_controller_and_a_leader_are_killed_together(cluster: sr.LocalCluster, topic: str) -> None:
    with watched(cluster, topic) as load:
        leader = leader_of(cluster, topic)
        kill(cluster.controller_pid, cluster.brokers[leader].pid)
        load.wait_for_more(20)


def test_a_leader_that_hangs_for_longer_than_its_session_commits_nothing_when_it_goes_on(
    cluster: sr.LocalCluster, topic: str
) -> None:
    """What was sent to it while it hung lies in its sockets: it takes that as the leader that it believes to be."""
    aside = PARTITIONS  # a partition of its own, which the load does not know
    cluster.admin.add_partitions(topic, PARTITIONS + 1)
    with watched(cluster, topic) as load:
        leader = partition(cluster, topic, aside).leader
        assert leader is not None
        hung = cluster.brokers[leader]
        with flight.connect(f"grpc://{hung.host}:{hung.port}") as client:
            late = brokers.Put(client, topic, SCHEMA, aside)
            late.send(numbers(1))
            assert late.answer()["base_offset"] == 0
            with stopped(hung.pid):
                eventually(lambda: partition(cluster, topic, aside).leader not in (None, leader), "another leads")
                load.wait_for_more(20)
                late.send(numbers(2))
            answer = late.answer()
            # Whichever comes first: another leads, nobody follows, or it is registering again.
            assert answer["error"] in {"NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_READY"}, answer
    assert cluster.brokers[leader].pid == hung.pid, "it was never ended"
    assert rows(cluster, topic, aside) == [1]


@pytest.mark.parametrize("place", [0, 1], ids=["a_leader", "a_follower"])
def test_the_disk_of_one_is_full_and_the_others_go_on_at_once(cluster: sr.LocalCluster, place: int) -> None:
    """It tells the controller by itself (B4); with space again it catches up, and was never started anew."""
    topic = f"full-{place}"
    cluster.wait_healthy()
    cluster.admin.create_topic(topic, SCHEMA, partitions=1)
    with sr.Producer(cluster.bootstrap) as producer:
        # More than any other file of a broker's has, its log among them: they are not to fail.
        large = numbers(*range(-250_000, 0))
        producer.send(topic, large, 0).result(DEADLINE_S)
    before = pids(cluster)
    broker = partition(cluster, topic).replicas[place]
    with watched(cluster, topic, 1) as load:
        with full_disk(before[broker], large.nbytes + 50_000):
            began = time.monotonic()
            eventually(lambda: broker not in partition(cluster, topic).isr, "it leaves the ISR")
            load.wait_for_more(50)
            assert load.longest_wait_s(began) < TOLD_S_MAX, "nobody waits for replica.lag.time.ms"
            assert leader_of(cluster, topic) != broker
        eventually(lambda: broker in partition(cluster, topic).isr, "it is back in the ISR")
    assert pids(cluster) == before
    assert f"{topic}-0: its disk refuses" in said_by(cluster, broker)


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def _order(directory: Path) -> Shutdown:
    """As its guardian gives it."""
    lease = msgspec.json.decode((directory / LEASE_FILE).read_bytes(), type=LeaseFile)
    return Shutdown(controller_epoch=lease.controller_epoch, attempt=lease.attempt)


def test_a_rolling_restart_costs_producers_no_error(cluster: sr.LocalCluster, topic: str) -> None:
    before = cluster.brokers
    with watched(cluster, topic) as load:
        for broker, found in before.items():
            began = time.monotonic()
            with NO_SECURITY.client(f"{found.host}:{found.port}") as client:
                call(client, SHUTDOWN, _order(Path(found.log_dir)), 5_000)
            eventually(partial(has_ended, found.pid), "it has stopped")
            assert time.monotonic() - began < CONTROLLED_STOP_S
            eventually(partial(was_started_again, cluster, broker, found.pid), "it was started again")
            cluster.wait_healthy()
            load.wait_for_more(20)
    for broker in before:
        said = said_by(cluster, broker)
        assert "still leading" not in said
        assert "without handing over" not in said


def test_what_zookeeper_holds_after_all_of_that_is_what_the_model_would_have_left(
    cluster: sr.LocalCluster, truth: Session
) -> None:
    """The code that the simulator runs takes every node as it is, byte for byte, and finds nothing to settle."""
    cluster.wait_healthy()
    topics, brokers_now = Reading(truth).topics(), Reading(truth).brokers()
    assigned = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.state.partitions]
    stored = Reading(truth).partitions(assigned)
    epoch = truth.read_now(paths.CONTROLLER_EPOCH)
    assert epoch is not None
    state = ClusterState(
        LoadedCluster(
            cluster_id="live",
            controller_epoch=epoch.version,
            settings=settings_from(CONFIG),
            topics=topics,
            partitions=stored,
            brokers=brokers_now.brokers,
            broker_epochs=brokers_now.broker_epochs,
        )
    )
    nodes = truth.read_many([paths.leader_and_isr(each) for each in assigned])
    assert [found and found.data for found in nodes] == [encode(stored[each].state) for each in assigned]
    assert {each.partition for each in assigned} >= set(range(PARTITIONS))
    assert decide(state, TookOver()).steps == ()
    assert all(found.state.isr == set(brokers_now.brokers) for found in stored.values())


STRATEGIES = ("manual", "balanced", "proactive")


def test_brokers_that_lost_their_page_caches_are_led_by_the_longest_log_that_the_strategy_waits_for() -> None:
    """One broker has 10 rows, one 20, one all 30 that were acknowledged. First the two shorter come back (L4)."""
    config = {
        **CONFIG,
        "recovery.trust.page.cache": False,  # as after a loss of power: nobody is in ISR or ELR by right
        "min.insync.replicas": 1,
        "unclean.recovery.timeout.ms": 100_000,  # until both of the two that come back first are there
    }
    with sr.LocalCluster.start(brokers=3, config=config) as cluster:
        for strategy in STRATEGIES:
            cluster.admin.create_topic(strategy, SCHEMA, partitions=1, config={"unclean.recovery.strategy": strategy})
        append(cluster, 0)
        with ExitStack() as longest:
            with ExitStack() as shorter:
                shorter.enter_context(held_down(cluster, 3))
                append(cluster, 10)
                shorter.enter_context(held_down(cluster, 1))
                append(cluster, 20)
                longest.enter_context(held_down(cluster, 2))
                lost = time.monotonic()
            eventually(
                lambda: {each.id for each in cluster.admin.describe_cluster().brokers} == {1, 3}, "both are back"
            )
            waited_ms = round((time.monotonic() - lost) * 1000)
            cluster.admin.configure(None, {"unclean.recovery.timeout.ms": waited_ms + ANSWER_MS_MAX})
            eventually(lambda: partition(cluster, "proactive").leader == 1, "those that answer choose among themselves")
            assert rows(cluster, "proactive") == list(range(20))
            assert partition(cluster, "balanced").leader is None, "the last known leader is not there"
            assert partition(cluster, "manual").leader is None
        eventually(lambda: partition(cluster, "balanced").leader == 2, "the longest log leads")
        assert partition(cluster, "manual").leader is None, "it waits for a person"
        assert cluster.admin.elect_leaders("longest_log_balanced", ["manual-0"]) == {}
        cluster.wait_healthy()
        assert partition(cluster, "manual").leader == 2
        assert {strategy: len(rows(cluster, strategy)) for strategy in STRATEGIES} == {
            "manual": 30,
            "balanced": 30,
            "proactive": 20,
        }
        assert {partition(cluster, strategy).elected for strategy in STRATEGIES} == {"unclean_recovery"}
        # Ten acknowledged rows are lost, and whoever had them says so; nobody else lost any.
        assert "proactive-0: cut from 30 to 20, where it parts from the log of broker 1" in said_by(cluster, 2)
        assert not [broker for broker in cluster.brokers if "manual-0: cut" in said_by(cluster, broker)]
        assert not [broker for broker in cluster.brokers if "balanced-0: cut" in said_by(cluster, broker)]


def append(cluster: sr.LocalCluster, first: int) -> None:
    with sr.Producer(cluster.zookeeper) as producer:
        batch = numbers(*range(first, first + 10))
        for sent in [producer.send(strategy, batch, 0) for strategy in STRATEGIES]:
            assert sent.result(DEADLINE_S).base_offset == first
