"""I1 to I4: what a leader proposes, what ZooKeeper's conditions refuse, and what an answer means."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.law.writes import IsrCommitted, IsrRefused, IsrUnanswered, IsrWrite, StoredPartition
from spark_replication.core.replica.isr import answered, propose, reconsidered, told, write_of
from spark_replication.core.replica.replica import Follower, Leading, PendingIsr
from spark_replication.model import PartitionState
from tests.unit.core.stories import FOO, FOO_ID, state

LOG_END, NOW_MS, LAG_MS = 10, 5_000, 1_000
AT_END = Follower(LOG_END, 3, caught_up_ms=0)
LAGGING = Follower(9, 3, caught_up_ms=NOW_MS - LAG_MS)
BEHIND = Follower(9, 3, caught_up_ms=NOW_MS - LAG_MS + 1)


def leading(stored: PartitionState, *, two: Follower = AT_END, three: Follower = AT_END) -> Leading:
    return Leading(
        me=1,
        broker_epoch=6,
        replicas=(1, 2, 3),
        state=stored,
        partition_epoch=7,
        epoch_start=4,
        end_at_start=4,
        high_watermark=4,
        followers={2: two, 3: three},
    )


def proposed(part: Leading) -> PendingIsr | None:
    return propose(part, log_end=LOG_END, now_ms=NOW_MS, lag_ms=LAG_MS).pending


@pytest.mark.parametrize(
    ("part", "pending"),
    [
        (leading(state(1, [1, 2, 3])), None),
        (leading(state(1, [1, 2, 3]), two=BEHIND), None),
        (leading(state(1, [1, 2, 3]), two=LAGGING), PendingIsr(state(1, [1, 3]), 7, {})),
        # Both at once: they join the ELR together.
        (leading(state(1, [1, 2, 3]), two=LAGGING, three=LAGGING), PendingIsr(state(1, [1], elr=[2, 3]), 7, {})),
        # A silent one, since the leadership began.
        (
            leading(state(1, [1, 2, 3]), two=Follower(-1, -1, caught_up_ms=0)),
            PendingIsr(state(1, [1, 3]), 7, {}),
        ),
        # One joins: at the epoch of its fetches, and its leader has recovered.
        (
            leading(state(1, [1, 2], recovering=True)),
            PendingIsr(state(1, [1, 2, 3], epochs={3: 3}), 7, {3: 3}),
        ),
        # From the ELR too: under its old epoch it would stay void, had it restarted uncleanly since.
        (
            leading(state(1, [1, 2], min_isr=3, elr=[3])),
            PendingIsr(state(1, [1, 2, 3], min_isr=3, epochs={3: 3}), 7, {3: 3}),
        ),
        (
            leading(state(1, [1, 2]), two=LAGGING),
            PendingIsr(state(1, [1, 3], epochs={3: 3}), 7, {3: 3}),
        ),
    ],
)
def test_who_lags_leaves_and_who_caught_up_joins(part: Leading, pending: PendingIsr | None) -> None:
    assert proposed(part) == pending


@pytest.mark.parametrize(
    ("high_watermark", "epoch_start", "end_at_start", "joins"),
    [(9, 9, 9, True), (10, 0, 0, False), (0, 10, 0, False), (0, 0, 10, False)],
)
def test_to_join_it_must_be_past_each_of_three_offsets(
    high_watermark: int, epoch_start: int, end_at_start: int, joins: bool
) -> None:
    part = replace(
        leading(state(1, [1, 2]), three=BEHIND),
        high_watermark=high_watermark,
        epoch_start=epoch_start,
        end_at_start=end_at_start,
    )
    assert (proposed(part) is not None) is joins


def test_a_member_that_lost_its_log_leaves_and_is_no_longer_eligible() -> None:
    """It reported under a registration that is not clean since it joined (I8)."""
    lost, eligible_no_more = replace(AT_END, clean_since=2), Follower(0, 5, caught_up_ms=0, clean_since=5)

    part = leading(state(1, [1, 2], elr=[3], min_isr=3, epochs={2: 1, 3: 4}), two=lost, three=eligible_no_more)

    assert proposed(part) == PendingIsr(state(1, [1], last_known_elr=[2, 3], min_isr=3), 7, {})


def test_a_member_whose_registrations_were_clean_since_it_joined_stays() -> None:
    assert proposed(leading(state(1, [1, 2, 3], epochs={2: 2}), two=replace(AT_END, clean_since=2))) is None


def test_a_second_change_waits_for_the_answer_to_the_first() -> None:
    first = PendingIsr(state(1, [1, 2, 3]), 7, {3: 3})
    part = replace(leading(state(1, [1, 2]), two=LAGGING), pending=first)
    assert propose(part, log_end=LOG_END, now_ms=NOW_MS, lag_ms=LAG_MS) is part


def write(**changed: object) -> IsrWrite:
    whole = IsrWrite(
        partition=FOO,
        topic_id=FOO_ID,
        broker=1,
        broker_epoch=6,
        state=state(1, [1, 2, 3], epochs={3: 3}),
        version=7,
        joining={3: 3},
    )
    return replace(whole, **changed)


def test_what_is_asked_says_who_leaves_and_who_joins() -> None:
    part = leading(state(1, [1, 2]), two=LAGGING)
    change = proposed(part)
    assert change is not None
    asked = write_of(part, change, FOO, FOO_ID)
    assert (sorted(asked.leaving), asked.joining, sorted(asked.state.isr)) == ([2], {3: 3}, [1, 3])


CHANGE = PendingIsr(state(1, [1, 2, 3], epochs={3: 3}), 7, {3: 3})
IN_FLIGHT = replace(leading(state(1, [1, 2])), pending=CHANGE)
OVERTAKEN = replace(IN_FLIGHT, state=state(1, [1], elr=[2]), partition_epoch=9)


@pytest.mark.parametrize(
    ("part", "answer", "after"),
    [
        (IN_FLIGHT, IsrUnanswered(), IN_FLIGHT),
        (IN_FLIGHT, IsrCommitted(8), replace(IN_FLIGHT, state=CHANGE.state, partition_epoch=8, pending=None)),
        # The controller changed what we had stored, and we heard of that first.
        (OVERTAKEN, IsrCommitted(8), replace(OVERTAKEN, pending=None)),
        # It was our own, of which no answer had come.
        (
            IN_FLIGHT,
            IsrRefused(StoredPartition(CHANGE.state, 8)),
            replace(IN_FLIGHT, state=CHANGE.state, partition_epoch=8, pending=None),
        ),
        # Who was to join may not: nothing has changed.
        (IN_FLIGHT, IsrRefused(StoredPartition(IN_FLIGHT.state, 7)), replace(IN_FLIGHT, pending=None, barred={3: 3})),
        (
            replace(IN_FLIGHT, barred={2: 1}),
            IsrRefused(StoredPartition(state(1, [1]), 8)),
            replace(IN_FLIGHT, state=state(1, [1]), partition_epoch=8, pending=None),
        ),
        # Somebody else leads, a new epoch has begun, the topic is gone.
        (IN_FLIGHT, IsrRefused(StoredPartition(state(2, [2]), 8)), None),
        (IN_FLIGHT, IsrRefused(StoredPartition(state(1, [1, 2], leader_epoch=5), 8)), None),
        (IN_FLIGHT, IsrRefused(None), None),
    ],
)
def test_an_answer_ends_the_change_it_belongs_to(
    part: Leading, answer: IsrCommitted | IsrRefused | IsrUnanswered, after: Leading | None
) -> None:
    assert answered(part, CHANGE, answer) == after


def test_who_was_refused_is_not_asked_for_with_every_fetch() -> None:
    """But at its next registration it is, and once time has passed."""
    refused = answered(IN_FLIGHT, CHANGE, IsrRefused(StoredPartition(IN_FLIGHT.state, 7)))
    assert refused is not None
    assert proposed(refused) is None
    back = replace(refused, followers={**refused.followers, 3: Follower(LOG_END, 4, caught_up_ms=0)})
    assert proposed(back) == PendingIsr(state(1, [1, 2, 3], epochs={3: 4}), 7, {3: 4})
    assert proposed(reconsidered(refused)) == CHANGE
    assert reconsidered(back) == replace(back, barred={})
    assert reconsidered(reconsidered(back)) == replace(back, barred={})


@pytest.mark.parametrize(
    ("three", "joining"),
    [
        (AT_END, {}),  # as it was when it joined: it seems to be dead, and ZooKeeper would refuse
        (replace(AT_END, broker_epoch=4), {3: 4}),  # it has registered again since, and fetches
    ],
)
def test_who_was_dropped_by_another_joins_once_it_is_heard_again(three: Follower, joining: dict[int, int]) -> None:
    before = leading(state(1, [1, 2, 3], epochs={3: 3}), three=three)
    after = told(before, StoredPartition(state(1, [1, 2]), 8))
    assert after is not None
    found = proposed(after)
    assert (found.joining if found else {}) == joining
    heard = replace(after, followers={**after.followers, 3: AT_END})
    assert proposed(heard) == PendingIsr(state(1, [1, 2, 3], epochs={3: 3}), 8, {3: 3})


def test_who_left_by_the_leaders_own_change_is_known_as_before() -> None:
    leaving = PendingIsr(state(1, [1, 2]), 7, {})
    part = replace(leading(state(1, [1, 2, 3], epochs={3: 3}), three=LAGGING), pending=leaving)
    after = answered(part, leaving, IsrCommitted(8))
    assert after == replace(part, state=leaving.state, partition_epoch=8, pending=None)


@pytest.mark.parametrize("in_flight", [None, replace(CHANGE, version=8)])
def test_an_answer_to_another_change_says_nothing(in_flight: PendingIsr | None) -> None:
    part = replace(IN_FLIGHT, pending=in_flight)
    assert answered(part, CHANGE, IsrRefused(None)) is part


@pytest.mark.parametrize(
    ("stored", "after"),
    [
        (StoredPartition(state(1, [1]), 7), IN_FLIGHT),  # known already
        (StoredPartition(state(1, [1]), 6), IN_FLIGHT),
        (StoredPartition(state(1, [1]), 8), replace(IN_FLIGHT, state=state(1, [1]), partition_epoch=8)),
        (StoredPartition(state(None, [1, 2]), 8), None),
    ],
)
def test_a_change_by_the_controller_leaves_the_one_in_flight(stored: StoredPartition, after: Leading | None) -> None:
    assert told(IN_FLIGHT, stored) == after
