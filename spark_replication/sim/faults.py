"""The fault schedule of a run: values made up front from the seed, so that a shrink can leave some out and run again.

A fault names what happens and when. Its `pick` decides at that moment whom it hits (a number, modulo how many it can
hit), so that a schedule with fewer faults still makes sense.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

START_MS = 250


class Fault(msgspec.Struct, frozen=True):
    at_ms: int
    kind: str
    pick: int = 0
    #: How long it lasts, for the kinds that last.
    for_ms: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.pick}) at {self.at_ms} ms" + (f" for {self.for_ms} ms" if self.for_ms else "")


# How often each kind comes beside the others. LASTING says how long it lasts, in ms.
BROKERS = {
    "kill": 6,
    "kill_leader": 6,
    "torn_write": 4,
    "power_loss": 4,
    "power_loss_leader": 4,
    "pause": 4,
    "slow_disk": 2,
    "full_disk": 2,
    "failing_sync": 2,
    "controlled_stop": 4,
    "clock_skew": 2,
    "power_loss_all": 2,
    "flapping_leader": 3,
    "late_log_info": 4,
}
NETWORK = {"message_loss": 4, "delay": 4, "partition": 4, "one_way_partition": 5, "cut_follower": 5}
ZOOKEEPER = {
    "session_expiry": 4,
    "disconnection": 4,
    "lost_answer": 4,
    "late_write": 4,
    "registration_removed": 2,
}
CONTROLLER = {"controller_crash": 4, "controller_crash_writing": 5, "controller_ousted": 4, "no_controller": 3}
ADMIN = {
    "create_topic": 2,
    "delete_topic": 2,
    "remake_topic": 2,
    "widen_topic": 4,
    "add_partitions": 2,
    "remove_partitions": 2,
    "readd_partitions": 3,
    "reassign": 6,
    "cancel_reassignment": 3,
    "elect_preferred": 4,
    "elect_unclean": 3,
    "elect_proactive": 2,
    "elect_balanced": 2,
    "elect_designated": 3,
    "min_isr": 6,
    "strategy": 4,
    "recovery_enabled": 3,
}
KINDS: Mapping[str, int] = {**BROKERS, **NETWORK, **ZOOKEEPER, **CONTROLLER, **ADMIN}
#: Kinds that come in some runs of every mix: in how many, and how often at most in one of them.
APART: Mapping[str, tuple[float, int]] = {
    "garbage": (0.3, 3),
    "stop_all": (0.15, 1),
    "zookeeper_down": (0.1, 1),
    "restored_checkpoint": (0.5, 3),
    "rot": (0.15, 3),
    "removed_state": (0.15, 2),
    "acknowledge_loss": (0.1, 3),
    "stray_nodes": (0.4, 2),
    "lost_folder": (0.2, 2),
    "no_request": (0.15, 2),
    "ousted_writing": (0.3, 2),
}
# Of the world of guardians, which has no records: what keeps brokers' processes, and takes them for what they are.
GUARDIANS = {
    "kill_broker": 4,
    "hang_broker": 4,
    "refuse_start": 2,
    "kill_guardian": 4,
    "pause_guardian": 4,
    "forget_guardian": 4,
    "cut_driver": 4,
    "cut_hosts": 3,
    "lose_host": 5,
    "lose_slots": 3,
    "decommission": 3,
    "late_job": 3,
    "lost_job": 3,
    "kill_driver": 4,
    "pause_driver": 4,
}
# Of members of consumer groups.
MEMBERS = {"kill_member": 6, "pause_member": 8, "leave_member": 4}
# Of the writers of topics' tables, the store that has these, and people who make topics again of them.
WRITERS = {"pause_writer": 8, "tables_away": 4, "restore_topic": 8}
FAULTS = (*KINDS, *APART, *GUARDIANS, *MEMBERS, *WRITERS)
LASTING = {
    "kill": (20, 1200),
    "kill_leader": (20, 1200),
    "torn_write": (20, 400),
    "power_loss": (30, 900),
    "power_loss_leader": (30, 900),
    "power_loss_all": (30, 500),
    "pause": (60, 1100),
    "slow_disk": (200, 900),
    "full_disk": (200, 900),
    "failing_sync": (200, 900),
    "controlled_stop": (20, 700),
    "clock_skew": (300, 1500),
    "flapping_leader": (15, 60),
    "late_log_info": (60, 200),
    "message_loss": (100, 700),
    "delay": (200, 1000),
    "partition": (150, 1100),
    "one_way_partition": (150, 1100),
    "cut_follower": (500, 1200),
    "disconnection": (60, 1100),
    "late_write": (60, 420),
    "controller_crash": (50, 900),
    "controller_crash_writing": (50, 900),
    "controller_ousted": (0, 0),
    "no_controller": (500, 1600),
    "garbage": (200, 1500),
    "stop_all": (20, 700),
    "zookeeper_down": (60, 1100),
    "restored_checkpoint": (0, 0),
    "rot": (0, 0),
    "removed_state": (50, 900),
    "acknowledge_loss": (0, 0),
    "stray_nodes": (0, 0),
    "lost_folder": (200, 1500),
    "no_request": (200, 1500),
    "ousted_writing": (40, 300),
    "hang_broker": (1_000, 150_000),
    "refuse_start": (1_000, 40_000),
    "pause_guardian": (500, 90_000),
    "cut_driver": (1_000, 60_000),
    "cut_hosts": (1_000, 60_000),
    "lose_host": (1_000, 400_000),
    "lose_slots": (1_000, 400_000),
    "decommission": (5_000, 100_000),
    "kill_driver": (1_000, 90_000),
    "pause_driver": (500, 60_000),
    "pause_member": (50, 2_000),
    "pause_writer": (50, 3_000),
    "tables_away": (50, 1_500),
}


class Profile(msgspec.Struct, frozen=True):
    """A mix of faults."""

    #: How often each kind comes beside the others.
    weights: Mapping[str, int]
    #: The least and the most faults of a run.
    faults: tuple[int, int] = (9, 21)
    story_ms: int = 3_000
    #: Whether only queries or jobs write.
    queries: bool = False
    #: Whether consumer groups read.
    groups: bool = False
    #: Whether topics are tables, too.
    tables: bool = False
    #: Whether this is a story of guardians, in a world of their own.
    guardians: bool = False


def _mix(*heavy: Mapping[str, int], by: int = 6) -> Profile:
    return Profile(
        {kind: weight * (by if any(kind in group for group in heavy) else 1) for kind, weight in KINDS.items()}
    )


_POWER = {name: BROKERS[name] for name in ("power_loss", "power_loss_leader", "power_loss_all", "late_log_info")}
_SEGMENTS = {name: KINDS[name] for name in ("power_loss", "power_loss_leader", "power_loss_all", "widen_topic")}
_CUTS = {name: KINDS[name] for name in ("power_loss", "power_loss_leader", "late_log_info")}
_CUTS |= {name: KINDS[name] for name in ("cut_follower", "kill_leader", "elect_unclean")}
#: Nothing that may cost committed records, or makes topics again: groups say nothing of that.
_OF_GROUPS = {**BROKERS, **NETWORK, **ZOOKEEPER, **CONTROLLER}
_OF_GROUPS |= {kind: ADMIN[kind] for kind in ("reassign", "cancel_reassignment", "elect_preferred", "min_isr")}
_OF_GROUPS |= {**MEMBERS, "add_partitions": 2}
#: What makes leaders from outside ISR and ELR, partitions that are added again, and logs that part.
_OF_TABLES = {**KINDS, **WRITERS, "readd_partitions": 8, "elect_unclean": 8, "elect_designated": 6, "strategy": 6}
_OF_TABLES |= {"kill_leader": 16, "cut_follower": 20, "power_loss_leader": 12, "pause": 12, "disconnection": 16}
_SYNCS = {name: KINDS[name] for name in ("power_loss", "power_loss_leader", "power_loss_all", "failing_sync")}
_RESTARTS = {name: BROKERS[name] for name in ("kill", "kill_leader", "torn_write", "flapping_leader")}
PROFILES: Mapping[str, Profile] = {
    "mixed": Profile(KINDS),
    "power": _mix(_POWER),
    "segments": _mix(_SEGMENTS, by=30),  # losses of power just after a segment has begun
    "cuts": _mix(_CUTS, by=30),  # losses of power as a follower cuts what is not on a new leader's log
    "syncs": _mix(_SYNCS, by=30),
    "network": _mix(NETWORK),
    "zookeeper": _mix(ZOOKEEPER),
    "controller": _mix(CONTROLLER),
    "admin": _mix(ADMIN),
    "restarts": _mix(_RESTARTS, {"no_controller": 3, "late_write": 4}),
    "queries": Profile(KINDS, queries=True),
    "groups": Profile(_OF_GROUPS, faults=(6, 18), story_ms=3_500, groups=True),
    "tables": Profile(_OF_TABLES, faults=(6, 18), story_ms=3_500, tables=True),
    "guardians": Profile(GUARDIANS, faults=(4, 16), story_ms=240_000, guardians=True),
}
DRAWN = "drawn"  # a mix drawn for each seed: a break may need kinds that nobody has thought of together
MIXES = (*PROFILES, DRAWN)
DEFAULT = "default"
_TAKING_TURNS = (
    *("mixed", "segments", "power", "cuts", "syncs", "network", "restarts", "zookeeper", "controller", "admin"),
    DRAWN,
)


def profile_of(name: str, seed: int) -> Profile:
    """The mix of this name. For `default`, seeds take turns, so that any range of them meets every mix."""
    mix = _TAKING_TURNS[seed % len(_TAKING_TURNS)] if name == DEFAULT else name
    return _drawn(seed) if mix == DRAWN else PROFILES[mix]


def _drawn(seed: int) -> Profile:
    rng = random.Random(f"{seed}/mix")
    return _mix({kind: KINDS[kind] for kind in rng.sample(list(KINDS), rng.randint(2, 4))}, by=30)


def _apart(kind: str, seed: int, profile: Profile) -> list[Fault]:
    """The faults of a kind of APART. Drawing them apart changes no other fault of a seed."""
    share, most = APART[kind]
    rng = random.Random(f"{seed}/{kind}")
    count = rng.randint(1, most) if rng.random() < share else 0
    return [
        Fault(
            START_MS + int(rng.random() * profile.story_ms), kind, rng.randrange(1 << 16), rng.randint(*LASTING[kind])
        )
        for _ in range(count)
    ]


def schedule(seed: int, profile: Profile) -> list[Fault]:
    rng = random.Random(f"{seed}/faults")
    kinds, weights = list(profile.weights), list(profile.weights.values())
    faults = []
    for kind in rng.choices(kinds, weights, k=rng.randint(*profile.faults)):
        at_ms = START_MS + int(rng.random() * profile.story_ms)
        faults.append(Fault(at_ms, kind, rng.randrange(1 << 16), rng.randint(*LASTING.get(kind, (0, 0)))))
    for kind in () if profile.guardians else APART:
        faults += _apart(kind, seed, profile)
    return sorted(faults, key=lambda fault: (fault.at_ms, fault.kind, fault.pick))
