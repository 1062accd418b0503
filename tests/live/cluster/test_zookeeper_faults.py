"""A cluster on an ensemble, under acks=all load: ZooKeeper goes, in part or as a whole, or the controller does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import spark_replication as sr
from spark_replication.errors import ReplicationError, StartFailed
from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.records import InitProducer
from spark_replication.model import PartitionState, TopicPartition
from spark_replication.transport.flight.actions import call
from spark_replication.zk import paths
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper
from tests.live.cluster.faults import kill, stopped
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.witness import Witness
from tests.live.zk.helpers import expire

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PARTITIONS = 2  # of three brokers, one follows only
SERVERS = 3
SESSION_S = 10.0  # a follower that stops for LAG_S is back well before it ends, on a busy machine, too
LAG_S = 2.0
ZOOKEEPER_AWAY_S = 20.0
HEADLESS_S = 60.0
STALL_S_MAX = 3.0  # of a partition that nothing has happened to; the machine may be busy
CONFIG = {"zookeeper.session.ms": int(SESSION_S * 1000), "replica.lag.time.ms": int(LAG_S * 1000)}


def produce_for(load: Load, span_s: float) -> None:
    """Each partition goes on all the time."""
    end = time.monotonic() + span_s
    while time.monotonic() < end:
        load.wait_for_more(1, timeout_s=STALL_S_MAX)


def produce_until(load: Load, holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """It is asked again with every row of each partition."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        load.wait_for_more(1, timeout_s=timeout_s)


def leader_among(cluster: sr.LocalCluster) -> int:
    """The pid of the ZooKeeper server that leads."""
    found = EmbeddedZooKeeper.found_in(cluster.directory / "zookeeper")
    assert found is not None
    (pid,) = [server.pid for server in found.servers if server.mode() == "leader"]
    assert pid is not None
    return pid


def partition_state(truth: Session, topic: str, partition: int = 0) -> PartitionState:
    wanted = TopicPartition(topic, partition)
    return Reading(truth).partitions([wanted])[wanted].state


def epochs(cluster: sr.LocalCluster) -> dict[int, int]:
    return {broker: info.epoch for broker, info in cluster.brokers.items()}


def controller_epoch(truth: Session) -> int:
    node = truth.read_now(paths.CONTROLLER_EPOCH)
    assert node is not None
    return node.version


def new_producers(cluster: sr.LocalCluster) -> int:
    """How many there are if each broker is asked for one."""
    numbers = set()
    for broker in cluster.brokers.values():
        with cluster.security.client(f"{broker.host}:{broker.port}") as client:
            numbers.add(call(client, INIT_PRODUCER, InitProducer(), 5_000).producer)
    return len(numbers)


def test_the_leader_of_the_ensemble_is_killed_and_nobody_waits_for_it(cluster: sr.LocalCluster, topic: str) -> None:
    with Witness(cluster, topic, PARTITIONS) as witness:
        with Load(cluster.zookeeper, topic, PARTITIONS) as load:
            load.wait_for_more(20)
            before, pids, began = epochs(cluster), cluster.zookeeper_pids, time.monotonic()
            killed = leader_among(cluster)
            kill(killed)
            cluster.admin.create_topic(f"{topic}.after", SCHEMA, partitions=PARTITIONS)
            assert time.monotonic() - began < 20, "two servers are enough for a topic"
            load.wait_for_more(100)
            assert load.longest_wait_s(began) < STALL_S_MAX
            cluster.wait_healthy()
            assert epochs(cluster) == before, "sessions went on with the other servers"
            produce_until(load, lambda: len(cluster.zookeeper_pids) == SERVERS, "the killed server is back")
            assert len(set(cluster.zookeeper_pids) & set(pids)) == SERVERS - 1
            load.wait_for_more(20)
        load.check_history()
        witness.check(load)


def test_zookeeper_is_away_for_20_s_which_no_session_ends_by(
    cluster: sr.LocalCluster, topic: str, truth: Session
) -> None:
    """Longer than a session may be silent; but only ZooKeeper ends one, and it counts from when it is back (B2)."""
    with Witness(cluster, topic, PARTITIONS) as witness:
        with Load(cluster.zookeeper, topic, PARTITIONS) as load:
            load.wait_for_more(20)
            before, controllers = epochs(cluster), controller_epoch(truth)
            cluster.kill_zookeeper()
            began = time.monotonic()
            produce_for(load, ZOOKEEPER_AWAY_S)
            assert cluster.zookeeper_pids == []
            with sr.Reader(cluster.bootstrap) as reader:
                assert sum(found.batch.num_rows for found in reader.read(topic, partition=1)) > 100
            assert new_producers(cluster) == len(cluster.brokers), "each broker lets a producer begin"
            cluster.restart_zookeeper()
            cluster.wait_healthy()
            load.wait_for_more(20)
            assert load.longest_wait_s(began) < STALL_S_MAX
            assert (epochs(cluster), controller_epoch(truth)) == (before, controllers)
            cluster.admin.create_topic(f"{topic}.after", SCHEMA, partitions=PARTITIONS)
        load.check_history()
        witness.check(load)


def test_a_leader_that_hung_while_zookeeper_came_back_leads_on_nowhere(
    cluster: sr.LocalCluster, topic: str, truth: Session
) -> None:
    """Its session ends without its knowing: what it is asked for then it must not answer by what it remembers (B2)."""
    hung = partition_state(truth, topic).leader
    assert hung is not None
    broker = cluster.brokers[hung]
    with Witness(cluster, topic, PARTITIONS) as witness:
        with Load(cluster.zookeeper, topic, PARTITIONS) as load:
            load.wait_for_more(20)
            cluster.kill_zookeeper()
            load.wait_for_more(20)
            with stopped(broker.pid):
                cluster.restart_zookeeper()
                load.wait_for_more(20)
                state = partition_state(truth, topic)
                assert state.leader != hung
                assert hung not in Reading(truth).brokers().brokers
            cluster.wait_healthy()
            load.wait_for_more(20)
        load.check_history()
        witness.check(load)
    again = cluster.brokers[hung]
    assert again.pid == broker.pid, "the same process"
    assert again.epoch > broker.epoch, "in another session"


def test_a_leader_killed_while_zookeeper_is_away_comes_back_with_it(
    cluster: sr.LocalCluster, topic: str, truth: Session
) -> None:
    """Nobody can take its place meanwhile, and it cannot register: what it led waits, and is lost to nobody."""
    leader = partition_state(truth, topic).leader
    assert leader is not None
    with Witness(cluster, topic, PARTITIONS) as witness:
        with Load(cluster.zookeeper, topic, PARTITIONS) as load:
            load.wait_for_more(20)
            before = cluster.brokers[leader]
            cluster.kill_zookeeper()
            load.wait_for_more(20)
            kill(before.pid)
            cluster.restart_zookeeper()
            load.wait_for_more(20)
            cluster.wait_healthy()
            load.wait_for_more(20)
        load.check_history()
        witness.check(load)
    assert cluster.brokers[leader].pid != before.pid


def test_a_start_with_another_number_of_servers_is_refused_and_ends_nothing(cluster: sr.LocalCluster) -> None:
    cluster.wait_healthy()
    before = cluster.brokers, cluster.controller_pid, cluster.zookeeper_pids
    with pytest.raises(StartFailed, match="was made with 3 ZooKeeper servers, not 1"):
        sr.LocalCluster.start(brokers=3, directory=cluster.directory)
    assert (cluster.brokers, cluster.controller_pid, cluster.zookeeper_pids) == before


def test_who_holds_the_cluster_may_lose_its_session_and_still_finds_the_next_controller(
    cluster: sr.LocalCluster,
) -> None:
    """A notebook that was stopped for longer than its session lasts, say."""
    assert cluster._store is not None
    expire(cluster._store._session)
    before = cluster.controller_pid
    assert before is not None
    kill(before)
    cluster.wait_healthy()
    assert cluster.controller_pid != before


def test_a_minute_without_a_controller(cluster: sr.LocalCluster, topic: str, truth: Session) -> None:
    """Production goes on, and a follower that stops leaves the ISR and comes back: once within its session, once after
    that has ended. Nobody starts another controller: the one that hangs holds its lock."""
    leaders = {partition_state(truth, topic, partition).leader for partition in range(PARTITIONS)}
    (follower,) = set(cluster.brokers) - leaders
    broker, commanded = cluster.brokers[follower], controller_epoch(truth)

    def in_sync() -> bool:
        return all(follower in partition_state(truth, topic, partition).isr for partition in range(PARTITIONS))

    def out_of_sync() -> bool:
        return all(follower not in partition_state(truth, topic, partition).isr for partition in range(PARTITIONS))

    def registered() -> int | None:
        found = Reading(truth).brokers().brokers.get(follower)
        return None if found is None else found.epoch

    with Witness(cluster, topic, PARTITIONS) as witness:
        with Load(cluster.zookeeper, topic, PARTITIONS) as load, stopped(cluster.controller_pid):
            began = time.monotonic()
            produce_until(load, lambda: truth.read_now(paths.CONTROLLER) is None, "the controller's session ends")
            with stopped(broker.pid):
                produce_until(load, out_of_sync, "the follower leaves the ISR")
                load.wait_for_more(20)
            produce_until(load, in_sync, "the follower comes back")
            assert registered() == broker.epoch, "in the same session"
            with stopped(broker.pid):
                produce_until(load, lambda: registered() is None, "the follower's session ends")
                produce_until(load, out_of_sync, "the follower leaves the ISR")
            produce_until(load, in_sync, "the follower comes back")
            again = registered()
            assert again is not None
            assert again > broker.epoch, "in another session"
            produce_for(load, began + HEADLESS_S - time.monotonic())
            # A follower that says nothing holds acknowledgements up for as long as it may lag, and no longer.
            assert load.longest_wait_s(began) < LAG_S + STALL_S_MAX
            assert controller_epoch(truth) == commanded
            assert truth.read_now(paths.CONTROLLER) is None
            with pytest.raises(ReplicationError) as refused:
                sr.Admin(cluster.bootstrap, deadline_ms=2_000).create_topic(f"{topic}.none", SCHEMA)
            assert refused.value.retriable
        cluster.wait_healthy()
        assert controller_epoch(truth) > commanded
        load.check_history()
        witness.check(load)
