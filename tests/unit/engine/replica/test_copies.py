"""Replicas that are being added (A3). The throttle's bucket begins full: 10 bytes, and 10 more a second."""

from __future__ import annotations

import pytest

from spark_replication.core.law.writes import IsrRefused, StoredPartition
from spark_replication.messages.descriptions import CopySize
from spark_replication.model import PartitionState
from tests.unit.core.stories import FOO, command, state
from tests.unit.engine.replica.story import LED, ME, Story


def copied(*records: tuple[int, int, int], bytes_per_second: int = 10) -> Story:
    """Broker 1 leads, 2 is in sync, and 3 is being added."""
    story = Story(*records)
    story.throttle.configure(bytes_per_second)
    story.loop.command(command(LED, 7, adding=(3,)), ME, 1_000)
    return story


def test_a_replica_that_is_being_added_gets_as_much_as_the_throttle_allows_and_then_waits() -> None:
    story = copied((0, 99, 4))
    story.fetch(3, 0, now_ms=1_000)
    assert (story.links.take(), story.answer(3).data_bytes > 0) == ([3], True)
    story.fetch(3, 10, now_ms=1_000)
    assert story.links.take() == []
    story.throttle.tick(100_000)
    assert story.links.take() == [3]


def test_what_is_in_sync_does_not_wait_for_a_throttle() -> None:
    story = copied((0, 99, 4), bytes_per_second=1)
    for _ in range(3):
        story.fetch(2, 50, now_ms=1_000)
        assert story.links.take() == [2]
        assert story.answer(2).data_bytes > 0


def test_a_copy_that_asks_out_of_turn_hears_of_the_high_watermark_alone() -> None:
    story = copied((0, 99, 4))
    story.throttle.take(3, FOO)
    story.fetch(2, 100, now_ms=1_000)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 10, now_ms=1_000)
    story.links.take()
    found = story.answer(3)
    assert (found.data_bytes, found.high_watermark, found.error) == (0, 100, "NONE")


def test_a_copy_that_waits_for_its_turn_is_not_woken_for_the_high_watermark() -> None:
    story = copied((0, 99, 4))
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 10, now_ms=1_000)
    story.fetch(2, 100, now_ms=1_000)
    story.links.take()
    story.loop.tell_high_watermark()
    assert story.links.take() == [2]


def test_what_is_appended_goes_to_a_copy_when_it_is_its_turn() -> None:
    """It is at the log end, and ZooKeeper refused to let it join."""
    story = copied(bytes_per_second=1)
    story.fetch(3, 0, now_ms=1_000)
    story.isr_store.answer(IsrRefused(StoredPartition(LED, 7)))
    assert story.links.take() == []
    story.produce(5, acks=1, now_ms=1_000)
    assert story.links.take() == [3]
    story.answer(3)
    story.fetch(3, 1, now_ms=1_000)
    story.produce(5, acks=1, now_ms=1_000)
    assert story.links.take() == []
    story.throttle.tick(1_000_000)
    assert story.links.take() == [3]


def test_a_copy_that_joins_the_isr_waits_no_longer_since_acknowledgements_wait_for_it() -> None:
    """It has everything below the high watermark, and not what came after that."""
    story = copied((0, 9, 4), bytes_per_second=1)
    story.fetch(2, 10, now_ms=1_000)
    story.produce(20, acks=1, now_ms=1_000)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.links.take()
    story.fetch(3, 10, now_ms=1_000)
    assert story.leading.pending is not None
    assert story.leading.pending.state.isr == {1, 2, 3}
    assert story.links.take() == [3]
    assert story.answer(3).data_bytes > 0


@pytest.mark.parametrize(
    ("told", "partition_epoch"),
    [(LED, 8), (state(1, [1, 2, 3]), 8), (state(1, [1, 2], leader_epoch=5), 1), (state(2, [1, 2], leader_epoch=5), 1)],
)
def test_who_is_no_copy_any_longer_or_of_another_leader_is_answered(told: PartitionState, partition_epoch: int) -> None:
    story = copied((0, 99, 4), bytes_per_second=1)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 1, now_ms=1_000)
    story.links.take()
    story.told(told, partition_epoch)
    assert story.links.take() == [3]


def test_without_a_limit_nobody_waits_any_longer() -> None:
    story = copied((0, 99, 4), bytes_per_second=1)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 1, now_ms=1_000)
    assert story.links.take() == [3]
    story.throttle.configure(0)
    assert story.links.take() == [3]
    assert story.answer(3).data_bytes > 0
    story.fetch(3, 2, now_ms=1_000)
    assert story.links.take() == [3]


def test_an_answer_that_fails_leaves_its_turn_to_the_next() -> None:
    story = copied((0, 99, 4))
    story.fetch(3, 0, now_ms=1_000)
    story.told(state(2, [1, 2], leader_epoch=5), 1)
    assert story.loop.take_answer(3, 0) is not None
    story.throttle.wait(4, FOO, 1_000)
    assert story.links.take()[-1] == 4


def test_its_leader_tells_how_a_copy_gets_on() -> None:
    story = copied((0, 99, 4))
    assert story.loop.size(0).copies == {3: CopySize(bytes_left=100, bytes_per_second=None)}
    story.fetch(3, 10, now_ms=1_000)
    story.loop.tick(1_000)
    story.fetch(3, 40, now_ms=2_000)
    story.loop.tick(7_000)
    assert story.loop.size(0).copies == {3: CopySize(bytes_left=60, bytes_per_second=5)}
    story.told(state(1, [1, 2, 3]), 8)
    assert story.loop.size(0).copies == {}
    story.told(state(2, [1, 2], leader_epoch=5), 1)
    assert story.loop.size(0).copies == {}
