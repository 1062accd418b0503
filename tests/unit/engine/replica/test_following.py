"""A replica that follows: what it takes from its leader, and what it cuts."""

from __future__ import annotations

import pytest

from spark_replication.core.producers import Place
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.replica import Me
from spark_replication.errors import CorruptLog
from spark_replication.messages.replication import Diverging, FetchedPartition
from tests.unit.core.stories import FOO_ID, command, state
from tests.unit.engine.replica.story import LED, Story, fetched, follower


def test_a_follower_cuts_what_parts_appends_the_same_and_knows_the_producers() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 6, 3))
    leader.produce(2, sequence=0)
    fetched(story, leader)
    assert story.log.log_end == 5
    fetched(story, leader)
    assert story.log.records == leader.log.records
    # It cuts them again, and so its producers' batches too, when another leads without them.
    other = Story((0, 4, 3)).told(state(1, [1, 2], leader_epoch=6), 9)
    story.loop.command(command(state(1, [1, 2], leader_epoch=6), 9), Me(2, 0, 0), 0)
    fetched(story, other)
    assert story.log.log_end == 5
    story.loop.command(command(state(2, [2], min_isr=1, leader_epoch=7), 10), Me(2, 0, 0), 0)
    story.produce(sequence=0)
    assert story.answers == [Place(5, 5)]


def test_a_follower_that_ends_below_its_leaders_start_begins_anew_there() -> None:
    leader, story = Story((5, 9, 3)).told(), follower((0, 3, 2))
    fetched(story, leader)
    assert (story.log.log_start, story.log.log_end, story.log.epochs) == (5, 5, EpochHistory())
    assert story.loop.high_watermark == 5
    fetched(story, leader)
    assert (story.log.records, story.log.epochs) == (leader.log.records, EpochHistory.of([(3, 5)]))


def test_a_follower_whose_whole_log_parts_from_its_leaders_begins_anew() -> None:
    leader, story = Story((0, 9, 3)).told(), follower((5, 7, 2))
    for _ in range(3):
        fetched(story, leader)
    assert (story.log.log_start, story.log.records) == (0, leader.log.records)


def test_a_follower_forgets_what_its_leader_has_forgotten_as_far_as_it_is_committed() -> None:
    leader, story = Story((0, 9, 3)).told(), follower((0, 9, 3))
    story.log.rows_per_segment = leader.log.rows_per_segment = 2
    leader.log.forget(6)
    fetched(story, leader, high_watermark=5)
    assert (story.log.log_start, story.log.log_end) == (4, 10)
    fetched(story, leader, high_watermark=8)
    assert (story.log.log_start, story.log.epochs) == (6, EpochHistory.of([(3, 6)]))


def test_where_nothing_parts_nothing_is_cut() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 4, 3))
    fetched(story, leader, diverging=Diverging(epoch=3, end=9))
    assert story.log.log_end == 5


def test_a_followers_high_watermark_is_within_its_log_and_never_falls() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 1, 3))
    fetched(story, leader, high_watermark=9)
    assert story.loop.high_watermark == 5
    fetched(story, leader, high_watermark=2)
    assert story.loop.high_watermark == 5


def test_an_answer_of_another_epoch_or_to_who_follows_no_more_says_nothing() -> None:
    leader, story = Story((0, 4, 3)).told(), follower()
    fetched(story, leader, leader_epoch=3)
    assert story.log.log_end == 0
    leader.loop.fetched(FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4), None)
    assert leader.leading.state == LED


def test_records_that_do_not_continue_the_log_are_refused() -> None:
    leader, story = Story((0, 4, 3)).told(), follower()
    records = leader.log.find(2, bytes_max=9, end=5)
    assert records is not None
    answer = FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4)
    with pytest.raises(CorruptLog, match="asked for 0, got 2"):
        story.loop.fetched(answer, records.loaded())
