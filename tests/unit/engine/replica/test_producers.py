"""A replica and producers: what is stored, what is refused, and when it is acknowledged."""

from __future__ import annotations

import pytest

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import NotEnoughReplicas, Overloaded, StorageFailed
from spark_replication.messages.commands import PartitionCommand
from spark_replication.ports import PreparedBatch
from spark_replication.sim.world.one_at_a_time import at_once
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.replica.story import DISK_RETRY_MS, LED, ME, Story, fetched


def test_acks_all_waits_for_the_isr_and_others_do_not() -> None:
    story = Story().told()
    story.produce(2, acks="all")
    story.produce(1, acks=1)
    story.produce(1, acks=0)
    assert story.answers == [OffsetSpan(2, 2), OffsetSpan(3, 3)]
    story.fetch(2, 1)
    assert story.answers[2:] == []
    story.fetch(2, 4)
    assert (story.answers[2:], story.loop.high_watermark) == ([OffsetSpan(0, 1)], 4)


def test_acks_all_is_refused_below_min_isr_and_nothing_is_stored() -> None:
    story = Story().told(state(1, [1], elr=[2]))
    with pytest.raises(NotEnoughReplicas):
        story.produce()
    assert story.log.log_end == 0
    story.produce(acks=1)
    assert (story.answers, story.loop.high_watermark) == ([OffsetSpan(0, 0)], 0)


def test_only_so_many_appends_wait_at_one_time() -> None:
    story = Story(partition_waiters_max=2).told()
    story.produce()
    story.produce()
    with pytest.raises(Overloaded, match="2 appends of foo-0 wait"):
        story.produce()
    assert story.log.log_end == 2
    story.produce(acks=1)
    story.fetch(2, 3)
    story.produce()
    assert story.answers == [OffsetSpan(2, 2), OffsetSpan(0, 0), OffsetSpan(1, 1)]


def test_a_batch_without_rows_is_stored_nowhere_and_answered_at_once() -> None:
    story = Story().told()
    story.produce(0)
    assert (story.answers, story.log.log_end) == ([OffsetSpan(0, -1)], 0)


def test_a_batch_that_is_sent_again_waits_for_its_own_place() -> None:
    story = Story().told()
    for sequence in range(3):
        story.produce(sequence=sequence)
    story.produce(sequence=0)
    story.fetch(2, 1)
    assert (story.answers, story.log.log_end) == ([OffsetSpan(0, 0), OffsetSpan(0, 0)], 3)
    story.produce(sequence=0)
    assert story.answers[2:] == [OffsetSpan(0, 0)]  # it is committed


def test_what_producers_wrote_before_is_read_from_the_log() -> None:
    story = Story().told()
    story.produce(sequence=0)
    again = ReplicaLoop(
        FOO,
        FOO_ID,
        story.log,
        settings=settings(),
        isr_store=story.isr_store,
        links=story.links,
        flusher=story.flushes,
        failures=story.failures,
        throttle=story.throttle,
        post=at_once,
    )
    again.command(command(LED, 7), ME, 0)
    again.produce(PreparedBatch(1, b"x", 0, b"", 9, 0, 0), acks=1, now_ms=0, acknowledge=story.answers.append)
    assert (story.answers, story.log.log_end) == ([OffsetSpan(0, 0)], 1)


def test_batches_are_compressed_as_the_topic_says_now() -> None:
    loop = Story(compression="lz4").loop
    before = loop.compression
    loop.configure(settings(compression="zstd"))
    assert (before, loop.compression) == ("lz4", "zstd")


def test_a_follower_that_the_controller_dropped_is_answered_so_that_it_asks_again_and_is_back() -> None:
    """Else one that lives would wait at the log end for the next batch, and be out of the ISR until then."""
    story = Story().told(state(1, [1, 2, 3]))
    for follower in (2, 3):
        story.fetch(follower, 0)
    story.links.take()
    story.told(state(1, [1, 2]), 8)
    assert (story.links.take(), story.isr_store.asked) == ([3], [])
    assert story.answer(3).error == "NONE"
    story.fetch(3, 0)
    ((write, _),) = story.isr_store.asked
    assert write.state.isr == {1, 2, 3}


def test_a_disk_that_refuses_an_append_refuses_it_to_the_producer() -> None:
    story = Story().told()
    story.log.failing = frozenset({"append"})
    with pytest.raises(StorageFailed):
        story.produce()
    assert (story.answers, story.log.log_end) == ([], 0)
    assert story.failures.told == [FOO], "the controller may have another one lead"


def test_a_leader_that_is_alone_in_sync_keeps_what_its_disk_refuses_to_itself() -> None:
    """Nobody could take over: what it has can be read, and it goes on when its disk does."""
    story = Story(min_insync_replicas=1).told(state(1, [1], min_isr=1))
    story.log.failing = frozenset({"append"})
    with pytest.raises(StorageFailed):
        story.produce()
    assert story.failures.told == []
    story.log.failing = frozenset()
    story.produce()
    assert story.answers == [OffsetSpan(0, 0)]


def test_a_follower_whose_disk_refuses_says_so_and_takes_the_same_records_later() -> None:
    leader, story = Story().told(), Story().told(state(2, [1, 2]))
    leader.produce()
    story.log.failing = frozenset({"append_slice"})
    with pytest.raises(StorageFailed):
        fetched(story, leader)
    assert (story.failures.told, story.log.log_end) == ([FOO], 0)
    story.log.failing = frozenset()
    asked = story.links.asked
    story.loop.tick(1_000)
    story.loop.tick(1_000 + DISK_RETRY_MS - 1)
    assert (story.loop.waits_for_time, story.loop.next_fetch(), story.links.asked) == (True, None, asked), (
        "it would be in sync"
    )
    story.loop.tick(1_000 + DISK_RETRY_MS)
    assert (story.loop.waits_for_time, story.links.asked) == (False, asked + 1)
    fetched(story, leader)
    assert (story.failures.told, story.log.log_end) == ([FOO], 1)


def test_who_leads_by_the_time_that_its_disk_is_tried_again_asks_nobody() -> None:
    story = Story().told(state(1, [1, 2]))
    story.log.failing = frozenset({"append"})
    with pytest.raises(StorageFailed):
        story.produce()
    story.loop.tick(1_000)
    story.loop.tick(1_000 + DISK_RETRY_MS)
    assert story.links.asked == 0


def test_what_is_about_to_be_closed_is_flushed_whatever_its_setting() -> None:
    story = Story().told()
    story.produce()
    assert story.log.flushing is None
    story.loop.flush_soon()
    story.flushes.end()
    assert story.log.flushed_end == 1


def test_a_flush_that_failed_is_told_of() -> None:
    story = Story(flush="always").told()
    story.produce()
    story.flushes.end(StorageFailed("the disk refuses to flush"))
    assert story.failures.told == [FOO]


@pytest.mark.parametrize(
    "order",
    [
        command(state(2, [1, 2], leader_epoch=5), 8),
        command(state(None, [2], leader_epoch=5), 8),
    ],
)
def test_who_waits_is_told_when_the_leadership_ends_and_that_it_may_be_written(order: PartitionCommand) -> None:
    story = Story().told()
    story.produce()
    story.produce()
    story.fetch(3, 2)
    story.on_progress()
    story.loop.command(order, ME, 0)
    assert story.errors() == [("NOT_LEADER_OR_FOLLOWER", True)] * 2
    assert (story.progress, story.links.take()) == (1, [3])
    assert story.answer(3).error == "NOT_LEADER_OR_FOLLOWER"


def test_who_resigns_tells_who_waits_and_keeps_how_far_it_was_committed() -> None:
    story = Story().told()
    story.produce()
    story.fetch(2, 1)
    story.produce()
    story.loop.resign("gone")
    assert (story.loop.part, story.errors()) == (None, [("NOT_LEADER_OR_FOLLOWER", True)])
    assert story.loop.high_watermark == story.log.high_watermark == 1
    # What is read after the next registration counts, whatever its epoch.
    assert story.told().leading.state == LED
    assert story.leading.high_watermark == 1
