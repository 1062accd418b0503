"""Guardians on several hosts, placed by dice: whatever hosts a submission gets, no broker is stranded and none is made
without need.

The decisions are the real ones; hosts, Spark's dice and brokers are a small model of what surrounds them.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spark_replication.core.guardianship import (
    FoundDirectory,
    Gathered,
    GuardianDuty,
    Placement,
    Sight,
    assign,
    guardians_for,
    kept_by,
    preferred_hosts,
    why_gather_again,
)
from spark_replication.model import BrokerId

WANTED = 3
SEEDS = 2_000
SUBMISSIONS = 5
GATHERINGS_MAX = 5  # until each broker on a host with a slot has a guardian there, if Spark does as it is asked


class World:
    """hosts: by name, how many slots Spark has there. directories: by host. obeys: how often Spark places guardians
    where they had better be. All brokers hold data once they have been made."""

    def __init__(self, seed: int, hosts: int, *, obeys: float) -> None:
        self.dice = random.Random(seed)
        self.hosts = {f"host-{number}": self.dice.choice((1, 1, 2)) for number in range(hosts)}
        self.directories: dict[str, set[BrokerId]] = {host: set() for host in self.hosts}
        self.live: set[BrokerId] = set()
        self.ids: list[BrokerId] = []
        self.obeys = obeys
        self.looked: dict[str, frozenset[BrokerId]] = {}
        self.attempts = 0
        self.kept: frozenset[BrokerId] = frozenset()
        self.gathered = Gathered(size=0, guarded={})

    def placement(self) -> Placement:
        """As a driver has it: what guardians have told of the hosts that they were on, and what ZooKeeper says of those
        that are registered."""
        homes = {}
        for broker in self.ids:
            (home,) = [host for host, found in self.directories.items() if broker in found]
            is_told = broker in self.live or broker in self.looked.get(home, ())
            homes[broker] = home if is_told else ""
        return Placement(total=sum(self.hosts.values()), slots=self.hosts, homes=homes, looked=frozenset(self.looked))

    def restart_driver(self) -> None:
        """The next has no guardians yet, and has heard of none."""
        self.looked = {}
        self.submit()

    def submit(self) -> None:
        known = self.placement()
        size = guardians_for(WANTED, known.total, len(self.ids))
        hosts = self._placed(preferred_hosts(known, size), size)
        sights = {}
        for number, host in enumerate(hosts):
            self.attempts += 1
            found = tuple(FoundDirectory(each, each in self.live) for each in sorted(self.directories[host]))
            sights[number] = Sight(host, found, attempt=self.attempts)
        duties = assign(sights, known=tuple(self.ids), wanted=WANTED)
        guarded: dict[int, BrokerId | None] = {}
        for number, duty in duties.items():
            guarded[number] = None if duty is GuardianDuty.IDLE else self._started(duty, hosts[number])
            self.looked[hosts[number]] = frozenset(self.directories[hosts[number]])
        self.gathered = Gathered(size=size, guarded=guarded)
        kept = kept_by(self.live - self.gathered.brokers, guarded)
        self.kept = frozenset(broker for brokers in kept.values() for broker in brokers)

    def _placed(self, preferred: list[str], size: int) -> list[str]:
        if self.dice.random() < self.obeys:
            return preferred
        slots = [host for host, count in self.hosts.items() for _ in range(count)]
        return self.dice.sample(slots, size)

    def _started(self, duty: BrokerId | GuardianDuty, host: str) -> BrokerId:
        broker = len(self.ids) + 1 if isinstance(duty, GuardianDuty) else duty
        if isinstance(duty, GuardianDuty):
            self.ids.append(broker)
            self.directories[host].add(broker)
        self.live.add(broker)
        return broker

    def kill(self) -> None:
        """A broker, and each of the guardians' tasks, which Spark ends with the stage."""
        self.live.discard(self.dice.choice(self.ids))

    def check(self, seed: int) -> None:
        stranded = self.live - self.gathered.brokers - self.kept
        assert not stranded, f"seed {seed}: brokers {stranded} live, and nobody renews their leases"
        assert len(self.ids) == WANTED, f"seed {seed}: {self.ids} were made for {WANTED} that are wanted"
        assert len(self.gathered.brokers) == sum(each is not None for each in self.gathered.guarded.values())


@pytest.mark.parametrize("hosts", [3, 4, 5, 6])
def test_wherever_guardians_are_placed_no_broker_is_stranded_and_none_made_in_vain(hosts: int) -> None:
    for seed in range(SEEDS // 4):
        world = World(seed, hosts, obeys=0.0)
        for _ in range(SUBMISSIONS):
            world.submit()
            world.check(seed)
            if world.dice.random() < 0.5:
                world.restart_driver()


@pytest.mark.parametrize("hosts", [3, 4, 5, 6])
def test_where_spark_does_as_it_is_asked_every_broker_gets_its_guardian_back(hosts: int) -> None:
    """Deaths of brokers, lost drivers and dice now and then included: what only a guardian on its host can start again
    is found, since gathering ends when there is nothing better."""
    for seed in range(SEEDS // 4):
        world = World(seed, hosts, obeys=0.5)
        for _ in range(SUBMISSIONS):
            world.submit()
            world.check(seed)
            world.kill()
            if world.dice.random() < 0.3:
                world.restart_driver()
        world.obeys = 1.0
        gatherings = 0
        while why_gather_again(world.placement(), world.gathered, WANTED):
            gatherings += 1
            assert gatherings <= GATHERINGS_MAX, f"seed {seed}: they gather for ever"
            world.submit()
            world.check(seed)
        room = Counter(world.hosts)
        for broker in world.ids:
            (home,) = [host for host, found in world.directories.items() if broker in found]
            room[home] -= 1
            assert room[home] < 0 or broker in world.gathered.brokers, f"seed {seed}: broker {broker} has no guardian"
