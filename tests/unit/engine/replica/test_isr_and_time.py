"""A replica as time passes, and as ZooKeeper answers: its ISR, its retention, its checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.core.law.writes import IsrCommitted, IsrRefused, IsrUnanswered, IsrWrite, StoredPartition
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.errors import OffsetOutOfRange
from spark_replication.model import PartitionState
from tests.unit.core.stories import FOO, FOO_ID, settings, state
from tests.unit.engine.replica.story import LED, Story, follower

JOINED = state(1, [1, 2, 3])


def joining() -> Story:
    """3 has caught up, and the leader has asked for it."""
    story = Story().told()
    story.fetch(3, 0)
    return story


def test_who_caught_up_is_asked_for_and_counts_from_then_on() -> None:
    story = joining()
    story.produce()
    story.fetch(2, 1)
    assert story.answers == []
    assert story.isr_store.answer(IsrCommitted(8)) == IsrWrite(
        partition=FOO, topic_id=FOO_ID, broker=1, broker_epoch=0, state=JOINED, version=7, joining={3: 0}
    )
    assert (story.leading.state, story.leading.partition_epoch, story.answers) == (JOINED, 8, [])
    story.fetch(3, 1)
    assert story.answers == [OffsetSpan(0, 0)]


def test_an_answer_that_shrinks_what_is_waited_for_acknowledges() -> None:
    story = joining()
    story.produce()
    story.fetch(2, 1)
    story.isr_store.answer(IsrRefused(StoredPartition(LED, 7)))
    assert (story.answers, story.leading.pending) == ([OffsetSpan(0, 0)], None)


def test_a_change_without_an_answer_is_asked_again_as_it_was_and_once_a_tick() -> None:
    story = joining()
    story.loop.tick(1)
    assert len(story.isr_store.asked) == 1  # it is in flight
    first = story.isr_store.answer(IsrUnanswered())
    assert story.leading.maximal_isr == {1, 2, 3}
    story.loop.tick(2)
    story.loop.tick(3)
    assert len(story.isr_store.asked) == 1
    assert story.isr_store.answer(IsrCommitted(8)) == first


def test_who_is_silent_leaves_and_one_that_follows_asks_nothing() -> None:
    story = Story(replica_lag_time_ms=100).told(now_ms=50)
    story.produce(acks=1, now_ms=60)
    story.loop.tick(149)
    assert story.isr_store.asked == []
    story.loop.tick(150)
    assert story.isr_store.answer(IsrCommitted(8)).state == state(1, [1], elr=[2])
    other = follower()
    other.loop.tick(10_000)
    assert other.isr_store.asked == []


def test_a_refusal_that_names_another_leader_ends_the_leadership() -> None:
    story = joining()
    story.produce()
    story.isr_store.answer(IsrRefused(StoredPartition(state(2, [2], leader_epoch=5), 8)))
    assert (story.loop.part, story.errors()) == (None, [("NOT_LEADER_OR_FOLLOWER", True)])
    # An old command does not bring it back; the new one is obeyed.
    assert story.told().loop.part is None
    assert story.told(state(2, [2], leader_epoch=5), 8).links.following == {FOO: 2}


def test_a_late_command_from_before_its_own_last_write_does_not_bring_a_leadership_back() -> None:
    """It was newer than the last command: with that ISR it would commit what the present members do not have."""
    story = Story(replica_lag_time_ms=100).told(now_ms=50)
    story.produce(acks=1, now_ms=60)
    story.loop.tick(150)
    shrunk = story.isr_store.answer(IsrCommitted(8)).state
    story.fetch(2, story.loop.log.log_end, now_ms=160)
    story.isr_store.answer(IsrCommitted(9))
    story.produce(acks=1, now_ms=170)
    story.loop.tick(400)
    story.isr_store.answer(IsrRefused(StoredPartition(state(2, [1, 2], leader_epoch=5), 10)))
    assert story.loop.part is None
    assert story.told(shrunk, 8).loop.part is None
    assert story.told(state(2, [1, 2], leader_epoch=5), 10).links.following == {FOO: 2}


@pytest.mark.parametrize("answer", [IsrCommitted(8), IsrRefused(None), IsrUnanswered()])
@pytest.mark.parametrize("stored", [state(2, [2], leader_epoch=5), state(1, [1, 2], leader_epoch=5)])
def test_an_answer_that_comes_after_the_leadership_ended_says_nothing(
    answer: IsrCommitted | IsrRefused | IsrUnanswered, stored: PartitionState
) -> None:
    story = joining().told(stored, 9)
    part = story.loop.part
    story.isr_store.answer(answer)
    assert story.loop.part is part
    story.loop.tick(0)
    assert story.isr_store.asked == []


def test_an_answer_that_was_overtaken_by_the_controllers_next_change_does_not_bring_back_the_old_isr() -> None:
    story = joining().told(state(1, [1, 3], elr=[], min_isr=2), 9)
    story.isr_store.answer(IsrCommitted(8))
    assert (story.leading.state, story.leading.partition_epoch, story.leading.pending) == (state(1, [1, 3]), 9, None)


def test_a_change_left_unanswered_by_an_earlier_leadership_is_not_asked_in_the_next() -> None:
    story = joining()
    story.isr_store.answer(IsrUnanswered())
    story.told(state(1, [1, 2], leader_epoch=5), 8)
    story.loop.tick(0)
    assert story.isr_store.asked == []


def retaining(**given: Any) -> Story:
    """Ten committed batches of producer 9, two to a segment, at time 0."""
    story = Story(log_retention_check_interval_ms=100, **given)
    story.log.rows_per_segment = 2
    story.told(state(1, [1], min_isr=1))
    for sequence in range(10):
        story.produce(sequence=sequence)
    story.answers.clear()
    return story


def test_a_leader_forgets_on_its_tick_what_its_topic_keeps_no_longer() -> None:
    story = retaining(retention_bytes=5)
    story.loop.tick(99)
    assert story.log.log_start == 0
    story.loop.tick(100)
    assert (story.log.log_start, story.log.log_end, story.loop.view.epochs) == (4, 10, EpochHistory.of([(4, 4)]))
    with pytest.raises(OffsetOutOfRange, match="offset 3 is outside 4 to 10"):
        story.loop.read(3, bytes_max=9, to=None)
    story.loop.configure(settings(retention_ms=50, log_retention_check_interval_ms=100))
    story.loop.tick(199)
    assert story.log.log_start == 4
    story.loop.tick(200)
    assert story.log.log_start == 8


def test_nothing_is_forgotten_that_followers_may_not_have_nor_the_last_that_they_have() -> None:
    story = Story(retention_bytes=0, log_retention_check_interval_ms=1).told()
    story.log.rows_per_segment = 1
    story.produce(5)
    story.fetch(2, 3)
    story.loop.tick(1)
    assert (story.log.log_start, story.loop.high_watermark) == (2, 3)


def test_a_producer_whose_batches_are_forgotten_goes_on() -> None:
    story = retaining(retention_bytes=0)
    story.loop.tick(100)
    story.produce(sequence=9)
    story.produce(sequence=10)
    assert story.answers == [OffsetSpan(9, 9), OffsetSpan(10, 10)]


def test_a_disk_that_lets_nothing_go_is_asked_again() -> None:
    story = retaining(retention_bytes=0)
    story.log.failing = frozenset({"forget"})
    story.loop.tick(100)
    assert story.log.log_start == 0
    story.log.failing = frozenset()
    story.loop.tick(200)
    assert story.log.log_start == 8


def test_a_follower_forgets_nothing_by_itself() -> None:
    story = follower((0, 9, 3))
    story.log.rows_per_segment = 1
    story.loop.configure(settings(retention_bytes=0, log_retention_check_interval_ms=1))
    story.loop.tick(1 << 50)
    assert story.log.log_start == 0


def test_the_high_watermark_is_checkpointed_once_it_moved() -> None:
    story = Story()
    story.loop.checkpoint()
    story.told()
    story.produce()
    story.fetch(2, 1)
    assert story.log.high_watermark == 0
    story.loop.checkpoint()
    assert story.log.high_watermark == 1
