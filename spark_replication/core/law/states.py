"""The state machines of partitions and replicas (S1): the tables are the code, and nothing else allows a transition.

States are derived from what is stored and who lives. They are never kept beside it, so they cannot disagree with it.
Code that changes what is stored walks from the state before to the state after. A step that no table has is an error.

A deletion needs no states of its own: its mark in ZooKeeper outlives any controller, and a broker that was dead
quarantines what it holds of a deleted topic when it comes back (B1).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

from spark_replication.errors import IllegalTransition
from spark_replication.model import BrokerId, PartitionState

State = Literal["nonexistent", "new", "online", "offline"]
Transitions = Mapping[State, frozenset[State]]

# The states that may follow each state.
PARTITION: Transitions = {
    "nonexistent": frozenset({"new"}),  # it has replicas, and no leaderAndISR yet
    "new": frozenset({"online", "offline"}),  # online: the first live replica leads, all live ones are in sync
    "online": frozenset({"online", "offline"}),  # online again: another leader, another ISR
    "offline": frozenset({"online", "nonexistent"}),
}
REPLICA: Transitions = {
    "nonexistent": frozenset({"new"}),  # it is told to follow
    "new": frozenset({"online", "offline"}),  # online: it is one of the assigned for good
    "online": frozenset({"online", "offline"}),
    "offline": frozenset({"online", "nonexistent"}),  # nonexistent: it is told to stop, and to delete
}


def walk(machine: Transitions, what: object, *states: State) -> None:
    """Raise IllegalTransition, naming both states, if a step from one to the next is not in the table."""
    for before, after in itertools.pairwise(states):
        if after not in machine[before]:
            raise IllegalTransition(
                f"{what} cannot go from {before} to {after}: from there it goes to {_next(machine, before)}"
            )


def retire(machine: Transitions, what: object, before: State) -> None:
    """Walk to nonexistent, by way of offline."""
    walk(machine, what, *((before, "nonexistent") if before == "offline" else (before, "offline", "nonexistent")))


def _next(machine: Transitions, state: State) -> str:
    return " or ".join(sorted(machine[state]))


def partition_state(replicas: Sequence[BrokerId], state: PartitionState | None) -> State:
    """The state of a partition: `new` if it has replicas and never had a leader, `offline` if it had one."""
    if not replicas:
        return "nonexistent"
    if state is None:
        return "new"
    return "offline" if state.leader is None else "online"
