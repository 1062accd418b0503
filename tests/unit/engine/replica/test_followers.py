"""A leader's replica and the fetches of its followers."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.messages.replication import Diverging
from tests.unit.engine.replica.story import Story


def test_a_fetch_at_the_end_waits_and_one_below_is_answered() -> None:
    story = Story().told()
    story.produce(3)
    story.fetch(2, 3)
    assert story.links.take() == []
    story.fetch(3, 1)
    assert story.links.take() == [3]
    answer = story.answer(3)
    assert (answer.offset, answer.high_watermark, answer.error) == (1, 3, "NONE")
    assert answer.data_bytes > 0
    assert story.loop.take_answer(3, 0) is None  # it has been answered
    story.produce()
    assert story.links.take() == [2]
    assert story.answer(2).offset == 3


def test_who_fetches_past_an_append_is_not_woken_by_it() -> None:
    story = Story().told()
    story.fetch(2, 5)
    story.links.take()
    story.produce()
    assert story.links.take() == []


def test_a_follower_whose_log_parts_is_told_where() -> None:
    story = Story((0, 4, 3)).told()
    story.fetch(2, 7, last_epoch=3)
    assert story.links.take() == [2]
    assert story.answer(2).diverging == Diverging(epoch=3, end=5)
    assert story.leading.followers[2].end == -1


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"leader_epoch": 3}, "FENCED_LEADER_EPOCH"),
        ({"leader_epoch": 5}, "UNKNOWN_LEADER_EPOCH"),
        ({"topic_id": "another"}, "NOT_LEADER_OR_FOLLOWER"),
    ],
)
def test_a_fetch_that_is_refused_says_why(changed: dict[str, Any], error: str) -> None:
    story = Story((0, 4, 3)).told()
    story.fetch(2, 5, **changed)
    assert story.links.take() == [2]
    answer = story.answer(2)
    assert (answer.error, answer.leader_epoch) == (error, changed.get("leader_epoch", 4))


@pytest.mark.parametrize(("offset", "last_epoch"), [(3, -1), (3, 3), (4, 9)])
def test_a_fetch_below_the_logs_start_is_told_where_it_starts_and_reports_no_end(offset: int, last_epoch: int) -> None:
    story = Story((5, 9, 3)).told()
    story.fetch(2, offset, last_epoch=last_epoch)
    assert story.links.take() == [2]
    answer = story.answer(2)
    assert (answer.error, answer.diverging, answer.log_start, answer.data_bytes) == ("NONE", None, 5, 0)
    assert story.leading.followers[2].end == -1


def test_a_follower_that_waits_hears_of_the_high_watermark_once_it_has_moved() -> None:
    story = Story().told()
    story.produce()
    story.fetch(3, 1)
    story.fetch(2, 1, high_watermark=1)
    story.loop.tell_high_watermark()
    assert story.links.take() == [3]
    answer = story.answer(3)
    assert (answer.high_watermark, answer.data_bytes) == (1, 0)


def test_that_a_follower_is_to_be_answered_is_said_once_for_each_of_its_fetches() -> None:
    story = Story().told()
    story.fetch(2, 0)
    story.produce()
    story.produce()
    assert story.links.take() == [2]
    story.fetch(2, 0)  # over another connection: of the one before nobody hears any longer
    assert story.links.take() == [2]
    story.answer(2)
    story.fetch(2, 2)
    assert story.links.take() == []
    story.produce()
    assert story.links.take() == [2]
