"""How many guardians there can be, where they had better be, and which broker each takes: a live orphan, else a
directory without a process, else a new id.

Rules:
- Every guardian computes the latter from what all of them found and what the driver told them, and reads only its own
  line: so two on one host, who see the same directories, never take one twice. Where their sights differ all the same,
  the directory's lock decides.
- A new id is taken only while fewer brokers are known (registered, or assigned anything) than are wanted. Where a host
  has no directory to take, its guardian idles: another host has it.
- What is compared is sets of brokers, never counts: Spark places guardians on other hosts each time.
- A registered broker without a guardian is kept: a guardian elsewhere renews its lease. But not one that holds nothing
  and is more than are wanted: it stops with its lease.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from spark_replication.errors import InvalidConfig
from spark_replication.model import BrokerId

WITHOUT_SLOTS_OF_LEASE = 1 / 3


class FoundDirectory(msgspec.Struct, frozen=True):
    broker_id: BrokerId
    alive: bool


class Sight(msgspec.Struct, frozen=True):
    """What one guardian found on its host. loopback: differs between those who cannot reach each other by 127.0.0.1.
    attempt: of its lease."""

    host: str
    directories: tuple[FoundDirectory, ...]
    loopback: str = ""
    attempt: int = 0


class Duty(enum.Enum):
    """Of a guardian whose host has no directory for it."""

    NEW_BROKER = "starts a broker with a new id"
    IDLE = "idles"


def assign(sights: Mapping[int, Sight], *, known: Collection[BrokerId], wanted: int) -> dict[int, BrokerId | Duty]:
    """By guardian, the broker it adopts or restarts.

    Live ones first: one that nobody guards is but kept. Then those that are known. Lower ids first, so that all agree.
    A directory that is not known holds nothing that is assigned: its broker is as good as a new one, and made as
    seldom. While as many are known as are wanted, one that lives is left to the end of its lease: it was let go.
    """
    taken: set[tuple[str, BrokerId]] = set()
    counted = set(known)
    assigned: dict[int, BrokerId | Duty] = {}

    def take(guardian: int, sight: Sight, directories: Iterable[FoundDirectory]) -> None:
        free = [found for found in directories if (sight.host, found.broker_id) not in taken]
        if free:
            best = min(free, key=lambda found: (not found.alive, found.broker_id))
            taken.add((sight.host, best.broker_id))
            counted.add(best.broker_id)
            assigned[guardian] = best.broker_id

    for guardian, sight in sorted(sights.items()):
        spare = len(counted) < wanted
        found = [each for each in sight.directories if each.broker_id in known or (each.alive and spare)]
        take(guardian, sight, found)
    made = 0
    for guardian, sight in sorted(sights.items()):
        if guardian not in assigned and len(counted) + made < wanted:
            take(guardian, sight, sight.directories)
        if guardian not in assigned:
            is_new = len(counted) + made < wanted
            assigned[guardian] = Duty.NEW_BROKER if is_new else Duty.IDLE
            made += is_new
    return dict(sorted(assigned.items()))


def guardians_for(brokers: int, slots: int, known: int = 0) -> int:
    """One a broker, as far as Spark has slots: a barrier stage of more would start none. 0: it has no executor yet.
    Where more brokers are known than wanted, they get guardians too, but not the slot that other jobs need."""
    return min(max(brokers, min(known, slots - 1)), slots)


def must_step_aside(*, slots: int, unchanged_s: float, lease_ms: int) -> bool:
    """Nobody renews leases where Spark has no slots, while another driver may have some. unchanged_s: since when it has
    so many."""
    return slots == 0 and lease_ms > 0 and unchanged_s > lease_ms / 1_000 * WITHOUT_SLOTS_OF_LEASE


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver knows of where brokers are.

    total: how many tasks Spark can run; slots: by host, as far as it says where. homes: by known broker, the host that
    has its directory; empty where nobody knows. looked: hosts on which a guardian has looked for directories.
    """

    total: int
    slots: Mapping[str, int]
    homes: Mapping[BrokerId, str]
    looked: frozenset[str] = frozenset()

    def lost(self) -> list[BrokerId]:
        """Known, and on no host that has an executor and was looked at."""
        return [broker for broker, host in sorted(self.homes.items()) if host not in self.slots]


def preferred_hosts(placement: Placement, guardians: int) -> list[str]:
    """A host for each guardian: those of known brokers first, then those where a lost one may be, then those with most
    room."""
    room = Counter(placement.slots)
    chosen: list[str] = []

    def choose(host: str) -> None:
        if room[host] > 0 and len(chosen) < guardians:
            room[host] -= 1
            chosen.append(host)

    for _, host in sorted(placement.homes.items()):
        choose(host)
    unseen = sorted(placement.slots.keys() - placement.looked - set(chosen))
    for host in unseen[: len(placement.lost())]:
        choose(host)
    while len(chosen) < min(guardians, sum(placement.slots.values())):
        taken = Counter(chosen)
        choose(min((host for host in room if room[host] > 0), key=lambda host: (taken[host], -room[host], host)))
    return chosen


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """One submission. size: how many guardians it has. guarded: by guardian that has reported, whom it guards; None: it
    idles."""

    size: int
    guarded: Mapping[int, BrokerId | None]

    @property
    def brokers(self) -> frozenset[BrokerId]:
        return frozenset(broker for broker in self.guarded.values() if broker is not None)


def why_gather_again(placement: Placement, gathered: Gathered, brokers: int) -> str:
    """Empty: there is no reason to. One whose guardians all report is left alone when slots go: Spark ends it, if one
    of theirs was among them."""
    size = guardians_for(brokers, placement.total, len(placement.homes))
    if size > gathered.size:
        return f"Spark has {placement.total} slots, and {gathered.size} guardians are at work"
    reporting = len(gathered.guarded)
    if reporting < gathered.size:
        gone = placement.total < gathered.size
        return f"{gathered.size} guardians wait for slots, and Spark has {placement.total}" if gone else ""
    idle = reporting - len(gathered.brokers)
    if idle and len(placement.homes.keys() | gathered.brokers) < brokers:
        return "fewer brokers are known than wanted, and a guardian idles"
    chosen = preferred_hosts(placement, gathered.size)
    room = Counter(chosen)
    within = [broker for broker, host in sorted(placement.homes.items()) if _takes(room, host)]
    found = gathered.brokers & placement.homes.keys()
    if len(within) > len(found):
        lacking = ", ".join(map(str, sorted(set(within) - found)))
        return f"brokers {lacking} have no guardian, and there are slots on their hosts"
    unseen = set(chosen) - placement.looked
    lost = [broker for broker in placement.lost() if broker not in gathered.brokers]
    if idle and lost and unseen:
        return f"brokers {lost} are on none of the hosts looked at: {', '.join(sorted(unseen))} may have them"
    return ""


def _takes(room: Counter[str], host: str) -> bool:
    room[host] -= 1
    return room[host] >= 0


def kept_by(unguarded: Iterable[BrokerId], guardians: Collection[int]) -> dict[int, tuple[BrokerId, ...]]:
    """By guardian, whom it keeps beside its own: all are kept as soon as there is one guardian."""
    order: Sequence[int] = sorted(guardians)
    strays = sorted(unguarded)
    return {number: tuple(strays[place :: len(order)]) for place, number in enumerate(order)}


class Patience:
    """With a start: it goes on for as long as it gets on, however slow its machines are."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._most = 0
        self._since_s = now_s

    def ends(self, *, brokers: int, slots: int, guarding: int, now_s: float) -> bool:
        """For so long there have not been more slots, or more guardians at work, than ever before. What comes and goes
        again and again is no progress."""
        reached = guardians_for(brokers, slots) + guarding
        if reached > self._most:
            self._most, self._since_s = reached, now_s
        return now_s - self._since_s > self._timeout_s


def shortages(
    *,
    brokers: int,
    slots: int,
    guarded: Iterable[BrokerId],
    registered: Iterable[BrokerId],
    known: Iterable[BrokerId] = (),
    idle: int = 0,
) -> list[str]:
    """What goes on unguarded, or not at all, though all guardians that there can be are at work, or idle."""
    at_work = set(guarded)
    if len(at_work) + idle < guardians_for(brokers, slots):
        return []
    found = []
    if slots < brokers:
        found.append(
            f"Spark has {slots} slots for the guardians of {brokers} brokers: add executors or cores, and the fleet "
            "takes them"
        )
    serving = set(registered)
    found.extend(
        f"broker {broker} has no guardian on its host: one elsewhere renews its lease, and nobody starts it again"
        for broker in sorted(serving - at_work)
    )
    found.extend(
        f"broker {broker} is down, and no guardian is on a host that has its directory: bring that host back, or move "
        "its replicas to others, and a new broker takes its place"
        for broker in sorted(set(known) - serving - at_work)
    )
    return found


def missing(*, brokers: int, registered: Iterable[BrokerId], serving: Iterable[BrokerId], failure: str) -> list[str]:
    """serving: whose guardians have said where. A broker may be registered before its guardian says so, and nobody can
    be sent to it meanwhile. failure: of the guardians' last submission, if it had one."""
    lacking = brokers - len(set(registered) & set(serving))
    why = f" ({failure})" if failure else ""
    return [f"{lacking} of {brokers} brokers are not guarded yet{why}"] if lacking > 0 else []


def check_reach(loopbacks: Iterable[str], driver: str, *, knows_clients: bool, zookeeper_embedded: bool) -> None:
    """InvalidConfig if guardians stand elsewhere than the driver, and what they share serves loopback only."""
    if set(loopbacks) <= {driver}:
        return
    where = "executors are on other hosts than the driver, or than each other"
    if not knows_clients:
        raise InvalidConfig(
            f"{where}, and where clients need not prove who they are only loopback is served: set security.mode to "
            "token, or to tls with security.tls.mutual=true or a token, or run all of it on one host"
        )
    if zookeeper_embedded:
        raise InvalidConfig(
            f"{where}, and the embedded ZooKeeper serves the driver's loopback only: set zookeeper.connect to one that "
            "all of them reach"
        )
