"""Who leads (L1), or what a leaderless partition waits for (L4). An election says how it was made (L3).

| ISR and ELR hold          | recovery enabled, strategy  | recovery not enabled, unclean election |
| ------------------------- | --------------------------- | -------------------------------------- |
| a live member             | this member: ISR before ELR, each in assignment order                |
| members, none live        | proactive: ask all          | enabled: any live replica              |
|                           | else: wait, `fenced_elr`    | else: wait, `fenced_elr`               |
| nobody                    | proactive: ask all          | enabled: any live replica              |
|                           | balanced: ask, once all of  | else: the last known leader            |
|                           |   the last known are live   |                                        |
|                           | manual: wait for a person   |                                        |

Where the topic has a table, whoever is elected from outside ISR and ELR waits until that is sealed, `table` (TB5).

A live replica is registered and not shutting down. Nothing here changes a state: partition_change does, with the
result. unclean_recovery decides whom to ask, and which answer wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from spark_replication.config import RecoveryStrategy, TopicSettings
from spark_replication.model import BrokerId, Count, How, Offset, PartitionState

Reason = Literal["fenced_elr", "manual", "last_known_elr", "last_known_leader", "log_info", "table"]
NOBODY: frozenset[BrokerId] = frozenset()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings of a topic say of elections from outside ISR and ELR."""

    recovery_enabled: bool = True
    strategy: RecoveryStrategy = "balanced"
    unclean_enabled: bool = False

    @classmethod
    def of(cls, settings: TopicSettings, *, recovery_enabled: bool) -> Policy:
        return cls(
            recovery_enabled=recovery_enabled,
            strategy=settings.unclean_recovery_strategy,
            unclean_enabled=settings.unclean_leader_election_enable,
        )


class Elected(msgspec.Struct, frozen=True):
    leader: BrokerId
    how: How
    #: Of an election by logs: below this offset the leader has every acknowledged record. None if nobody knows.
    complete_below: Offset | None = None
    #: Of an election by logs: how many acknowledged records the leader lacks at most. None if nobody knows.
    lacks_max: Count | None = None


class Waiting(msgspec.Struct, frozen=True):
    """What a leaderless partition waits for."""

    reason: Reason
    #: With `log_info`: who must have answered before anybody is elected. If empty, whoever answers in time will do.
    required: frozenset[BrokerId] = NOBODY


def elect(
    replicas: Sequence[BrokerId], state: PartitionState, electable: frozenset[BrokerId], policy: Policy
) -> Elected | Waiting:
    """Elect a leader, or say what the partition waits for. Void members must have been dropped from the state (I8)."""
    return within(replicas, state, electable) or outside(replicas, state, electable, policy)


def within(replicas: Sequence[BrokerId], state: PartitionState, electable: frozenset[BrokerId]) -> Elected | None:
    """Elect a member that holds every acknowledged record: a live one of the ISR, else of the ELR."""
    for member in replicas:
        if member in state.isr and member in electable:
            return Elected(member, "isr")
    for member in replicas:
        if member in state.elr and member in electable:
            return Elected(member, "elr")
    return None


def outside(
    replicas: Sequence[BrokerId], state: PartitionState, electable: frozenset[BrokerId], policy: Policy
) -> Elected | Waiting:
    if policy.recovery_enabled and policy.strategy == "proactive":
        return Waiting("log_info")
    if not policy.recovery_enabled and is_restored(replicas, state):
        # There is no last leader to wait for: logs decide, as with unclean recovery.
        return Waiting("log_info") if policy.unclean_enabled else balanced(replicas, state, electable)
    if not policy.recovery_enabled and policy.unclean_enabled:
        return any_live(replicas, state, electable) or Waiting("fenced_elr" if state.members else "last_known_leader")
    if state.members:
        # Each member of the ELR holds every acknowledged record: waiting for one loses none, whoever else could lead.
        return Waiting("fenced_elr")
    if not policy.recovery_enabled:
        return last_known(state, electable) or Waiting("last_known_leader")
    return Waiting("manual") if policy.strategy == "manual" else balanced(replicas, state, electable)


def is_restored(replicas: Sequence[BrokerId], state: PartitionState) -> bool:
    """Whether this is `partition_change.restored`, and nothing since: any replica may hold the last records, and nobody
    knows who led it last."""
    return state.last_known_leader is None and state.last_known_elr >= frozenset(replicas)


def any_live(replicas: Sequence[BrokerId], state: PartitionState, electable: frozenset[BrokerId]) -> Elected | None:
    """Elect the last known leader if it is live, else the first live replica in assignment order. Either may lack
    acknowledged records."""
    preferred = [state.last_known_leader] if state.last_known_leader in replicas else []
    for replica in (*preferred, *replicas):
        if replica in electable:
            return Elected(replica, "unclean")
    return None


def last_known(state: PartitionState, electable: frozenset[BrokerId]) -> Elected | None:
    leader = state.last_known_leader
    if leader is None or leader not in electable:
        return None
    return Elected(leader, "last_known_leader")


def balanced(replicas: Sequence[BrokerId], state: PartitionState, electable: frozenset[BrokerId]) -> Waiting:
    """Wait until all replicas that may hold the longest log are live, as far as they are known; then for their logs."""
    reason: Reason = "last_known_elr"
    if state.last_known_elr:
        required = state.last_known_elr
    elif state.last_known_leader is not None:
        required, reason = frozenset({state.last_known_leader}), "last_known_leader"
    else:
        required = frozenset(replicas)
    return Waiting("log_info", required) if required <= electable else Waiting(reason)
