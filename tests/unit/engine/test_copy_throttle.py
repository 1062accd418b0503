"""A3: whose turn it is, and that everybody's comes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from spark_replication.engine.replica.copy_throttle import GRANT_MS_MAX, CopyThrottle
from spark_replication.model import BrokerId, TopicPartition

A, B, C = (TopicPartition("foo", number) for number in range(3))


class Turns:
    """ports.FollowerLinks: who was told."""

    def __init__(self) -> None:
        self.told: list[tuple[BrokerId, TopicPartition]] = []

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        self.told.append((follower, partition))

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        raise AssertionError("a leader follows nobody")

    def unfollow(self, partition: TopicPartition) -> None:
        raise AssertionError("a leader follows nobody")

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def take(self) -> list[tuple[BrokerId, TopicPartition]]:
        taken, self.told = self.told, []
        return taken


def throttle(bytes_per_second: int = 1_000) -> tuple[CopyThrottle, Turns]:
    turns = Turns()
    made = CopyThrottle(turns, nullcontext())
    made.configure(bytes_per_second)
    return made, turns


def test_followers_take_turns_and_each_ones_partitions_too() -> None:
    made, turns = throttle()
    made.wait(4, A, 1_000)  # it has the first turn at once
    for follower, partition in ((4, B), (4, C), (5, A), (5, B)):
        made.wait(follower, partition, 1_000)
    order = [*turns.take()]
    for step in range(1, 5):
        follower, partition = order[-1]
        assert made.take(follower, partition) == 1_000
        made.sent(follower, partition, 1_000)
        made.tick(1_000 + 1_000 * step)
        order += turns.take()
    assert order == [(4, A), (4, B), (5, A), (4, C), (5, B)]


def test_what_is_left_of_a_turn_is_the_next_ones_at_once() -> None:
    made, turns = throttle()
    made.wait(4, A, 1_000)
    made.wait(4, B, 1_000)
    assert (turns.take(), made.take(4, A)) == ([(4, A)], 1_000)
    made.sent(4, A, 300)
    assert (turns.take(), made.take(4, B)) == ([(4, B)], 700)


def test_a_batch_that_is_larger_than_the_limit_is_paid_for_later() -> None:
    made, turns = throttle()
    made.wait(4, A, 1_000)
    made.take(4, A)
    made.sent(4, A, 3_000)
    made.wait(4, B, 1_000)
    turns.take()
    made.tick(3_099)
    assert turns.take() == []
    made.tick(3_100)
    assert (turns.take(), made.take(4, B)) == ([(4, B)], 100)


def test_a_follower_that_takes_nothing_holds_up_nobody_and_has_its_next_turn_in_the_end() -> None:
    made, turns = throttle()
    made.wait(4, A, 1_000)
    made.wait(4, B, 1_000)
    made.wait(5, A, 1_000)
    assert turns.take() == [(4, A)]
    made.tick(2_000)
    assert turns.take() == [(5, A)]
    made.take(5, A)
    made.sent(5, A, 10)
    made.tick(1_000 + GRANT_MS_MAX - 1)
    assert turns.take() == []
    made.tick(1_000 + GRANT_MS_MAX)
    assert turns.take() == [(4, B)]
    assert made.take(4, A) is None


def test_who_waits_no_longer_has_no_turn() -> None:
    made, turns = throttle()
    for partition in (A, B, C):
        made.wait(4, partition, 1_000)
    assert made.take(4, B) is None
    made.sent(4, B, 500)  # it was not its turn: this says nothing
    assert made.take(4, A) == 1_000
    made.sent(4, A, 0)
    assert turns.take() == [(4, A), (4, C)]


def test_without_a_limit_everybody_is_told_and_nobody_waits() -> None:
    made, turns = throttle(1)
    for partition in (A, B, C):
        made.wait(4, partition, 1_000)
    made.wait(5, A, 1_000)
    assert (made.limits, turns.take()) == (True, [(4, A)])
    made.configure(0)
    assert (made.limits, turns.take()) == (False, [(4, B), (4, C), (5, A)])
    made.tick(9_000)
    assert turns.take() == []
    made.wait(4, B, 9_000)  # it was lifted while its replica looked
    assert turns.take() == [(4, B)]
