"""Who leads (L1), or what a leaderless partition waits for (L4). An election says how it was made (L3).

Order: live ISR members in assignment order; then live ELR members in assignment order; then what the strategy allows.
A live replica is registered and not shutting down. Nothing here changes a state: partition_change does, with the
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from spark_replication.config import RecoveryStrategy
from spark_replication.model import BrokerId, PartitionState

How = Literal["isr", "elr"]
Reason = Literal["fenced_elr", "manual", "last_known_elr", "last_known_leader", "log_info"]


class Elected(msgspec.Struct, frozen=True):
    leader: BrokerId
    how: How


class Waiting(msgspec.Struct, frozen=True):
    """The partition has no leader, and this is what would give it one."""

    reason: Reason


def elect(
    replicas: Sequence[BrokerId], state: PartitionState, electable: frozenset[BrokerId], strategy: RecoveryStrategy
) -> Elected | Waiting:
    """For a state whose ISR and ELR hold no void member: those are to be dropped first (I8)."""
    for member in replicas:
        if member in state.isr and member in electable:
            return Elected(member, "isr")
    for member in replicas:
        if member in state.elr and member in electable:
            return Elected(member, "elr")
    return Waiting(_reason(replicas, state, electable, strategy))


def _reason(
    replicas: Sequence[BrokerId], state: PartitionState, electable: frozenset[BrokerId], strategy: RecoveryStrategy
) -> Reason:
    if strategy == "proactive":
        return "log_info"
    if state.members:
        # Whoever is in the ELR holds every acknowledged record: waiting loses none, whatever else could lead now.
        return "fenced_elr"
    if strategy == "manual":
        return "manual"
    if state.last_known_elr:
        return "log_info" if state.last_known_elr <= electable else "last_known_elr"
    if state.last_known_leader is not None:
        return "log_info" if state.last_known_leader in electable else "last_known_leader"
    return "log_info" if electable.issuperset(replicas) else "last_known_elr"
