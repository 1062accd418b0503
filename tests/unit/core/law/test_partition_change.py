"""How a partition's state changes: the table of partition_change, and what holds of every result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import Elected, Policy, Waiting, within
from spark_replication.core.law.partition_change import (
    Settled,
    acknowledged,
    created,
    effective_min_isr,
    elected,
    narrowed,
    overtaken,
    settled,
    with_isr,
    with_min_isr,
)
from spark_replication.core.replica.isr import changed
from spark_replication.core.tables.sealing import NO_TABLE
from spark_replication.model import UNCLEAN as FROM_OUTSIDE
from spark_replication.model import BrokerId, How, PartitionState, PossibleLoss
from tests.unit.core.stories import (
    BALANCED,
    CAUTIOUS,
    POLICIES,
    REPLICAS,
    UNCLEAN,
    any_brokers,
    any_state,
    brokers,
    loss,
    state,
)


def moved(leader: BrokerId, isr: list[int], *, how: How = "isr", **others: Any) -> PartitionState:
    return state(leader, isr, leader_epoch=5, elected=how, **others)


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
    ("before", "min_isr", "after"),
    [
        (state(1, [1], elr=[2]), 2, state(1, [1], elr=[2])),
        # Lowered so that the ISR reaches it: nobody outside is needed any longer.
        (state(1, [1], elr=[2], last_known_elr=[3]), 1, state(1, [1], min_isr=1)),
        (state(1, [1], elr=[2], last_known_elr=[4], min_isr=3), 2, state(1, [1], elr=[2], last_known_elr=[4])),
        # Raised: who left before, while the ISR was large enough, is no candidate.
        (state(1, [1, 2]), 3, state(1, [1, 2], min_isr=3)),
        (state(None, [], elr=[2], last_known_leader=2), 1, state(None, [], elr=[2], last_known_leader=2, min_isr=1)),
    ],
)
def test_another_min_isr_clears_the_elr_where_the_isr_reaches_it(
    before: PartitionState, min_isr: int, after: PartitionState
) -> None:
    assert with_min_isr(before, min_isr) == after


@pytest.mark.parametrize(
    ("before", "known", "after"),
    [
        # nothing is called for
        (state(1, [1, 2, 3]), brokers(1, 2, 3), Settled(state(1, [1, 2, 3]), None)),
        (state(None, [], elr=[1]), brokers(2), Settled(state(None, [], elr=[1]), Waiting("fenced_elr"))),
        # a follower dies
        (state(1, [1, 2, 3]), brokers(1, 2), Settled(state(1, [1, 2]), None)),
        (state(1, [1, 2]), brokers(1), Settled(state(1, [1], elr=[2]), None)),
        # a follower shuts down: as if it had left
        (state(1, [1, 2, 3]), brokers(1, 2, 3, shutting_down=[3]), Settled(state(1, [1, 2]), None)),
        # the leader shuts down, and another can lead: of the ISR, of the ELR
        (state(1, [1, 2]), brokers(1, 2, shutting_down=[1]), Settled(moved(2, [2], elr=[1]), None)),
        (state(1, [1], elr=[2]), brokers(1, 2, shutting_down=[1]), Settled(moved(2, [2], elr=[1], how="elr"), None)),
        # none can: it leads on, and the others leave
        (state(1, [1, 2]), brokers(1, 2, shutting_down=[1, 2]), Settled(state(1, [1], elr=[2]), None)),
        (state(1, [1, 2, 3]), brokers(1, shutting_down=[1]), Settled(state(1, [1], elr=[2, 3]), None)),
        (state(1, [1], elr=[2]), brokers(1, shutting_down=[1]), Settled(state(1, [1], elr=[2]), None)),
        (
            state(1, [1, 2]),
            brokers(1, 2, shutting_down=[1], epochs={2: 1}, clean_since={2: 1}),
            Settled(state(1, [1], last_known_elr=[2]), None),
        ),
        # one that is void does not lead on, though it lives
        (
            state(1, [1], elr=[2]),
            brokers(1, shutting_down=[1], epochs={1: 1}, clean_since={1: 1}),
            Settled(
                state(None, [], elr=[2], last_known_elr=[1], last_known_leader=1, leader_epoch=5), Waiting("fenced_elr")
            ),
        ),
        # the leader dies, another leads
        (state(1, [1, 2, 3]), brokers(2, 3), Settled(moved(2, [2, 3]), Elected(2, "isr"))),
        (state(1, [1, 2]), brokers(2), Settled(moved(2, [2], elr=[1]), Elected(2, "isr"))),
        # the leader dies, nobody leads
        (
            state(1, [1]),
            brokers(2),
            Settled(state(None, [], elr=[1], leader_epoch=5, last_known_leader=1), Waiting("fenced_elr")),
        ),
        (
            state(1, [1, 2]),
            brokers(2, shutting_down=[2]),
            Settled(state(None, [], elr=[1, 2], leader_epoch=5, last_known_leader=1), Waiting("fenced_elr")),
        ),
        # elected from the ELR: it keeps the epoch at which it joined
        (
            state(None, [], elr=[1, 2], epochs={1: 3}, last_known_leader=2),
            brokers(1, epochs={1: 5}, clean_since={1: 2}),
            Settled(moved(1, [1], elr=[2], epochs={1: 3}, how="elr"), Elected(1, "elr")),
        ),
        (
            state(None, [2], elr=[1]),
            brokers(1, 2, shutting_down=[2]),
            Settled(moved(1, [1], elr=[2], how="elr"), Elected(1, "elr")),
        ),
        # void: the leader, a follower, a member of the ELR
        (
            state(1, [1, 2]),
            brokers(1, 2, epochs={1: 1}, clean_since={1: 1}),
            Settled(moved(2, [2], last_known_elr=[1]), Elected(2, "isr")),
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
    assert settled((1, 2, 3), before, known, BALANCED, min_isr=2, now_ms=0, sealing=NO_TABLE) == after


@pytest.mark.parametrize(
    ("before", "known", "min_isr", "after"),
    [
        (state(1, [1], elr=[2]), brokers(1), 1, Settled(state(1, [1], min_isr=1), None)),
        # Who leaves in the same decision does so under the new one.
        (state(1, [1, 2]), brokers(1), 1, Settled(state(1, [1], min_isr=1), None)),
        (state(1, [1, 2, 3]), brokers(1, 2), 3, Settled(state(1, [1, 2], elr=[3], min_isr=3), None)),
        # So does a leader that shuts down and leads on.
        (state(1, [1, 2]), brokers(1, shutting_down=[1]), 1, Settled(state(1, [1], min_isr=1), None)),
        (state(1, [1], elr=[2]), brokers(1, shutting_down=[1]), 1, Settled(state(1, [1], min_isr=1), None)),
    ],
)
def test_the_settings_call_for_this(before: PartitionState, known: Brokers, min_isr: int, after: Settled) -> None:
    assert settled((1, 2, 3), before, known, BALANCED, min_isr=min_isr, now_ms=0, sealing=NO_TABLE) == after


def test_one_from_outside_is_alone_and_recovers() -> None:
    before = state(None, [], last_known_leader=1, epochs={}, last_known_elr=[2])
    known = brokers(1, epochs={1: 8}, clean_since={1: 8})
    outcome = Elected(1, "last_known_leader")
    alone = state(1, [1], epochs={1: 8}, leader_epoch=5, recovering=True, loss=loss(), elected="last_known_leader")
    assert settled((1, 2, 3), before, known, CAUTIOUS, min_isr=2, now_ms=0, sealing=NO_TABLE) == Settled(alone, outcome)


def void_leader(policy: Policy) -> Settled:
    """Of 3, 1, 2: it led alone, registered uncleanly, and lives. So does 3."""
    known = brokers(1, 3, epochs={1: 8}, clean_since={1: 8})
    return settled((3, 1, 2), state(1, [1], min_isr=1), known, policy, min_isr=1, now_ms=0, sealing=NO_TABLE)


@pytest.mark.parametrize(("policy", "how"), [(CAUTIOUS, "last_known_leader"), (UNCLEAN, "unclean")])
def test_who_led_until_now_is_the_last_known_leader_of_this_very_election(policy: Policy, how: How) -> None:
    alone = state(1, [1], epochs={1: 8}, min_isr=1, leader_epoch=5, recovering=True, loss=loss(), elected=how)
    assert void_leader(policy) == Settled(alone, Elected(1, how))


def test_and_where_it_is_not_elected_its_log_is_what_is_asked_for() -> None:
    gone = state(None, [], last_known_elr=[1], last_known_leader=1, min_isr=1, leader_epoch=5)
    assert void_leader(BALANCED) == Settled(gone, Waiting("log_info", frozenset({1})))


def moved_by_hand(leader: BrokerId, isr: list[int], **others: Any) -> PartitionState:
    return state(leader, isr, leader_epoch=5, elected="designated", **others)


@pytest.mark.parametrize(
    ("before", "leader", "after"),
    [
        # In the ISR: nothing else changes.
        (state(None, [1, 2], last_known_leader=3), 2, moved_by_hand(2, [1, 2])),
        (state(1, [1, 2, 3], recovering=True), 3, moved_by_hand(3, [1, 2, 3], recovering=True)),
        # In the ELR: it joins the ISR, at the epoch at which it had, and may be enough.
        (state(None, [], elr=[1, 2], epochs={1: 2}), 1, moved_by_hand(1, [1], elr=[2], epochs={1: 2})),
        (state(None, [3], elr=[1, 2]), 1, moved_by_hand(1, [1, 3])),
        # In neither: nobody else can be said to hold what it holds.
        (
            state(None, [3], elr=[2], last_known_elr=[4], last_known_leader=2),
            1,
            moved_by_hand(1, [1], epochs={1: 6}, recovering=True, loss=loss()),
        ),
    ],
)
def test_who_is_elected_leads_one_epoch_later(before: PartitionState, leader: BrokerId, after: PartitionState) -> None:
    assert (
        elected(before, 4, Elected(leader, "designated"), brokers(leader, epochs={1: 6}), NO_TABLE, now_ms=0) == after
    )


FIRST = loss(3, since_ms=70, from_offset=40, records_max=2)


@pytest.mark.parametrize(
    ("known", "outcome", "after"),
    [
        (None, Elected(1, "unclean"), loss(since_ms=90)),
        (
            None,
            Elected(1, "unclean_recovery", complete_below=0, lacks_max=0),
            loss(since_ms=90, from_offset=0, records_max=0),
        ),
        # The earliest time, the lowest offset, all of the records.
        (
            FIRST,
            Elected(1, "unclean_recovery", complete_below=44, lacks_max=5),
            loss(3, 5, since_ms=70, from_offset=40, records_max=7),
        ),
        (
            FIRST,
            Elected(1, "unclean_recovery", complete_below=4, lacks_max=0),
            loss(3, 5, since_ms=70, from_offset=4, records_max=2),
        ),
        # What nobody knows of one of them is not known of both.
        (FIRST, Elected(1, "unclean_recovery", complete_below=44), loss(3, 5, since_ms=70, from_offset=40)),
        (FIRST, Elected(1, "designated"), loss(3, 5, since_ms=70)),
        (
            loss(3, since_ms=70),
            Elected(1, "unclean_recovery", complete_below=4, lacks_max=0),
            loss(3, 5, since_ms=70),
        ),
    ],
)
def test_an_election_from_outside_is_added_to_what_may_be_lost(
    known: PossibleLoss | None, outcome: Elected, after: PossibleLoss
) -> None:
    before = state(None, [], last_known_leader=1, loss=UNSET if known is None else known)
    assert elected(before, 4, outcome, brokers(1), NO_TABLE, now_ms=90).loss == after


def test_possible_loss_outlives_all_but_its_acknowledgement() -> None:
    """It is there after elections from ISR and ELR, ISR writes, dropped replicas and a put-back ZooKeeper."""
    marked = state(1, [1, 2], loss=FIRST)
    kept = [
        settled((1, 2, 3), marked, brokers(2), BALANCED, min_isr=2, now_ms=90, sealing=NO_TABLE).state,
        settled((1, 2, 3), marked, brokers(), BALANCED, min_isr=2, now_ms=90, sealing=NO_TABLE).state,
        settled(
            (1, 2, 3),
            state(None, [], elr=[1], loss=FIRST),
            brokers(1),
            BALANCED,
            min_isr=2,
            now_ms=90,
            sealing=NO_TABLE,
        ).state,
        changed(marked, frozenset({1, 2, 3}), {3: 0}),
        narrowed(marked, (2, 3), 2, drops=True, min_isr=2),
        overtaken((1, 2, 3), marked, 9, 3),
    ]
    assert [each.loss for each in kept] == [FIRST] * len(kept)
    assert acknowledged(marked) == state(1, [1, 2])


@pytest.mark.parametrize(
    ("before", "replicas", "leader", "min_isr", "after"),
    [
        (state(1, [1, 2, 3]), (1, 3), 1, 2, state(1, [1, 3], leader_epoch=5)),
        (
            state(1, [1, 3], elr=[2, 4], last_known_elr=[5], min_isr=3, epochs={1: 6, 4: 7}, elected="elr"),
            (1, 4, 3),
            1,
            3,
            state(1, [1, 3], elr=[4], min_isr=3, epochs={1: 6, 4: 7}, elected="elr", leader_epoch=5),
        ),
        # Fewer replicas may ask for less: what is left is enough.
        (
            state(1, [1, 3], elr=[4], last_known_elr=[2], min_isr=3),
            (1, 3, 4, 2),
            1,
            2,
            state(1, [1, 3], leader_epoch=5),
        ),
        # Another leads: one of those in sync.
        (
            state(1, [1, 2, 3], elected="elr"),
            (2, 3),
            2,
            2,
            state(2, [2, 3], leader_epoch=5, elected="isr"),
        ),
    ],
)
def test_dropped_replicas_are_nowhere_and_that_is_one_decision(
    before: PartitionState, replicas: tuple[BrokerId, ...], leader: BrokerId, min_isr: int, after: PartitionState
) -> None:
    assert narrowed(before, replicas, leader, drops=True, min_isr=min_isr) == after


def test_an_assignment_that_has_lost_nobody_is_no_decision_about_its_leader() -> None:
    before = state(1, [1, 2], elr=[3], min_isr=3)
    assert narrowed(before, (1, 2, 3), 1, drops=False, min_isr=2) == state(1, [1, 2])


@given(data=st.data(), known=any_brokers(), policy=POLICIES, min_isr=st.integers(1, 4))
def test_whatever_happened_the_settled_state_keeps_the_rules(
    data: st.DataObject, known: Brokers, policy: Policy, min_isr: int
) -> None:
    before = data.draw(any_state(known))
    found = settled(REPLICAS, before, known, policy, min_isr=min_isr, now_ms=0, sealing=NO_TABLE)
    after = found.state

    assert settled(REPLICAS, after, known, policy, min_isr=min_isr, now_ms=0, sealing=NO_TABLE).state == after
    assert after.min_isr == min_isr
    from_outside = (
        after.leader is not None and after.elected in FROM_OUTSIDE and after.leader_epoch > before.leader_epoch
    )
    assert after.loss == (loss(after.leader_epoch) if from_outside else UNSET)
    assert after.members <= set(REPLICAS)
    assert not after.elr & after.isr
    assert len(after.isr) < min_isr or not after.elr | after.last_known_elr
    assert not known.void(after.epochs)
    # A leader that shuts down leads on where nobody else could.
    leads_on = after.leader == before.leader and after.leader in known.live - known.electable
    assert after.isr <= (known.electable | {after.leader} if leads_on else known.electable)
    assert not leads_on or within(REPLICAS, after, known.electable) is None
    assert after.leader is None or after.leader in known.electable or leads_on
    # A leader that lost its log, and is elected all the same, begins anew.
    again = isinstance(found.outcome, Elected) and after.leader == before.leader
    assert not again or before.leader in known.void(before.epochs)
    assert after.leader_epoch == before.leader_epoch + (again or after.leader != before.leader)
    assert (after.leader is None) == isinstance(found.outcome, Waiting)
    # The last known leader is set as the last one goes, and cleared by the next election and by nothing else.
    if after.leader == before.leader and not again:
        assert after.last_known_leader == before.last_known_leader
    else:
        assert after.last_known_leader == (before.leader if after.leader is None else None)
    # Who still holds every acknowledged record is remembered, until the ISR is large enough to do without.
    lost = before.members - after.members - known.void(before.epochs)
    outside = isinstance(found.outcome, Elected) and found.outcome.how not in ("isr", "elr")
    assert not lost or len(after.isr) >= after.min_isr or outside or _was_large_enough(before, min_isr)


def _was_large_enough(before: PartitionState, min_isr: int) -> bool:
    """The lowered min ISR let the ELR go, before somebody left."""
    return min_isr < before.min_isr and len(before.isr) >= min_isr


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
    assert created(
        (3, 2, 1), known, min_insync_replicas=5, controller_epoch=9, tombstone=None, sealing=NO_TABLE
    ) == PartitionState(
        leader=2, leader_epoch=0, isr=frozenset({1, 2}), min_isr=3, epochs={1: 6, 2: 7}, controller_epoch=9
    )


def test_one_that_is_made_again_goes_on_above_the_epoch_of_its_tombstone_and_says_so() -> None:
    tombstone = state(None, [], elr=[4], last_known_leader=4, leader_epoch=7, recovering=True, created=2)
    made = created(
        (1, 2), brokers(1, 2), min_insync_replicas=1, controller_epoch=9, tombstone=tombstone, sealing=NO_TABLE
    )
    assert made == state(1, [1, 2], leader_epoch=8, created=8, min_isr=1, controller_epoch=9)


def test_a_partition_of_which_no_replica_lives_is_not_made_yet() -> None:
    assert (
        created(
            (1, 2),
            brokers(1, 3, shutting_down=[1]),
            min_insync_replicas=1,
            controller_epoch=1,
            tombstone=None,
            sealing=NO_TABLE,
        )
        is None
    )


@pytest.mark.parametrize(("asked", "effective"), [(1, 1), (2, 2), (3, 2)])
def test_no_more_in_sync_replicas_are_asked_for_than_there_are_replicas(asked: int, effective: int) -> None:
    assert effective_min_isr(asked, 2) == effective
