"""A1, A2: what a reassignment makes of an assignment, and what it calls for next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.controller.reassignment import (
    CompleteMove,
    Lead,
    cancelled,
    completed,
    differs,
    grown,
    in_flight,
    next_step,
    origin,
    replication_factor,
    target,
)
from spark_replication.core.law.brokers import Brokers
from spark_replication.errors import NotEnoughReplicas
from spark_replication.model import BrokerId, PartitionState, TopicState
from tests.unit.core.stories import brokers, state, topic

ON_123 = topic((1, 2, 3), (4, 5))
TO_145 = topic((1, 4, 5, 2, 3), (4, 5), adding={0: (4, 5)}, removing={0: (2, 3)}, origin={0: (1, 2, 3)})


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        (ON_123, (1, 4, 5), TO_145),
        (ON_123, (1, 2), topic((1, 2, 3), (4, 5), removing={0: (3,)}, origin={0: (1, 2, 3)})),
        (ON_123, (1, 2, 3, 4), topic((1, 2, 3, 4), (4, 5), adding={0: (4,)}, origin={0: (1, 2, 3)})),
        # It adds and removes nothing: another order, complete at once.
        (ON_123, (3, 2, 1), topic((3, 2, 1), (4, 5))),
        (ON_123, (1, 2, 3), ON_123),
        # A second one replaces the target; what the first added, and this does not want, is removed. The origin stays.
        (
            TO_145,
            (1, 2, 5),
            topic((1, 2, 5, 4, 3), (4, 5), adding={0: (5,)}, removing={0: (4, 3)}, origin={0: (1, 2, 3)}),
        ),
        (TO_145, (1, 4, 5), TO_145),
        (TO_145, (1, 2, 3), topic((1, 2, 3, 4, 5), (4, 5), removing={0: (4, 5)}, origin={0: (1, 2, 3)})),
        # Back to where it came from, of which nothing was to be added: nothing is left to do.
        (topic((1, 2, 3), removing={0: (3,)}, origin={0: (1, 2, 3)}), (1, 2, 3), topic((1, 2, 3))),
        # One in flight without a stored origin: what is not being added.
        (
            topic((1, 4, 2), adding={0: (4,)}, removing={0: (2,)}),
            (1, 3),
            topic((1, 3, 4, 2), adding={0: (3,)}, removing={0: (4, 2)}, origin={0: (1, 2)}),
        ),
    ],
)
def test_a_reassignment_begins_with_both_the_old_and_the_new(
    before: TopicState, wanted: tuple[BrokerId, ...], after: TopicState
) -> None:
    assert grown(before, {0: wanted}) == after


def test_many_begin_and_end_at_one_time_as_they_would_one_by_one() -> None:
    one_by_one = grown(grown(ON_123, {0: (1, 4, 5)}), {1: (5, 6)})
    together = grown(ON_123, {0: (1, 4, 5), 1: (5, 6)})
    assert together == one_by_one
    assert [differs(ON_123, TO_145, partition) for partition in (0, 1)] == [True, False]
    assert completed(together, {0: (1, 4, 5), 1: (5, 6)}) == topic((1, 4, 5), (5, 6))
    assert completed(together, {1: (5, 6)}) == completed(TO_145, {1: (5, 6)})


@pytest.mark.parametrize(
    ("known", "flies", "goes_to", "came_from", "factor"),
    [
        (ON_123, False, (1, 2, 3), (1, 2, 3), 3),
        (TO_145, True, (1, 4, 5), (1, 2, 3), 3),
        (topic((1, 2, 3), removing={0: (3,)}), True, (1, 2), (1, 2, 3), 3),
        (topic((1, 2, 3), adding={0: (3,)}), True, (1, 2, 3), (1, 2), 2),
    ],
)
def test_an_assignment_tells_where_it_goes_and_where_it_came_from(
    known: TopicState, flies: bool, goes_to: tuple[BrokerId, ...], came_from: tuple[BrokerId, ...], factor: int
) -> None:
    assert (in_flight(known, 0), target(known, 0), origin(known, 0), replication_factor(known, 0)) == (
        flies,
        goes_to,
        came_from,
        factor,
    )


@pytest.mark.parametrize(
    ("stored", "known", "step"),
    [
        (state(1, [1, 2, 3]), brokers(1, 2, 3, 4, 5), None),
        (state(1, [1, 2, 3, 4]), brokers(1, 2, 3, 4, 5), None),
        (state(1, [1, 4, 5]), brokers(1, 2, 3, 4, 5), CompleteMove((1, 4, 5), 1)),
        (state(1, [1, 2, 3, 4, 5]), brokers(1, 4, 5), CompleteMove((1, 4, 5), 1)),
        # A leader outside the target is followed first, in the order of the target.
        (state(2, [1, 2, 4, 5]), brokers(1, 2, 4, 5), Lead(1)),
        (state(2, [1, 2, 4, 5]), brokers(1, 2, 4, 5, shutting_down=[1]), Lead(4)),
        (state(None, [1, 4, 5]), brokers(1, 4, 5), Lead(1)),
        (state(2, [1, 2, 4, 5]), brokers(2, 3), None),
    ],
)
def test_what_a_reassignment_calls_for(
    stored: PartitionState, known: Brokers, step: Lead | CompleteMove | None
) -> None:
    assert next_step(TO_145, 0, stored, known) == step


@pytest.mark.parametrize(
    ("stored", "known", "back"),
    [
        (state(1, [1, 2, 4]), brokers(1, 2, 4), CompleteMove((1, 2, 3), 1)),
        (state(4, [2, 3, 4]), brokers(2, 3, 4), CompleteMove((1, 2, 3), 2)),  # the leader goes
        (state(4, [2, 3, 4]), brokers(2, 3, 4, shutting_down=[2]), CompleteMove((1, 2, 3), 3)),
        (state(1, [1, 4], min_isr=1), brokers(1, 4, shutting_down=[1]), CompleteMove((1, 2, 3), 1)),
        (state(1, [1, 2, 3, 4], min_isr=5), brokers(1, 4), CompleteMove((1, 2, 3), 1)),  # at most what the origin has
    ],
)
def test_a_reassignment_goes_back(stored: PartitionState, known: Brokers, back: CompleteMove) -> None:
    assert cancelled(TO_145, 0, stored, known, "foo-0") == back


@pytest.mark.parametrize(
    ("stored", "known", "why"),
    [
        (state(1, [1, 4, 5]), brokers(1, 4, 5), r"from \[1, 2, 3\], of which \[1\] are in sync: 2 are needed"),
        (
            state(4, [2, 3, 4]),
            brokers(2, 3, 4, shutting_down=[2, 3]),
            r"none could lead now: \[2, 3\] are shutting down",
        ),
    ],
)
def test_with_too_little_in_sync_it_does_not_go_back_and_says_why(
    stored: PartitionState, known: Brokers, why: str
) -> None:
    with pytest.raises(NotEnoughReplicas, match=f"foo-0 came {why}" if "from" in why else why):
        cancelled(TO_145, 0, stored, known, "foo-0")


ASSIGNMENTS = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True).map(tuple)


@given(first=ASSIGNMENTS, wanted=st.lists(ASSIGNMENTS, min_size=1, max_size=4))
def test_however_often_the_target_changes_it_ends_there_or_goes_back(
    first: tuple[BrokerId, ...], wanted: list[tuple[BrokerId, ...]]
) -> None:
    before = topic(first, (4, 5), adding={1: (5,)}, origin={1: (4,)})
    now, came_from = before, first
    for goes_to in wanted:
        now = grown(now, {0: goes_to})
        if not in_flight(now, 0):
            came_from = goes_to
        adding, removing = set(now.adding.get(0, ())), set(now.removing.get(0, ()))
        assert target(now, 0) == goes_to
        assert origin(now, 0) == came_from
        assert replication_factor(now, 0) == len(came_from)
        assert adding == set(goes_to) - set(came_from)
        assert set(now.partitions[0]) == set(goes_to) | removing
        assert set(came_from) <= set(now.partitions[0])
        assert grown(now, {0: goes_to}) == now
        assert completed(now, {0: goes_to}) == topic(goes_to, (4, 5), adding={1: (5,)}, origin={1: (4,)})
        assert completed(now, {0: came_from}) == topic(came_from, (4, 5), adding={1: (5,)}, origin={1: (4,)})
