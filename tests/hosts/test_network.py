"""Hosts and links fail under load: nothing that was acknowledged is lost or doubled, and who can serve, serves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from tests.hosts.bed import Bed, Host
from tests.hosts.cluster import SESSION_MS, ZOOKEEPER, HostedCluster
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.waiting import eventually
from tests.live.cluster.witness import Witness

pytestmark = pytest.mark.timeout(180)

CONTROLLERS = ["driver", "standby"]
BROKERS = ["a", "b", "c"]
PARTITIONS = 3
ROWS = 20
# Until others take the place of a host that says nothing: its session, and what a busy machine adds.
TAKEN_OVER_S = SESSION_MS / 1_000 + 6.0
NOBODY_COMMANDS_ROWS = 200  # 5 s or more
UNNOTICED_S = 2.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostedCluster]:
    with Bed([ZOOKEEPER, *CONTROLLERS, *BROKERS]) as bed:
        cluster = HostedCluster(bed, controllers=CONTROLLERS, brokers=BROKERS)
        yield cluster
        said = [cluster.process(host).says() for host in cluster.controllers]
        cluster.close()
    assert not [each for each in said if "nobody expected" in each]


@pytest.fixture
def topic(cluster: HostedCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    cluster.wait_healthy()
    name = str(request.node.name).partition("[")[0]
    cluster.admin.create_topic(name, SCHEMA, partitions=PARTITIONS)
    yield name
    cluster.links.mend()
    cluster.admin.delete_topic(name)


@contextmanager
def watched(cluster: HostedCluster, topic: str, bootstrap: str = "") -> Iterator[Load]:
    """Load, and what must hold once all is mended: nothing lost or doubled, every replica in sync, readers agree."""
    with Witness(cluster, topic, PARTITIONS) as witness:
        with Load(bootstrap or cluster.zookeeper, topic, PARTITIONS, cluster.security) as load:
            load.wait_for_more(ROWS)
            yield load
            cluster.links.mend()
            load.wait_for_more(ROWS)
        cluster.wait_healthy()
        load.check_history()
        witness.check(load)


def leader_of(cluster: HostedCluster, topic: str) -> int:
    leader = cluster.leader(topic)
    assert leader is not None
    return leader


def follower_of(cluster: HostedCluster, topic: str) -> int:
    return min(cluster.partition(topic).state.isr - {leader_of(cluster, topic)})


def test_a_host_that_is_gone_for_good_costs_nothing_that_was_acknowledged(cluster: HostedCluster, topic: str) -> None:
    with watched(cluster, topic) as load:
        leader = leader_of(cluster, topic)
        began = time.monotonic()
        cluster.power_off(leader)
        cluster.hosts[leader].destroy()
        load.wait_for_more(ROWS)
        assert load.longest_wait_s(began) < TAKEN_OVER_S
        assert leader_of(cluster, topic) != leader
        cluster.power_on(leader)  # the same number on an empty disk: it may have nothing that it had
        eventually(lambda: leader in cluster.partition(topic).state.isr, "it has copied all of it")


@pytest.mark.parametrize("silently", [True, False], ids=["silently", "unplugged"])
def test_a_leader_that_is_cut_off_from_everything_is_replaced_and_comes_back(
    cluster: HostedCluster, topic: str, silently: bool
) -> None:
    with watched(cluster, topic) as load:
        leader = leader_of(cluster, topic)
        began = time.monotonic()
        if silently:
            cluster.links.isolate(cluster.hosts[leader])
        else:
            cluster.links.unplug(cluster.hosts[leader])
        load.wait_for_more(ROWS)
        assert load.longest_wait_s(began) < TAKEN_OVER_S
        assert leader_of(cluster, topic) != leader
        cluster.links.mend()
        eventually(lambda: leader in cluster.partition(topic).state.isr, "it is in sync again")


def test_a_leader_that_is_cut_off_from_zookeeper_alone_is_replaced(cluster: HostedCluster, topic: str) -> None:
    with watched(cluster, topic) as load:
        leader = leader_of(cluster, topic)
        began = time.monotonic()
        cluster.links.part(cluster.hosts[leader], cluster.bed[ZOOKEEPER])
        eventually(lambda: cluster.leader(topic) not in (None, leader), "another leads")
        load.wait_for_more(ROWS)
        assert load.longest_wait_s(began) < TAKEN_OVER_S


@pytest.mark.parametrize("way", ["to the follower", "to the leader"])
def test_a_follower_that_its_leader_does_not_reach_leaves_the_isr_and_comes_back(
    cluster: HostedCluster, topic: str, way: str
) -> None:
    with watched(cluster, topic) as load:
        leader, follower = leader_of(cluster, topic), follower_of(cluster, topic)
        one, other = cluster.hosts[leader], cluster.hosts[follower]
        if way == "to the follower":
            cluster.links.drop(one, other)
        else:
            cluster.links.drop(other, one)
        eventually(lambda: follower not in cluster.partition(topic).state.isr, "it lags, and is left behind")
        load.wait_for_more(ROWS)
        assert leader_of(cluster, topic) == leader
        cluster.links.mend()
        eventually(lambda: follower in cluster.partition(topic).state.isr, "it is in sync again")


def commanding(cluster: HostedCluster) -> Host:
    controller = cluster.store.controller()
    assert controller is not None
    (found,) = [host for host in cluster.controllers if controller.address.startswith(f"{host.address}:")]
    return found


def test_a_driver_that_is_cut_off_costs_no_client_anything(cluster: HostedCluster, topic: str) -> None:
    """Neither with another that stands by, nor with all of them away; of those that come back one commands."""
    with watched(cluster, topic, cluster.bootstrap) as load:
        began, first = time.monotonic(), commanding(cluster)
        cluster.links.isolate(first)
        eventually(lambda: cluster.store.controller() is not None and commanding(cluster) != first, "another commands")
        for host in cluster.controllers:
            if host is not first:
                cluster.links.isolate(host)
        eventually(lambda: cluster.store.controller() is None, "nobody commands")
        load.wait_for_more(NOBODY_COMMANDS_ROWS)
        assert load.longest_wait_s(began) < UNNOTICED_S
        cluster.links.mend()
        eventually(lambda: cluster.store.controller() is not None, "one commands")
    cluster.admin.configure(topic, {"retention.ms": 1_000_000})


def test_a_driver_that_is_cut_off_from_zookeeper_alone_commands_no_more(cluster: HostedCluster, topic: str) -> None:
    with watched(cluster, topic) as load:
        began, first = time.monotonic(), commanding(cluster)
        cluster.links.part(first, cluster.bed[ZOOKEEPER])
        eventually(lambda: cluster.store.controller() is not None and commanding(cluster) != first, "another commands")
        cluster.admin.configure(topic, {"retention.ms": 1_000_000})
        load.wait_for_more(ROWS)
        assert load.longest_wait_s(began) < UNNOTICED_S


def test_hosts_whose_clocks_are_ten_minutes_off_cost_nothing(cluster: HostedCluster, topic: str) -> None:
    """Two brokers, one ahead and one behind, and the controller: each leads, and each follows the others."""
    wrong = {cluster.hosts[1]: 600, cluster.hosts[2]: -600, cluster.controllers[0]: 600}
    try:
        with watched(cluster, topic) as load:
            for host, shift_s in wrong.items():
                cluster.set_clock(host, shift_s)
                cluster.restart(host)
                load.wait_for_more(ROWS)
            for number, shift_s in (1, 600), (2, -600):
                first_line = json.loads(cluster.process(cluster.hosts[number]).says().splitlines()[0])
                begun = datetime.fromisoformat(first_line["at"]).timestamp()
                assert abs(begun - shift_s - time.time()) < 120, "its clock is wrong by so much"
            for host in cluster.hosts.values():
                cluster.wait_healthy()
                cluster.restart(host)
                load.wait_for_more(ROWS)
    finally:
        for host in wrong:
            cluster.set_clock(host, 0)
            cluster.restart(host)


def test_slow_and_lossy_links_cost_time_alone(cluster: HostedCluster, topic: str) -> None:
    with watched(cluster, topic) as load:
        for number in cluster.hosts:
            cluster.links.slow(cluster.hosts[number], delay_ms=50, loss_percent=2, seed=number)
        load.wait_for_more(ROWS)
        assert len(cluster.partition(topic).state.isr) == PARTITIONS


def test_clients_of_a_leader_that_does_not_hear_them_go_on_once_it_does(cluster: HostedCluster, topic: str) -> None:
    """Half open: to everybody else it is well, and it leads on; what comes again is stored once."""
    with watched(cluster, topic) as load:
        leader = cluster.hosts[leader_of(cluster, topic)]
        for source, target in ((leader, cluster.bed), (cluster.bed, leader)):
            cluster.links.drop(source, target)
            held_at = len(load.acknowledged)
            eventually(lambda held=held_at: len(load.acknowledged) > held + 10 * ROWS, "others go on")  # type: ignore[misc]
            cluster.links.deliver(source, target)
            load.wait_for_more(ROWS)
