"""How many guardians there can be, and which broker each takes: a live orphan, else a directory without a process, else
a new id.

Every guardian computes the latter from what all of them found, and reads only its own line: so two on one host, who see
the same directories, never take one twice. Where their sights differ all the same, the directory's lock decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from spark_replication.errors import InvalidConfig
from spark_replication.model import BrokerId


class FoundDirectory(msgspec.Struct, frozen=True):
    broker_id: BrokerId
    alive: bool


class Sight(msgspec.Struct, frozen=True):
    """What one guardian found on its host. loopback: differs between those who cannot reach each other by 127.0.0.1."""

    host: str
    directories: tuple[FoundDirectory, ...]
    loopback: str = ""


def assign(sights: Mapping[int, Sight]) -> dict[int, BrokerId | None]:
    """By guardian, the broker it adopts or restarts; None: a new one.

    Live ones first: one that nobody guards would stop with its lease. Lower ids first, so that all agree.
    """
    taken: set[tuple[str, BrokerId]] = set()
    assigned: dict[int, BrokerId | None] = {}
    for guardian, sight in sorted(sights.items()):
        free = [found for found in sight.directories if (sight.host, found.broker_id) not in taken]
        best = min(free, key=lambda found: (not found.alive, found.broker_id), default=None)
        assigned[guardian] = None if best is None else best.broker_id
        if best is not None:
            taken.add((sight.host, best.broker_id))
    return assigned


def guardians_for(brokers: int, slots: int) -> int:
    """One a broker, as far as Spark has slots: a barrier stage of more would start none. 0: it has no executor yet."""
    return min(brokers, slots)


def must_gather_again(*, brokers: int, slots: int, guardians: int, reporting: int) -> bool:
    """Of a submission of so many guardians: more can be had, or it waits for slots that are gone. One whose guardians
    all report is left alone when slots go: Spark ends it, if one of theirs was among them."""
    if guardians_for(brokers, slots) > guardians:
        return True
    return slots < guardians and reporting < guardians


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


def shortages(*, brokers: int, slots: int, guarded: Iterable[BrokerId], registered: Iterable[BrokerId]) -> list[str]:
    """What goes on unguarded, or not at all, though all guardians that there can be are at work."""
    at_work = set(guarded)
    if len(at_work) < guardians_for(brokers, slots):
        return []
    found = []
    if slots < brokers:
        found.append(
            f"Spark has {slots} slots for the guardians of {brokers} brokers: add executors or cores, and the fleet "
            "takes them"
        )
    found.extend(
        f"broker {broker} serves unguarded: nobody starts it again, and it stops when its lease runs out"
        for broker in sorted(set(registered) - at_work)
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
