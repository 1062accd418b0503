"""L4: who is asked for its log, which answers count, and who wins."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.core.law import unclean_recovery
from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import Elected
from spark_replication.core.law.unclean_recovery import (
    LogEnd,
    UncleanRecovery,
    answered,
    asking,
    is_over,
    is_put_off,
    timed,
    to_ask,
    winner,
)
from spark_replication.messages.commands import ReplicaLogInfo
from spark_replication.model import BrokerId, PartitionState
from tests.unit.core.stories import FOO_ID, brokers, state

REPLICAS = (3, 1, 2)
TIMEOUT_MS = 5_000
DISK_RETRY_MS = 10_000


def recovery(
    *required: BrokerId,
    asked: Mapping[BrokerId, int] | None = None,
    answers: Mapping[BrokerId, tuple[int, int]] | None = None,
    asked_ms: int = 1_000,
) -> UncleanRecovery:
    """Began at 1,000. Who has answered was asked, at epoch 0."""
    ends = {broker: LogEnd(*end) for broker, end in (answers or {}).items()}
    return UncleanRecovery(
        leader_epoch=4,
        required=frozenset(required),
        started_ms=1_000,
        asked_ms=asked_ms,
        asked=dict.fromkeys(ends, 0) | dict(asked or {}),
        answers=ends,
    )


def log_info(*, last_epoch: int = 3, end: int = 9, current_epoch: int = 4, error: str = "NONE") -> ReplicaLogInfo:
    return ReplicaLogInfo(
        topic="foo",
        partition=0,
        topic_id=FOO_ID,
        last_epoch=last_epoch,
        current_epoch=current_epoch,
        end=end,
        error=error,
    )


@pytest.mark.parametrize(
    ("under_way", "known", "asked"),
    [
        (recovery(), brokers(1, 2, 3), (3, 1, 2)),
        (recovery(), brokers(1, 2, 4), (1, 2)),
        (recovery(), brokers(1, 2, shutting_down=[2]), (1,)),
        (recovery(asked={1: 0}), brokers(1, 2), (2,)),
        (recovery(asked={1: 0}), brokers(1, epochs={1: 1}), (1,)),  # that was another life
        (recovery(answers={1: (3, 9)}), brokers(1, epochs={1: 1}), (1,)),
        (recovery(), brokers(), ()),
        # A disk that refuses can be read.
        (recovery(), brokers(1, 2).without(frozenset({1})), (1, 2)),
        (recovery(answers={1: (3, 9)}), brokers(1, 2).without(frozenset({1})), (2,)),
        (recovery(), brokers(1, 2, shutting_down=[1]).without(frozenset({1})), (2,)),
    ],
)
def test_live_replicas_are_asked_once_a_life(
    under_way: UncleanRecovery, known: Brokers, asked: tuple[BrokerId, ...]
) -> None:
    assert to_ask(under_way, REPLICAS, known, now_ms=1_000, timeout_ms=TIMEOUT_MS) == asked


def test_who_is_asked_is_remembered_and_what_an_earlier_life_answered_is_not() -> None:
    before = recovery(answers={1: (3, 9), 2: (3, 5)})
    assert asking(before, (1, 3), brokers(1, 2, 3, epochs={1: 6}), 1_700) == recovery(
        asked={1: 6, 3: 0}, answers={2: (3, 5)}, asked_ms=1_700
    )


ASKED = recovery(asked={1: 0, 2: 0})


@pytest.mark.parametrize(
    ("broker", "broker_epoch", "info", "after"),
    [
        (1, 0, log_info(), recovery(asked={1: 0, 2: 0}, answers={1: (3, 9)})),
        (3, 0, log_info(), ASKED),  # nobody asked it
        (1, 0, log_info(error="KAFKA_STORAGE_ERROR"), ASKED),
        # Stale: of another life, or of a replica that does not know the present leader epoch. It is asked again.
        (1, 1, log_info(), recovery(asked={2: 0})),
        (1, 0, log_info(current_epoch=3), recovery(asked={2: 0})),
        (1, 0, log_info(current_epoch=5), recovery(asked={2: 0})),
    ],
)
def test_an_answer_counts_in_the_present_life_and_leader_epoch(
    broker: BrokerId, broker_epoch: int, info: ReplicaLogInfo, after: UncleanRecovery
) -> None:
    assert answered(ASKED, broker, broker_epoch, info, brokers(1, 2)) == after


def test_a_second_answer_says_nothing() -> None:
    before = recovery(answers={1: (3, 9)})
    assert answered(before, 1, 0, log_info(end=2), brokers(1)) is before


IN_TIME, TOO_LATE = 1_000 + TIMEOUT_MS - 1, 1_000 + TIMEOUT_MS


@pytest.mark.parametrize(("now_ms", "asked"), [(IN_TIME, (3,)), (TOO_LATE, (3, 1))])
def test_who_has_not_answered_for_a_whole_timeout_is_asked_again(now_ms: int, asked: tuple[BrokerId, ...]) -> None:
    under_way = recovery(asked={1: 0}, answers={2: (3, 9)})
    assert to_ask(under_way, REPLICAS, brokers(1, 2, 3), now_ms=now_ms, timeout_ms=TIMEOUT_MS) == asked


STANDING = replace(recovery(), started_ms=None)


def test_the_clock_begins_with_the_first_question_and_with_no_later_one() -> None:
    known = brokers(1, 2)
    begun = asking(STANDING, (1,), known, 3_000)
    assert begun == replace(STANDING, started_ms=3_000, asked_ms=3_000, asked={1: 0})
    assert asking(begun, (2,), known, 4_000).started_ms == 3_000


@pytest.mark.parametrize(
    ("known", "goes_on"),
    [
        (brokers(1, 2), True),
        (brokers(2), True),
        (brokers(3), False),  # it lives, and was not asked
        (brokers(), False),
        (brokers(1, 2, epochs={1: 1, 2: 1}), False),  # other lives than those that were asked
        (brokers(1, 2, epochs={1: 1}), True),
        (brokers(1, 2, shutting_down=[1, 2]), False),
        (brokers(1, 2).without(frozenset({1, 2})), True),
        (brokers(1).without(frozenset({1, 2})), True),
        (brokers(3).without(frozenset({1, 2})), False),
    ],
)
def test_the_clock_stands_still_while_nobody_who_was_asked_lives(known: Brokers, goes_on: bool) -> None:
    under_way = recovery(asked={1: 0}, answers={2: (3, 9)})
    assert timed(under_way, REPLICAS, known) == (under_way if goes_on else STANDING)


@pytest.mark.parametrize(
    ("under_way", "now_ms", "over"),
    [(recovery(), IN_TIME, False), (recovery(), TOO_LATE, True), (STANDING, TOO_LATE, False)],
)
def test_a_clock_that_stands_still_never_ends(under_way: UncleanRecovery, now_ms: int, over: bool) -> None:
    assert is_over(under_way, now_ms, TIMEOUT_MS) is over


@pytest.mark.parametrize(
    ("under_way", "known", "now_ms", "won"),
    [
        (recovery(), brokers(1, 2, 3), TOO_LATE, None),
        # All replicas have answered: nobody is waited for.
        (recovery(answers={1: (3, 9), 2: (3, 8), 3: (3, 7)}), brokers(1, 2, 3), 1_000, 1),
        (recovery(answers={1: (3, 9), 2: (3, 8)}), brokers(1, 2, 3), IN_TIME, None),
        (recovery(answers={1: (3, 9), 2: (3, 8)}), brokers(1, 2, 3), TOO_LATE, 1),
        (recovery(answers={1: (3, 9), 2: (3, 8)}), brokers(1, 2), IN_TIME, None),  # 3 may come back in time
        # The highest last written epoch, then the longest log, then assignment order.
        (recovery(answers={1: (3, 9), 2: (4, 1)}), brokers(1, 2), TOO_LATE, 2),
        (recovery(answers={1: (3, 9), 2: (3, 9), 3: (3, 8)}), brokers(1, 2, 3), TOO_LATE, 1),
        (recovery(answers={1: (3, 9), 2: (3, 9), 3: (3, 9)}), brokers(1, 2, 3), TOO_LATE, 3),
        (recovery(answers={2: (-1, 0)}), brokers(2), TOO_LATE, 2),  # an empty log is one, too
        # Whoever is required has answered, however late it is.
        (recovery(2, answers={1: (3, 9)}), brokers(1, 2), TOO_LATE, None),
        (recovery(2, answers={1: (3, 9), 2: (3, 5)}), brokers(1, 2), IN_TIME, None),
        (recovery(2, answers={1: (3, 9), 2: (3, 5)}), brokers(1, 2), TOO_LATE, 1),
        # What counts is who lives now, in the life that answered.
        (recovery(answers={1: (3, 9), 2: (3, 5)}), brokers(2), TOO_LATE, 2),
        (recovery(1, answers={1: (3, 9), 2: (3, 5)}), brokers(2), TOO_LATE, None),
        (recovery(answers={1: (3, 9), 2: (3, 5)}), brokers(1, 2, epochs={1: 1}), TOO_LATE, 2),
        (recovery(answers={1: (3, 9), 2: (3, 5)}), brokers(1, 2, shutting_down=[1]), TOO_LATE, 2),
        # One that was a replica once is none.
        (recovery(answers={4: (9, 9), 2: (3, 5)}), brokers(2, 4), TOO_LATE, 2),
    ],
)
def test_the_best_log_wins_once_enough_have_answered(
    under_way: UncleanRecovery, known: Brokers, now_ms: int, won: BrokerId | None
) -> None:
    assert elected(under_way, known, now_ms) == won


WAITED_FOR, NO_LONGER = TOO_LATE + DISK_RETRY_MS - 1, TOO_LATE + DISK_RETRY_MS


@pytest.mark.parametrize(
    ("under_way", "refusing", "now_ms", "won"),
    [
        (recovery(answers={1: (3, 9), 2: (3, 8)}), {1}, WAITED_FOR, None),
        (recovery(answers={1: (3, 9), 2: (3, 8)}), {1}, NO_LONGER, 2),
        (recovery(answers={1: (3, 9), 2: (3, 8)}), {1, 2}, NO_LONGER, None),
        (recovery(answers={1: (3, 9), 2: (3, 8)}), {2}, TOO_LATE, 1),
        (recovery(answers={1: (3, 9), 2: (3, 9)}), {1}, TOO_LATE, 2),  # it would lose nothing
        # All have answered: who is waited for is who has the best log.
        (recovery(answers={1: (3, 9), 2: (3, 8), 3: (3, 7)}), {3}, 1_000, 1),
        (recovery(answers={1: (3, 9), 2: (3, 8), 3: (3, 7)}), {1}, 1_000, None),
        # It has not answered, or in another life.
        (recovery(asked={1: 0}, answers={2: (3, 8)}), {1}, TOO_LATE, 2),
        (recovery(asked={1: 3}, answers={1: (3, 9), 2: (3, 8)}), {1}, TOO_LATE, 2),
        # A required one has to be well.
        (recovery(1, answers={1: (3, 9), 2: (3, 9)}), {1}, NO_LONGER, None),
    ],
)
def test_a_disk_that_refuses_the_best_log_is_waited_for_and_not_for_ever(
    under_way: UncleanRecovery, refusing: set[BrokerId], now_ms: int, won: BrokerId | None
) -> None:
    assert elected(under_way, brokers(1, 2, 3).without(frozenset(refusing)), now_ms) == won


def elected(under_way: UncleanRecovery, known: Brokers, now_ms: int) -> BrokerId | None:
    won = winner(under_way, REPLICAS, known, now_ms=now_ms, timeout_ms=TIMEOUT_MS)
    most_ms = TIMEOUT_MS + DISK_RETRY_MS
    if won is None or is_put_off(under_way, won, REPLICAS, known, now_ms=now_ms, most_ms=most_ms):
        return None
    return won


def outcome(
    answers: Mapping[BrokerId, tuple[int, int]], before: PartitionState, asked: Mapping[BrokerId, int] | None = None
) -> Elected:
    """The election of broker 2 at leader epoch 4, after a leader of epoch 3."""
    return unclean_recovery.elected(recovery(answers=answers, asked=asked), 2, before, REPLICAS, brokers(1, 2, 3))


GONE = state(None, [])


@pytest.mark.parametrize(
    ("answers", "before", "complete_below"),
    [
        ({2: (3, 5)}, GONE, 5),
        ({2: (2, 5)}, GONE, None),  # the last leader may have written others in place of its last ones
        ({2: (4, 5)}, GONE, None),  # ZooKeeper was put back
        ({2: (-1, 0)}, GONE, 0),  # below that there is nothing
        ({2: (3, 5)}, state(None, [], last_known_elr=[1, 2, 3]), None),  # any of them may have a later epoch
        ({1: (3, 1), 2: (3, 5), 3: (1, 1)}, state(None, [], last_known_elr=[1, 2, 3]), 5),
    ],
)
def test_the_log_of_the_last_leader_is_complete_to_its_end(
    answers: dict[BrokerId, tuple[int, int]], before: PartitionState, complete_below: int | None
) -> None:
    assert outcome(answers, before) == Elected(2, "unclean_recovery", complete_below=complete_below)


@pytest.mark.parametrize(
    ("answers", "holding", "lacks_max"),
    [
        ({1: (3, 9), 2: (3, 5)}, [], None),  # whoever has more may have lost more
        ({1: (3, 9), 2: (3, 5)}, [3], None),  # it has not answered
        ({1: (3, 9), 2: (3, 5)}, [1], 4),
        ({1: (3, 9), 2: (3, 5), 3: (3, 7)}, [1, 3], 2),  # each of them has all that was acknowledged
        ({1: (2, 4), 2: (3, 5)}, [1], 0),
    ],
)
def test_a_log_that_has_everything_bounds_what_the_winner_lacks(
    answers: dict[BrokerId, tuple[int, int]], holding: list[BrokerId], lacks_max: int | None
) -> None:
    found = outcome(answers, state(None, [], elr=holding))
    assert found == Elected(2, "unclean_recovery", complete_below=5, lacks_max=lacks_max)


def test_of_other_records_below_its_end_nothing_bounds_the_number() -> None:
    assert outcome({1: (3, 9), 2: (2, 5)}, state(None, [], elr=[1])) == Elected(2, "unclean_recovery")


def test_an_answer_of_another_life_bounds_nothing() -> None:
    found = outcome({1: (3, 9), 2: (3, 5)}, state(None, [], elr=[1]), {1: 3})
    assert found == Elected(2, "unclean_recovery", complete_below=5)


@st.composite
def any_recovery(draw: st.DrawFn) -> UncleanRecovery:
    ends = st.tuples(st.integers(-1, 3), st.integers(0, 3))
    asked = draw(st.dictionaries(st.sampled_from(REPLICAS), st.integers(0, 1)))
    answers = {broker: draw(ends) for broker in asked if draw(st.booleans())}
    required = draw(st.frozensets(st.sampled_from(REPLICAS)))
    return replace(recovery(answers=answers, asked=asked), required=required)


LIVING = st.builds(
    lambda live, stopping, epochs: brokers(*live, shutting_down=stopping, epochs=epochs),
    st.frozensets(st.sampled_from(REPLICAS)),
    st.frozensets(st.sampled_from(REPLICAS), max_size=1),
    st.fixed_dictionaries(dict.fromkeys(REPLICAS, st.integers(0, 1))),
)


@given(under_way=any_recovery(), known=LIVING, now_ms=st.sampled_from([1_000, IN_TIME, TOO_LATE]))
def test_whoever_wins_may_lead_and_nobody_who_counts_has_a_better_log(
    under_way: UncleanRecovery, known: Brokers, now_ms: int
) -> None:
    won = elected(under_way, known, now_ms)
    present = {b for b in under_way.answers if b in known.electable and under_way.asked[b] == known.epochs[b]}
    in_time = not is_over(under_way, now_ms, TIMEOUT_MS)
    if won is None:
        assert not present or under_way.required - present or (in_time and present != set(REPLICAS))
    else:
        assert won in present
        assert under_way.required <= present
        assert not in_time or present == set(REPLICAS)
        best = max(under_way.answers[broker] for broker in present)
        assert under_way.answers[won] == best
        assert next(b for b in REPLICAS if b in present and under_way.answers[b] == best) == won


@given(under_way=any_recovery(), known=LIVING)
def test_asked_and_answered_in_the_end_every_live_replica_counts(under_way: UncleanRecovery, known: Brokers) -> None:
    """Whatever came before: lost, stale or of an earlier life."""
    under_way = replace(under_way, required=known.electable)
    asked = to_ask(under_way, REPLICAS, known, now_ms=TOO_LATE, timeout_ms=TIMEOUT_MS)
    under_way = asking(under_way, asked, known, TOO_LATE)
    assert to_ask(under_way, REPLICAS, known, now_ms=TOO_LATE, timeout_ms=TIMEOUT_MS) == ()
    for broker in asked:
        under_way = answered(under_way, broker, known.epochs[broker], log_info(), known)
    won = elected(under_way, known, TOO_LATE)
    assert (won is not None) == bool(known.electable)
