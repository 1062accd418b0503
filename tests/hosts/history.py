"""Random faults over a bed of hosts, and the history of what was acknowledged meanwhile.

python -m tests.hosts.history --minutes 30 [--seed N]

Prints the seed and each fault. Exit code 0: nothing was lost, doubled or out of order, and all came back; else 1.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable

from tests.hosts.bed import Host
from tests.hosts.cluster import ZOOKEEPER, HostedCluster
from tests.hosts.program import carried_out, say, told_bed
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.witness import Witness

CONTROLLERS = ["driver", "standby"]
BROKERS = ["a", "b", "c"]
PARTITIONS = 3
TOPIC = "history"
ROWS = 10
LASTS_S_MAX = 12.0  # a fault: a partition whose leader cannot lead is without one for so long, and clients wait longer
RECOVERS_S = 90.0
TAKE_A_HOST = 2  # so many, the first of the kinds of faults


class Faults:
    """One or two at a time, from when all is well until `end`. At most one takes a disk: two could take what was
    acknowledged on both."""

    def __init__(self, cluster: HostedCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._links = cluster.links
        self._chance = chance
        self._kinds: list[tuple[str, Callable[[int, Host], None]]] = [
            ("loses its power", self._power),
            ("is gone for good", self._destroy),
            ("is cut off from all", lambda _, host: self._links.isolate(host)),
            ("is unplugged", lambda _, host: self._links.unplug(host)),
            ("and ZooKeeper are parted", lambda _, host: self._links.part(host, cluster.bed[ZOOKEEPER])),
            ("does not reach ZooKeeper", lambda _, host: self._links.drop(host, cluster.bed[ZOOKEEPER])),
            ("is not reached by ZooKeeper", lambda _, host: self._links.drop(cluster.bed[ZOOKEEPER], host)),
            ("and another broker are parted", lambda number, host: self._links.part(host, self._other(number))),
            ("does not reach another broker", lambda number, host: self._links.drop(host, self._other(number))),
            ("does not reach clients", lambda _, host: self._links.drop(host, cluster.bed)),
            ("is not reached by clients", lambda _, host: self._links.drop(cluster.bed, host)),
            ("has a slow and lossy link", self._slow),
            ("is well, but the driver is cut off", lambda *_: self._links.isolate(self._controller())),
            ("is well, but the driver and ZooKeeper are parted", self._part_driver),
            ("is not reached by the driver", lambda _, host: self._links.drop(self._controller(), host)),
        ]
        self._away: int | None = None

    def begin(self) -> str:
        numbers = self._chance.sample(sorted(self._cluster.hosts), self._chance.choice([1, 1, 2]))
        return ", and ".join(self._fault(number) for number in numbers)

    def _fault(self, number: int) -> str:
        host = self._cluster.hosts[number]
        name, act = self._chance.choice(self._kinds if self._away is None else self._kinds[TAKE_A_HOST:])
        act(number, host)
        return f"{host.name} {name}"

    def end(self) -> None:
        self._links.mend()
        away, self._away = self._away, None
        if away is not None:
            self._cluster.power_on(away)
            self._cluster.wait_serving(away)

    def _power(self, number: int, _host: Host) -> None:
        self._cluster.power_off(number)
        self._away = number

    def _destroy(self, number: int, host: Host) -> None:
        self._power(number, host)
        shutil.rmtree(host.files)

    def _slow(self, number: int, host: Host) -> None:
        delay_ms = self._chance.choice([5, 20, 50])
        self._links.slow(host, delay_ms=delay_ms, loss_percent=self._chance.choice([0, 1, 2]), seed=number)

    def _part_driver(self, _number: int, _host: Host) -> None:
        self._links.part(self._controller(), self._cluster.bed[ZOOKEEPER])

    def _controller(self) -> Host:
        return self._chance.choice(self._cluster.controllers)

    def _other(self, number: int) -> Host:
        return self._cluster.hosts[self._chance.choice(sorted(self._cluster.hosts.keys() - {number, self._away}))]


def run(seed: int, seconds: float) -> None:
    """AssertionError: what went wrong, after the faults that led to it."""
    with told_bed([ZOOKEEPER, *CONTROLLERS, *BROKERS]) as bed:
        cluster = HostedCluster(bed, controllers=CONTROLLERS, brokers=BROKERS)
        try:
            cluster.admin.create_topic(TOPIC, SCHEMA, partitions=PARTITIONS)
            _fault_after_fault(cluster, random.Random(seed), seconds)
            assert not [host for host in cluster.controllers if "nobody expected" in cluster.process(host).says()]
        finally:
            cluster.close()


def _fault_after_fault(cluster: HostedCluster, chance: random.Random, seconds: float) -> None:
    faults, pause = Faults(cluster, chance), threading.Event()
    ends_at = time.monotonic() + seconds
    with Witness(cluster, TOPIC, PARTITIONS) as witness:
        with Load(cluster.zookeeper, TOPIC, PARTITIONS, cluster.security) as load:
            while time.monotonic() < ends_at:
                fault, lasts_s = faults.begin(), chance.uniform(0.5, LASTS_S_MAX)
                began, before = time.monotonic(), len(load.acknowledged)
                pause.wait(lasts_s)
                meanwhile = len(load.acknowledged) - before
                faults.end()
                load.wait_for_more(ROWS, RECOVERS_S)
                cluster.wait_healthy()
                say(
                    f"{fault} for {lasts_s:.1f} s: {meanwhile} rows meanwhile, longest wait "
                    f"{load.longest_wait_s(began):.1f} s, all well after {time.monotonic() - began:.1f} s"
                )
        load.check_history()
        witness.check(load)
        say(f"{len(load.acknowledged)} rows were acknowledged, and each is there once, in order")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.history", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    options = parser.parse_args()
    return carried_out(f"seed {options.seed}", lambda: run(options.seed, options.minutes * 60))


if __name__ == "__main__":
    sys.exit(main())
