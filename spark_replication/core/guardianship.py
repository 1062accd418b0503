"""How many guardians there can be, which hosts suit them, and which broker each one takes: a live orphan, else a
directory without a process, else a new id.

Rules:
- Every guardian computes the whole assignment, from what all guardians found and what the driver told them, and follows
  its own line. So two guardians on one host, which see the same directories, never take the same one. Should they see
  different ones, the lock of the directory decides.
- A new id is taken only while fewer brokers are known (registered, or assigned anything) than are wanted. A guardian
  whose host has no directory to take idles: another host has the directory.
- Sets of brokers are compared, never counts: Spark places guardians on other hosts each time.
- A registered broker without a guardian is kept: a guardian elsewhere renews its lease. A broker that holds nothing is
  not kept while there are more brokers than wanted: it stops with its lease.
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
    """What one guardian found on its host."""

    host: str
    directories: tuple[FoundDirectory, ...]
    #: Differs between guardians that cannot reach each other by 127.0.0.1.
    loopback: str = ""
    #: The attempt of its lease.
    attempt: int = 0


class GuardianDuty(enum.Enum):
    """What a guardian does if its host has no directory for it."""

    NEW_BROKER = "starts a broker with a new id"
    IDLE = "idles"


def assign(
    sights: Mapping[int, Sight], *, known: Collection[BrokerId], wanted: int
) -> dict[int, BrokerId | GuardianDuty]:
    """The broker that each guardian adopts or restarts, or its duty.

    Live brokers come first, since one without a guardian is only kept, then known ones; lower ids first, so that all
    guardians agree. The directory of an unknown broker holds nothing that is assigned: it is taken only where a new id
    would be. While as many brokers are known as are wanted, a live unknown one is left to the end of its lease: it was
    let go.
    """
    taken: set[tuple[str, BrokerId]] = set()
    counted = set(known)
    assigned: dict[int, BrokerId | GuardianDuty] = {}

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
            assigned[guardian] = GuardianDuty.NEW_BROKER if is_new else GuardianDuty.IDLE
            made += is_new
    return dict(sorted(assigned.items()))


def guardians_for(brokers: int, slots: int, known: int = 0) -> int:
    """The number of guardians: one a broker, as far as Spark has slots, since a barrier stage of more tasks than slots
    starts none. 0 if Spark has no executor yet. Brokers that are known beyond those wanted get guardians too, but leave
    one slot to other jobs."""
    return min(max(brokers, min(known, slots - 1)), slots)


def must_step_aside(*, slots: int, unchanged_s: float, lease_ms: int) -> bool:
    """Whether this driver must make way for another: without slots it renews no leases, while another driver may have
    some. `unchanged_s`: for how long Spark has had this number of slots."""
    return slots == 0 and lease_ms > 0 and unchanged_s > lease_ms / 1_000 * WITHOUT_SLOTS_OF_LEASE


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver knows of where brokers are."""

    #: How many tasks Spark can run.
    total: int
    #: The slots of each host, as far as Spark says where they are.
    slots: Mapping[str, int]
    #: The host that has the directory of each known broker; empty if nobody knows.
    homes: Mapping[BrokerId, str]
    #: The hosts on which a guardian has looked for directories.
    looked: frozenset[str] = frozenset()

    def lost(self) -> list[BrokerId]:
        """The known brokers that are on no host with an executor, as far as guardians have looked."""
        return [broker for broker, host in sorted(self.homes.items()) if host not in self.slots]


def preferred_hosts(placement: Placement, guardians: int) -> list[str]:
    """A host for each guardian: first the hosts of known brokers, then unseen hosts where a lost broker may be, then
    those with the fewest guardians and the most room."""
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
    """One submission of guardians."""

    #: How many guardians it has.
    size: int
    #: The broker of each guardian that has reported; None if the guardian idles.
    guarded: Mapping[int, BrokerId | None]

    @property
    def brokers(self) -> frozenset[BrokerId]:
        return frozenset(broker for broker in self.guarded.values() if broker is not None)


def why_gather_again(placement: Placement, gathered: Gathered, brokers: int) -> str:
    """Why the guardians are to be submitted again; empty if there is no reason. A submission whose guardians all report
    is left alone when slots go: if one of its own was among them, Spark ends it."""
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
    """The brokers that each guardian keeps beside its own. All are kept as soon as there is one guardian."""
    order: Sequence[int] = sorted(guardians)
    strays = sorted(unguarded)
    return {number: tuple(strays[place :: len(order)]) for place, number in enumerate(order)}


class Patience:
    """How long to wait for a start: as long as it makes progress, however slow its machines are."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._most = 0
        self._since_s = now_s

    def ends(self, *, brokers: int, slots: int, guarding: int, now_s: float) -> bool:
        """Whether the number of slots and of guardians at work has set no new record for the whole timeout. Slots that
        come and go are no progress."""
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
    """Which slots, guardians and brokers are lacking, though all guardians that there can be are at work or idle."""
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
    """How many brokers are not guarded yet, as a problem; empty if none. `serving` are those whose guardians have said
    where they serve: a broker may register before that, and nobody can be sent to it meanwhile. `failure` is that of
    the last submission of guardians, if it failed."""
    lacking = brokers - len(set(registered) & set(serving))
    why = f" ({failure})" if failure else ""
    return [f"{lacking} of {brokers} brokers are not guarded yet{why}"] if lacking > 0 else []


def check_reach(loopbacks: Iterable[str], driver: str, *, may_leave_loopback: bool, zookeeper_embedded: bool) -> None:
    """Raise InvalidConfig if guardians are not on the driver's host, and what they share serves loopback only."""
    if set(loopbacks) <= {driver}:
        return
    where = "executors are on other hosts than the driver, or than each other"
    if not may_leave_loopback:
        raise InvalidConfig(
            f"{where}, and only loopback is served where clients need not prove who they are, or would send a token in "
            "the clear: set security.mode=tls with security.tls.mutual=true or a token, or security.mode=token with "
            "security.token.in.clear=true if nobody listens on the network, or run all of it on one host"
        )
    if zookeeper_embedded:
        raise InvalidConfig(
            f"{where}, and the embedded ZooKeeper serves the driver's loopback only: set zookeeper.connect to one that "
            "all of them reach"
        )
