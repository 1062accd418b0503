"""When a replica's log goes to the disk, and who waits for it: driven by hand, flush by flush."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Me
from spark_replication.errors import NotLeader, Overloaded, StorageFailed
from tests.unit.core.stories import FOO, command, settings, state
from tests.unit.engine.replica.story import LED, Story, fetched

ALONE = state(1, [1], min_isr=1)
FAILED = StorageFailed("/logs/foo could not be flushed: EIO")


def always(*records: tuple[int, int, int], **given: Any) -> Story:
    return Story(*records, flush="always", **given)


def follower_of_always(*records: tuple[int, int, int]) -> Story:
    story = always(*records)
    story.loop.command(command(LED, 7), Me(2, 0, 0), 0)
    return story


def test_without_flushing_nobody_waits_for_the_disk() -> None:
    story = Story().told(ALONE)
    story.produce(acks=1)
    story.produce(acks="all")
    story.loop.tick(1 << 40)
    assert (story.answers, story.flushes.running, story.loop.high_watermark) == (
        [OffsetSpan(0, 0), OffsetSpan(1, 1)],
        [],
        2,
    )


def test_what_is_acknowledged_is_on_the_disk_first() -> None:
    story = always().told(ALONE)
    story.produce(acks="all")
    story.produce(acks=1)
    story.produce(acks=0)
    assert (story.answers, story.loop.high_watermark) == ([OffsetSpan(2, 2)], 0)
    story.flushes.end()  # it began when there was but the first
    assert (story.answers, story.loop.high_watermark) == ([OffsetSpan(2, 2), OffsetSpan(0, 0)], 1)
    story.flushes.end()
    assert (story.answers[2:], story.loop.high_watermark) == ([OffsetSpan(1, 1)], 3)
    assert story.flushes.running == []


def test_one_flush_covers_all_that_came_while_the_one_before_ran() -> None:
    story = always().told(ALONE)
    for _ in range(5):
        story.produce(acks=1)
        assert len(story.flushes.running) == 1
    story.flushes.end()
    assert (story.answers, len(story.flushes.running)) == ([OffsetSpan(0, 0)], 1)
    story.flushes.end()
    assert story.answers == [OffsetSpan(number, number) for number in range(5)]


def test_the_high_watermark_waits_for_the_leaders_disk_as_for_the_followers() -> None:
    story = always().told()
    story.produce()
    story.fetch(2, 1)
    assert (story.answers, story.loop.high_watermark) == ([], 0)
    story.flushes.end()
    assert (story.answers, story.loop.high_watermark) == ([OffsetSpan(0, 0)], 1)
    story.produce()
    story.flushes.end()
    assert story.loop.high_watermark == 1
    story.fetch(2, 2)
    assert story.loop.high_watermark == 2


def test_a_batch_that_is_sent_again_waits_for_the_disk_too() -> None:
    story = always().told(ALONE)
    story.produce(acks=1, sequence=0)
    story.produce(acks=1, sequence=0)
    assert story.answers == []
    story.flushes.end()
    story.produce(acks=1, sequence=0)
    assert story.answers == [OffsetSpan(0, 0)] * 3


def test_a_leader_first_flushes_what_it_has() -> None:
    story = always((0, 4, 3)).told(ALONE)
    assert story.loop.high_watermark == 0
    story.flushes.end()
    assert story.loop.high_watermark == 5


def test_a_follower_reports_what_is_on_its_disk() -> None:
    leader, story = Story((0, 4, 3)).told(), follower_of_always()
    fetched(story, leader)
    assert (story.log.log_end, story.loop.next_fetch()) == (5, None)
    story.links.following.clear()
    story.flushes.end()
    assert story.links.following == {FOO: 1}  # it is to be asked again
    fetch = story.loop.next_fetch()
    assert fetch is not None
    assert fetch.offset == 5


def test_a_follower_first_flushes_what_it_has() -> None:
    story = follower_of_always((0, 4, 3))
    assert story.loop.next_fetch() is None
    story.flushes.end()
    assert story.loop.next_fetch() is not None


@pytest.mark.parametrize("stored", [state(None, [2], leader_epoch=5), state(2, [2], leader_epoch=5)])
def test_a_flush_that_ends_after_the_leadership_acknowledges_nothing(stored: Any) -> None:
    story = always().told(ALONE)
    story.produce(acks=1)
    story.produce(acks="all")
    story.told(stored, 9)
    assert story.errors() == [("NOT_LEADER_OR_FOLLOWER", True)] * 2
    story.flushes.end()
    assert len(story.answers) == 2
    with pytest.raises(NotLeader):
        story.produce()


def test_a_flush_that_ends_after_the_session_changes_nothing() -> None:
    story = always().told(ALONE)
    story.produce(acks=1)
    story.produce(acks=1)
    story.loop.resign("gone")
    story.flushes.end()
    assert (story.errors(), story.flushes.running) == ([("NOT_LEADER_OR_FOLLOWER", True)] * 2, [])


def test_a_flush_that_fails_is_told_to_whoever_waits_and_not_repeated() -> None:
    story = always().told(ALONE)
    story.produce(acks=1)
    story.produce(acks="all")
    story.log.failing = frozenset({"flush", "append"})  # as an offline log does
    story.flushes.end(FAILED)
    assert story.errors() == [("KAFKA_STORAGE_ERROR", True)] * 2
    assert (story.loop.high_watermark, story.flushes.running) == (0, [])
    with pytest.raises(StorageFailed):
        story.produce(acks=1)


@pytest.mark.parametrize(("acks", "whom"), [(1, "the disk"), ("all", "followers")])
def test_only_so_many_appends_wait(acks: int | str, whom: str) -> None:
    story = always(partition_waiters_max=2).told(ALONE)
    story.produce(acks=acks)
    story.produce(acks=acks)
    with pytest.raises(Overloaded, match=f"2 appends of foo-0 wait for {whom}"):
        story.produce(acks=acks)
    story.produce(acks=0)
    story.flushes.end()
    story.produce(acks=acks)
    assert story.answers == [OffsetSpan(2, 2), OffsetSpan(0, 0)]


def test_leaders_and_followers_flush_by_the_interval_and_nobody_waits_for_it() -> None:
    leader = Story(flush="interval", flush_interval_ms=100).told(ALONE)
    follower = Story((0, 4, 3), flush="interval", flush_interval_ms=100)
    follower.loop.command(command(LED, 7), Me(2, 0, 0), 0)
    leader.produce(acks=1)
    assert leader.answers == [OffsetSpan(0, 0)]
    for story in (leader, follower):
        assert story.loop.waits_for_time
        story.loop.tick(99)
        assert story.flushes.running == []
        story.loop.tick(100)
        assert len(story.flushes.running) == 1
        story.loop.tick(250)  # it takes long: there is one at a time
        assert len(story.flushes.running) == 1
        story.flushes.end()
        assert (story.flushes.running, story.log.flushed_end) == ([], story.log.log_end)
    leader.log.failing = frozenset({"flush"})
    leader.loop.tick(400)  # offline: who writes is told
    assert not Story(flush="none").loop.waits_for_time


def test_from_one_moment_to_the_next_a_topic_is_flushed_always() -> None:
    story = Story().told(ALONE)
    story.produce(acks=1)
    story.loop.configure(settings(flush="always"))
    assert len(story.flushes.running) == 1
    story.flushes.end()
    story.produce(acks=1)
    assert story.answers == [OffsetSpan(0, 0)]
    story.loop.configure(settings(flush="none"))
    story.produce(acks=1)
    assert story.answers == [OffsetSpan(0, 0), OffsetSpan(2, 2)]
    story.flushes.end()
    assert story.answers == [OffsetSpan(0, 0), OffsetSpan(2, 2), OffsetSpan(1, 1)]
