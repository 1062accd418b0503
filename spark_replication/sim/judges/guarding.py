"""What must hold of guardians, their brokers and their fleets. Rules:

- never two processes of one broker;
- an order of an earlier lease is never carried out, nor is a signal sent for one;
- nor is a signal sent to a process that the guardian does not see: somebody else has its number;
- a broker never loses its lease while somebody minds it who reaches it;
- nor one that is needed while all is well, whether or not its host has a slot: somebody keeps it;
- no new id is taken while as many brokers are known as are wanted;
- once faults end, each broker that is known is guarded where its host has a slot; and a clean stop leaves no process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from spark_replication.engine.guarding.leases import Lease
from spark_replication.model import BrokerId
from spark_replication.sim.world.world import InvariantBroken, World

ONE_PROCESS = "one_process_a_broker"
EARLIER_LEASE = "an_earlier_lease_orders_nothing"
KEPT = "who_is_needed_is_kept"
MINDED = "who_is_minded_keeps_its_lease"
NEW_IDS = "no_new_id_while_enough_are_known"
GUARDED = "every_known_broker_is_guarded_again"
OTHERS = "a_signal_reaches_its_broker_alone"
STOPPED = "a_clean_stop_leaves_no_process"
CALM_MS = 200_000  # within this, guardians are submitted, gather where brokers are, and keep the others
KNOWN_MS = 2_000  # within this, a fleet has heard which brokers hold replicas


class GuardingJudge:
    def __init__(self, world: World) -> None:
        self._world = world
        #: The latest lease that each broker has heard of, by the place where it lives.
        self._latest: dict[str, Lease] = {}
        #: By incarnation: who minds a broker, and since when without a break.
        self._minded: dict[str, dict[str, int]] = defaultdict(dict)

    def carries_out(self, place: str, lease: Lease) -> None:
        """The broker there carries out an order of this lease, or gets a signal for it."""
        latest = self._latest.get(place, lease)
        if lease < latest:
            raise InvariantBroken(EARLIER_LEASE, f"{place} obeys {lease}, and has obeyed {latest}")
        self._latest[place] = lease

    def signals(self, place: str, lease: Lease, *, is_seen: bool) -> None:
        if not is_seen:
            raise InvariantBroken(OTHERS, f"{place} is not seen, and whoever has its number gets a signal")
        self.carries_out(place, lease)

    def minds(self, who: str, incarnation: str) -> None:
        """Somebody whose lease is the broker's, or later, has had it renewed a moment ago."""
        self._minded[incarnation].setdefault(who, self._world.now_ms)

    def minds_no_more(self, who: str) -> None:
        """It has ended, stands still, leaves, or cannot reach all brokers."""
        for each in self._minded.values():
            each.pop(who, None)

    def lets_go(self, who: str, incarnation: str) -> None:
        self._minded[incarnation].pop(who, None)

    def lease_ran_out(self, incarnation: str, broker: BrokerId, lease_ms: int, *, calm_ms: int) -> None:
        """calm_ms: for how long nothing was broken on purpose, if the broker is needed."""
        since = [at_ms for at_ms in self._minded[incarnation].values() if at_ms <= self._world.now_ms - lease_ms]
        if since:
            raise InvariantBroken(MINDED, f"broker {broker} ends with its lease, and was minded since {min(since)} ms")
        if calm_ms > CALM_MS:
            raise InvariantBroken(KEPT, f"broker {broker} ends with its lease, though all was well for {calm_ms} ms")

    def processes(self, brokers: Iterable[BrokerId]) -> None:
        """The brokers of all processes that have a directory's lock."""
        found = sorted(brokers)
        if len(set(found)) < len(found):
            raise InvariantBroken(ONE_PROCESS, f"processes live of brokers {found}")

    def takes_new_id(self, assigned: Mapping[BrokerId, int], wanted: int, known_ms: int) -> None:
        """assigned: the brokers whose directories are on hosts with slots, and since when they hold replicas. known_ms:
        as of when its driver is to know that."""
        known = sorted(broker for broker, since_ms in assigned.items() if since_ms < known_ms - KNOWN_MS)
        if len(known) >= wanted:
            raise InvariantBroken(NEW_IDS, f"a guardian takes a new id, and brokers {known} are known of {wanted}")

    def settled(self, lacking: Iterable[BrokerId], why: str) -> None:
        found = sorted(lacking)
        if found or why:
            raise InvariantBroken(GUARDED, f"brokers {found} have no guardian{why and f': {why}'}")

    def stopped(self, left: Iterable[BrokerId]) -> None:
        found = sorted(left)
        if found:
            raise InvariantBroken(STOPPED, f"processes of brokers {found} live")
