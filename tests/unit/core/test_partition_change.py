"""How a partition's state changes: the table of partition_change, and what holds of every result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.config import RecoveryStrategy
from spark_replication.core.cluster import Brokers
from spark_replication.core.election import Elected, Waiting
from spark_replication.core.partition_change import Settled, created, effective_min_isr, settled, with_isr
from spark_replication.model import BrokerId, PartitionState
from tests.unit.core.stories import REPLICAS, any_brokers, any_state, brokers, state

STRATEGIES: st.SearchStrategy[RecoveryStrategy] = st.sampled_from(["manual", "balanced", "proactive"])


@pytest.mark.parametrize(
    ("before", "isr", "joined", "void", "after"),
    [
        # members leave, ISR >= min
        (state(1, [1, 2, 3]), [1, 2], {}, [], state(1, [1, 2])),
        (state(1, [1, 2, 3], min_isr=1), [1], {}, [2], state(1, [1], min_isr=1)),  # a void one too leaves no trace
        # members leave, ISR < min: together, the leader and the last one too
        (state(1, [1, 2, 3]), [1], {}, [], state(1, [1], elr=[2, 3])),
        (state(1, [1, 2]), [2], {}, [], state(None, [2], elr=[1])),
        (state(1, [1], elr=[2]), [], {}, [], state(None, [], elr=[1, 2])),
        # a void one goes to the last known ELR, out of the ISR and out of the ELR
        (state(1, [1, 2]), [1], {}, [2], state(1, [1], last_known_elr=[2])),
        (state(1, [1], elr=[2, 3]), [1], {}, [2], state(1, [1], elr=[3], last_known_elr=[2])),
        (
            state(1, [1, 2], min_isr=3, last_known_elr=[3]),
            [1],
            {},
            [2],
            state(1, [1], min_isr=3, last_known_elr=[2, 3]),
        ),
        # a follower joins
        (state(1, [1], elr=[2]), [1, 3], {3: 7}, [], state(1, [1, 3], epochs={3: 7})),
        (
            state(1, [1], elr=[2], min_isr=3),
            [1, 3],
            {3: 7},
            [],
            state(1, [1, 3], elr=[2], min_isr=3, epochs={3: 7}),
        ),
        (
            state(1, [1], last_known_elr=[2, 3], min_isr=3),
            [1, 2],
            {2: 5},
            [],
            state(1, [1, 2], last_known_elr=[3], min_isr=3, epochs={2: 5}),
        ),
        # from the ELR, by its fetches: at the epoch of those, or it would stay void where it had been
        (state(1, [1], elr=[2]), [1, 2], {2: 3}, [], state(1, [1, 2], epochs={2: 3})),
        # what is told of those that were in the ISR says nothing
        (state(1, [1, 2]), [1, 2], {1: 8, 2: 8}, [], state(1, [1, 2])),
        (state(1, [1, 2]), [1], {2: 8}, [], state(1, [1], elr=[2])),
    ],
)
def test_the_isr_becomes_this(
    before: PartitionState, isr: list[int], joined: dict[BrokerId, int], void: list[int], after: PartitionState
) -> None:
    assert with_isr(before, frozenset(isr), joined=joined, void=frozenset(void)) == after


@pytest.mark.parametrize(
    ("before", "known", "after"),
    [
        # nothing is called for
        (state(1, [1, 2, 3]), brokers(1, 2, 3), Settled(state(1, [1, 2, 3]), None)),
        (state(1, [1, 2]), brokers(1, 2, shutting_down=[1, 2]), Settled(state(1, [1, 2]), None)),
        (state(None, [], elr=[1]), brokers(2), Settled(state(None, [], elr=[1]), Waiting("fenced_elr"))),
        # a follower dies
        (state(1, [1, 2, 3]), brokers(1, 2), Settled(state(1, [1, 2]), None)),
        # the leader goes, another leads
        (state(1, [1, 2, 3]), brokers(2, 3), Settled(state(2, [2, 3], leader_epoch=5), Elected(2, "isr"))),
        (state(1, [1, 2]), brokers(2), Settled(state(2, [2], elr=[1], leader_epoch=5), Elected(2, "isr"))),
        # the leader goes, nobody leads
        (
            state(1, [1]),
            brokers(2),
            Settled(state(None, [], elr=[1], leader_epoch=5, last_known_leader=1), Waiting("fenced_elr")),
        ),
        (
            state(1, [1, 2]),
            brokers(2, shutting_down=[2]),
            Settled(state(None, [2], elr=[1], leader_epoch=5, last_known_leader=1), Waiting("fenced_elr")),
        ),
        # elected from the ELR: it keeps the epoch at which it joined
        (
            state(None, [], elr=[1, 2], epochs={1: 3}, last_known_leader=2),
            brokers(1, epochs={1: 5}, clean_since={1: 2}),
            Settled(state(1, [1], elr=[2], epochs={1: 3}, leader_epoch=5), Elected(1, "elr")),
        ),
        (
            state(None, [2], elr=[1]),
            brokers(1, 2, shutting_down=[2]),
            Settled(state(1, [1, 2], leader_epoch=5), Elected(1, "elr")),
        ),
        # void: the leader, a follower, a member of the ELR
        (
            state(1, [1, 2]),
            brokers(1, 2, epochs={1: 1}, clean_since={1: 1}),
            Settled(state(2, [2], last_known_elr=[1], leader_epoch=5), Elected(2, "isr")),
        ),
        (
            state(1, [1, 2]),
            brokers(1, 2, epochs={2: 1}, clean_since={2: 1}),
            Settled(state(1, [1], last_known_elr=[2]), None),
        ),
        (
            state(None, [], elr=[1, 2], last_known_leader=1),
            brokers(1, epochs={1: 1}, clean_since={1: 1}),
            Settled(state(None, [], elr=[2], last_known_elr=[1], last_known_leader=1), Waiting("fenced_elr")),
        ),
        # an unclean registration before it joined voids nothing
        (
            state(1, [1, 2], epochs={2: 4}),
            brokers(1, 2, epochs={2: 4}, clean_since={2: 4}),
            Settled(state(1, [1, 2], epochs={2: 4}), None),
        ),
    ],
)
def test_the_state_of_the_brokers_calls_for_this(before: PartitionState, known: Brokers, after: Settled) -> None:
    assert settled((1, 2, 3), before, known, "balanced") == after


@given(data=st.data(), known=any_brokers(), strategy=STRATEGIES)
def test_whatever_happened_the_settled_state_keeps_the_rules(
    data: st.DataObject, known: Brokers, strategy: RecoveryStrategy
) -> None:
    before = data.draw(any_state(known))
    found = settled(REPLICAS, before, known, strategy)
    after = found.state
    void = known.void(after.epochs)

    assert settled(REPLICAS, after, known, strategy).state == after
    assert after.members <= set(REPLICAS)
    assert not after.elr & after.isr
    assert not void
    assert after.isr <= known.live
    assert after.leader == before.leader or after.leader is None or after.leader in known.electable
    assert after.leader_epoch == before.leader_epoch + (after.leader != before.leader)
    assert (after.leader is None) == isinstance(found.outcome, Waiting)
    assert (after.last_known_leader is None) or after.leader in (None, before.leader)
    # Who still holds every acknowledged record is remembered, until the ISR is large enough to do without.
    lost = before.members - after.members - known.void(before.epochs)
    assert not lost or len(after.isr) >= after.min_isr


@given(data=st.data(), known=any_brokers())
def test_only_those_let_in_get_another_epoch(data: st.DataObject, known: Brokers) -> None:
    before = data.draw(any_state(known))
    isr = data.draw(st.frozensets(st.sampled_from(REPLICAS)))
    after = with_isr(before, isr, joined=known.epochs)
    assert after.epochs == {
        member: known.epochs[member] if member in isr - before.isr else before.epochs[member]
        for member in after.members
    }
    assert after.isr == isr
    assert after.leader_epoch == before.leader_epoch
    assert len(isr) < after.min_isr or not after.elr | after.last_known_elr


def test_a_new_partition_is_led_by_its_first_live_replica_and_both_its_epochs_are_zero() -> None:
    known = brokers(1, 2, 3, shutting_down=[3], epochs={1: 6, 2: 7})
    assert created((3, 2, 1), known, min_insync_replicas=5, controller_epoch=9) == PartitionState(
        leader=2, leader_epoch=0, isr=frozenset({1, 2}), min_isr=3, epochs={1: 6, 2: 7}, controller_epoch=9
    )


def test_a_partition_of_which_no_replica_lives_is_not_made_yet() -> None:
    assert created((1, 2), brokers(1, 3, shutting_down=[1]), min_insync_replicas=1, controller_epoch=1) is None


@pytest.mark.parametrize(("asked", "effective"), [(1, 1), (2, 2), (3, 2)])
def test_no_more_in_sync_replicas_are_asked_for_than_there_are_replicas(asked: int, effective: int) -> None:
    assert effective_min_isr(asked, (1, 2)) == effective
