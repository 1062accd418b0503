"""The answers that a producer is owed, as frames and Flight take them."""

from __future__ import annotations

import math

import pytest

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.engine.ends.puts import OwedPuts, PendingPut
from spark_replication.errors import RequestTimedOut

STORED = OffsetSpan(0, 0)
TIMEOUT_MS = 100


class Story:
    def __init__(self, count: int) -> None:
        """Answer n is owed from the moment n on."""
        self.wakes = 0
        self.owed = OwedPuts(timeout_ms=TIMEOUT_MS, wake=self._woken)
        self.answers = [self.owed.begin(number, number) for number in range(count)]

    def _woken(self) -> None:
        self.wakes += 1

    def fill(self, *numbers: int) -> None:
        for number in numbers:
            self.answers[number].fill(STORED)


def numbers(answers: list[PendingPut]) -> list[int]:
    return [answer.number for answer in answers]


def test_answers_are_taken_as_they_become_known_or_in_the_order_of_their_batches() -> None:
    together, ordered = Story(4), Story(4)
    for story in (together, ordered):
        story.fill(2, 0)
    assert numbers(together.owed.take()) == [2, 0]
    assert numbers(ordered.owed.take_in_order()) == [0]
    for story in (together, ordered):
        story.fill(1)
    assert numbers(together.owed.take()) == [1]
    assert numbers(ordered.owed.take_in_order()) == [1, 2]
    assert [len(story.owed) for story in (together, ordered)] == [1, 1]
    assert 3 in together.owed
    assert 2 not in together.owed


def test_nothing_is_kept_of_answers_that_were_taken() -> None:
    for take in (OwedPuts.take, OwedPuts.take_in_order):
        story = Story(2)
        story.fill(1, 0)
        take(story.owed)
        assert (len(story.owed), len(story.owed._filled)) == (0, 0)


@pytest.mark.parametrize("take", [OwedPuts.take, OwedPuts.take_in_order])
def test_whoever_takes_them_is_woken_once_between_two_looks(take: object) -> None:
    story = Story(4)
    story.fill(0, 1)
    assert story.wakes == 1
    assert callable(take)
    assert numbers(take(story.owed)) == [0, 1]
    story.fill(2, 3)
    assert (story.wakes, numbers(take(story.owed))) == (2, [2, 3])
    assert (take(story.owed), story.owed.due_ms) == ([], math.inf)


def test_those_that_have_waited_for_too_long_are_answered_and_no_others() -> None:
    story = Story(3)
    story.fill(0)
    assert story.owed.due_ms == TIMEOUT_MS
    story.owed.expire(TIMEOUT_MS)
    assert numbers(story.owed.take()) == [0]
    story.owed.expire(TIMEOUT_MS + 1)
    (late,) = story.owed.take()
    assert late.number == 1
    assert isinstance(late.outcome, RequestTimedOut)
    assert late.outcome.maybe_written
    late.fill(STORED)
    assert story.owed.take() == []
    assert story.owed.due_ms == TIMEOUT_MS + 2
