"""S1: every transition, allowed or not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.law.states import PARTITION, REPLICA, State, Transitions, partition_state, retire, walk
from spark_replication.errors import IllegalTransition
from spark_replication.model import BrokerId, PartitionState
from tests.unit.core.stories import state

STATES: tuple[State, ...] = ("nonexistent", "new", "online", "offline")
ALLOWED = {
    ("nonexistent", "new"),
    ("new", "online"),
    ("new", "offline"),
    ("online", "online"),
    ("online", "offline"),
    ("offline", "online"),
    ("offline", "nonexistent"),
}


@pytest.mark.parametrize("machine", [PARTITION, REPLICA])
@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("after", STATES)
def test_only_the_transitions_of_the_table_exist(machine: Transitions, before: State, after: State) -> None:
    if (before, after) in ALLOWED:
        walk(machine, "foo-0", before, after)
    else:
        with pytest.raises(IllegalTransition, match=f"foo-0 cannot go from {before} to {after}"):
            walk(machine, "foo-0", before, after)


def test_an_error_says_where_one_could_go() -> None:
    with pytest.raises(IllegalTransition, match="to nonexistent: from there it goes to offline or online"):
        walk(PARTITION, "foo-0", "nonexistent", "new", "nonexistent")


def test_a_walk_of_one_state_or_none_goes_nowhere() -> None:
    walk(PARTITION, "foo-0")
    walk(PARTITION, "foo-0", "offline")


@pytest.mark.parametrize("machine", [PARTITION, REPLICA])
@pytest.mark.parametrize("before", ["new", "online", "offline"])
def test_everything_that_exists_can_go(machine: Transitions, before: State) -> None:
    retire(machine, "foo-0", before)


@pytest.mark.parametrize("machine", [PARTITION, REPLICA])
def test_what_is_not_there_cannot_go(machine: Transitions) -> None:
    with pytest.raises(IllegalTransition, match="from nonexistent to offline"):
        retire(machine, "foo-0", "nonexistent")


@given(st.lists(st.sampled_from(STATES), max_size=6))
def test_a_walk_is_allowed_where_each_of_its_steps_is(states: list[State]) -> None:
    steps = set(pairwise(states))
    if steps <= ALLOWED:
        walk(REPLICA, "foo-0 on 1", *states)
    else:
        with pytest.raises(IllegalTransition):
            walk(REPLICA, "foo-0 on 1", *states)


@pytest.mark.parametrize(
    ("replicas", "stored", "meant"),
    [
        ((), None, "nonexistent"),
        ((), state(1, [1]), "nonexistent"),  # a tombstone
        ((1,), None, "new"),
        ((1,), state(None, []), "offline"),
        ((1,), state(1, [1]), "online"),
    ],
)
def test_a_partition_is(replicas: tuple[BrokerId, ...], stored: PartitionState | None, meant: State) -> None:
    assert partition_state(replicas, stored) == meant
