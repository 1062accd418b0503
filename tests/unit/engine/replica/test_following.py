"""A replica that follows: what it takes from its leader, and what it cuts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Me
from spark_replication.errors import CorruptLog, StorageFailed
from spark_replication.messages.replication import Diverging, FetchedPartition, FetchPartition
from spark_replication.ports import PreparedBatch
from tests.unit.core.stories import FOO_ID, command, settings, state
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
    assert story.answers == [OffsetSpan(5, 5)]


def test_a_follower_that_ends_below_its_leaders_start_begins_anew_there() -> None:
    leader, story = Story((5, 9, 3)).told(), follower((0, 3, 2))
    fetched(story, leader)
    assert (story.log.log_start, story.log.log_end, story.log.epochs) == (5, 5, EpochHistory.of([(0, 5)]))
    assert story.loop.high_watermark == 5
    fetched(story, leader)
    assert (story.log.records, story.log.epochs) == (leader.log.records, EpochHistory.of([(3, 5)]))


def test_a_follower_whose_whole_log_parts_from_its_leaders_begins_anew() -> None:
    leader, story = Story((0, 9, 3)).told(), follower((5, 7, 2))
    for _ in range(3):
        fetched(story, leader)
    assert (story.log.log_start, story.log.records) == (0, leader.log.records)


def test_what_came_is_served_and_flushed_though_the_disk_refuses_to_forget_what_is_over() -> None:
    leader, story = Story((0, 9, 3)).told(), follower((0, 9, 3))
    story.loop.configure(settings(flush="always"))
    story.flushes.end()
    story.log.rows_per_segment = leader.log.rows_per_segment = 2
    fetched(story, leader, high_watermark=5)
    leader.log.forget(6)
    leader.produce(2)
    story.log.failing = frozenset({"forget"})
    story.on_progress()
    with pytest.raises(StorageFailed):
        fetched(story, leader, high_watermark=9)
    assert (story.log.log_start, story.log.log_end) == (0, 12)
    assert story.progress == 1, "whoever waits to read on is told"
    assert story.log.flushing is not None, "what has come is on its way to the disk"


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
    fetch = story.loop.next_fetch()
    assert fetch is not None
    leader.loop.fetch_answered(fetch, FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4), None)
    assert leader.leading.state == LED


def parted(story: Story) -> tuple[FetchPartition, FetchedPartition]:
    """A fetch of a follower, and the answer that its log parts from the leader's at 2, which is still on its way."""
    fetch = story.loop.next_fetch()
    assert fetch is not None
    answer = FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4)
    return fetch, replace(answer, diverging=Diverging(epoch=3, end=2))


def test_an_answer_left_over_from_before_a_lost_session_cuts_nothing_of_what_came_since() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 4, 3))
    late = parted(story)
    story.loop.resign("its session expired")
    story.loop.command(command(LED, 7), Me(2, 1, 0), 0)
    leader.produce(3)
    fetched(story, leader)
    assert story.log.log_end == 8
    story.loop.next_fetch()
    story.loop.fetch_answered(*late, None)
    assert story.log.log_end == 8


def test_only_the_last_fetch_is_answered_and_once() -> None:
    story = follower((0, 4, 3))
    first, second = parted(story), parted(story)
    assert first == second, "they ask for the same, and are two all the same"
    story.loop.fetch_answered(*first, None)
    assert story.log.log_end == 5
    story.loop.fetch_answered(*second, None)
    assert story.log.log_end == 2
    story.log.append(PreparedBatch(1, b"x", 0, b""), leader_epoch=3, timestamp_ms=0)
    story.loop.fetch_answered(*second, None)
    assert story.log.log_end == 3


def test_who_has_told_of_its_log_takes_no_answer_to_what_it_had_asked_before() -> None:
    story = follower((0, 4, 3))
    late = parted(story)
    story.loop.log_info(4)
    story.loop.fetch_answered(*late, None)
    assert story.log.log_end == 5


def test_who_leads_meanwhile_takes_no_answer_to_what_it_asked_as_a_follower() -> None:
    story = follower((0, 4, 3))
    late = parted(story)
    story.loop.command(command(state(2, [2], min_isr=1, leader_epoch=5), 8), Me(2, 0, 0), 0)
    story.loop.command(command(state(1, [1, 2], leader_epoch=6), 9), Me(2, 0, 0), 0)
    story.loop.fetch_answered(late[0], replace(late[1], leader_epoch=6), None)
    assert story.log.log_end == 5


def test_a_newer_command_about_the_same_leader_changes_nothing_of_what_was_asked() -> None:
    story = follower((0, 4, 3))
    asked = parted(story)
    story.loop.command(command(state(1, [1, 2, 3]), 8), Me(2, 0, 0), 0)
    story.loop.fetch_answered(*asked, None)
    assert story.log.log_end == 2


def test_records_that_do_not_continue_the_log_are_refused() -> None:
    leader, story = Story((0, 4, 3)).told(), follower()
    records = leader.log.find(2, bytes_max=9, end=5)
    assert records is not None
    answer = FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4)
    fetch = story.loop.next_fetch()
    assert fetch is not None
    with pytest.raises(CorruptLog, match="asked for 0, got 2"):
        story.loop.fetch_answered(fetch, answer, records.loaded())
