"""Who hears of a disk that refuses, and how often."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from spark_replication.errors import NotController, StorageFailed
from spark_replication.live.broker.failure_reports import REPEAT_S, RETRY_S, QueuedFailureReports
from spark_replication.model import ReplicaOf, TopicPartition

FULL = StorageFailed("no space left")
FOO, BAR = ReplicaOf(TopicPartition("foo", 0), "id"), ReplicaOf(TopicPartition("bar", 1), "id")
WAIT_S = 10.0


class Story:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.told: queue.SimpleQueue[tuple[ReplicaOf, ...]] = queue.SimpleQueue()
        self.refused = False
        self.reports = QueuedFailureReports(self._tell, lambda: self.now_s)

    def _tell(self, partitions: tuple[ReplicaOf, ...]) -> None:
        self.told.put(partitions)
        if self.refused:
            raise NotController("there is none")

    def next(self) -> tuple[ReplicaOf, ...]:
        return self.told.get(timeout=WAIT_S)

    def settled(self) -> None:
        """What was told before counts as told: another one is told of after it."""
        after = ReplicaOf(TopicPartition("after", 0), f"at {self.now_s}")
        self.reports.failed(after, FULL)
        assert self.next() == (after,)


@pytest.fixture
def story() -> Iterator[Story]:
    made = Story()
    yield made
    made.reports.close()
    assert not made.reports._thread.is_alive()


def test_the_first_failure_is_told_at_once_and_the_next_of_that_replica_much_later(story: Story) -> None:
    story.reports.failed(FOO, FULL)
    assert story.next() == (FOO,)
    story.settled()
    story.reports.failed(FOO, FULL)
    story.reports.failed(BAR, FULL)
    assert story.next() == (BAR,)
    story.now_s += REPEAT_S
    story.settled()
    story.reports.failed(FOO, FULL)
    assert story.next() == (FOO,)


def test_who_need_not_be_quiet_any_longer_is_forgotten(story: Story) -> None:
    for number in range(20):
        story.reports.failed(ReplicaOf(TopicPartition("foo", number), "id"), FULL)
        story.next()
        story.settled()
        story.now_s += REPEAT_S
    assert len(story.reports._quiet_until_s) <= 4


def test_where_nobody_could_be_told_it_is_tried_again_soon(story: Story) -> None:
    story.refused = True
    story.reports.failed(FOO, FULL)
    assert story.next() == (FOO,)
    story.settled()
    story.reports.failed(FOO, FULL)
    story.reports.failed(BAR, FULL)
    assert story.next() == (BAR,), "not at once: a producer tries again and again"
    story.now_s += RETRY_S
    story.settled()
    story.reports.failed(FOO, FULL)
    assert story.next() == (FOO,)


def test_nothing_is_told_after_the_end() -> None:
    story = Story()
    story.reports.close()
    story.reports.failed(FOO, FULL)
    assert story.told.empty()
