"""Whoever has a partition has it alone: each row of the table, what comes in which order, and many threads at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_replication
from spark_replication.engine.replica.partition import Partition, Turns, is_half_done, waiting
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import StorageFailed
from spark_replication.transport.sockets.socket_loop import SocketLoop
from tests.unit.engine.replica.story import Story

WAIT_S = 20.0


class Loop:
    """A broker's loop that is told when to go on."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()

    def post(self, event: Callable[[], None]) -> None:
        self.posted.append(event)

    def run(self) -> None:
        while self.posted:
            self.posted.popleft()()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def partition(loop: Loop) -> Partition:
    return Partition(Story().loop, Turns(threading.Lock(), loop.post))


def test_the_loop_has_it_at_once_if_nobody_else_has(partition: Partition) -> None:
    had: list[ReplicaLoop] = []
    partition.do(had.append)
    assert partition.try_do(had.append)
    assert had == [partition.unguarded] * 2


def test_what_the_loop_finds_taken_comes_in_order_once_it_is_given_back(loop: Loop, partition: Partition) -> None:
    had: list[str] = []
    with partition:
        partition.do(lambda _: had.append("first"))
        assert not partition.try_do(lambda _: had.append("not now"))
        partition.do(lambda _: had.append("second"))
        loop.run()
        assert had == []
    assert not partition.try_do(lambda _: had.append("nor before those that wait"))
    assert had == []
    loop.run()
    assert had == ["first", "second"]
    assert partition.try_do(lambda _: had.append("third"))


def test_what_is_given_back_with_nobody_waiting_wakes_nobody(loop: Loop, partition: Partition) -> None:
    with partition as replica:
        assert replica is partition.unguarded
    assert not loop.posted


def test_what_another_thread_posts_the_loop_does(loop: Loop, partition: Partition) -> None:
    had: list[str] = []
    partition.post(lambda _: had.append("posted"))
    assert had == []
    loop.run()
    assert had == ["posted"]


def test_an_event_that_leads_to_another_does_not_run_within_itself(partition: Partition) -> None:
    had: list[str] = []

    def first(_replica: ReplicaLoop) -> None:
        partition.do(lambda _: had.append("second"))
        had.append("first")

    partition.do(first)
    assert had == ["first", "second"]
    had.clear()
    assert partition.try_do(first)
    assert had == ["first", "second"]


def test_who_may_wait_no_longer_than_it_says_goes_without(partition: Partition) -> None:
    assert partition.take(0) is partition.unguarded
    assert (partition.take(0), partition.take(0.01)) == (None, None)
    partition.give_back()
    with waiting(partition) as replica:
        assert replica is partition.unguarded


def test_an_event_that_fails_gives_it_back(loop: Loop, partition: Partition) -> None:
    def fail(_replica: ReplicaLoop) -> None:
        raise ZeroDivisionError

    def refuse(_replica: ReplicaLoop) -> None:
        raise StorageFailed("the disk is full")

    for do in (partition.do, partition.try_do):
        with pytest.raises(ZeroDivisionError) as failed:
            do(fail)
        assert is_half_done(failed.value), "nobody expected it"
        with pytest.raises(StorageFailed) as refused:
            do(refuse)
        assert not is_half_done(refused.value)
    for event, is_mistake in ((fail, True), (refuse, False)):
        with pytest.raises((ZeroDivisionError, StorageFailed)) as ended, partition as replica:
            event(replica)
        assert is_half_done(ended.value) == is_mistake, "so it is of a thread that may wait"
    assert partition.take(0) is not None


@given(st.lists(st.sampled_from(["do", "post", "take", "give back", "loop"]), max_size=40))
def test_nothing_is_lost_or_overtaken_whoever_comes_between(steps: list[str]) -> None:
    """What the loop does for a partition, in the order in which the loop came to it."""
    loop = Loop()
    turns = Turns(threading.Lock(), loop.post)
    had: list[int] = []
    came: list[int] = []
    taken = False

    def event(number: int) -> Callable[[], None]:
        return lambda: had.append(number)

    def posted(number: int) -> Callable[[], None]:
        def do() -> None:
            came.append(number)
            turns.do(event(number))

        return do

    for number, step in enumerate(steps):
        if step == "do":
            posted(number)()
        elif step == "post":
            loop.post(posted(number))
        elif step == "take":
            taken = taken or turns.take(0)
        elif step == "give back" and taken:
            taken = False
            turns.give_back()
        elif step == "loop":
            loop.run()
        assert had == came[: len(had)]
    if taken:
        turns.give_back()
    loop.run()
    assert had == came


def test_many_threads_have_it_one_at_a_time_and_nothing_waits_for_ever() -> None:
    sockets = SocketLoop("broker-loop")
    sockets.start()
    turns = Turns(threading.Lock(), sockets.post)
    inside: list[int] = []
    met: list[int] = []
    done = threading.Semaphore(0)

    def enter() -> None:
        inside.append(1)
        met.append(len(inside))
        inside.pop()

    def event() -> None:
        enter()
        done.release()

    def take() -> None:
        for _ in range(2_000):
            assert turns.take(WAIT_S)
            enter()
            turns.give_back()

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2_000):
        turns.post(event)
    assert all(done.acquire(timeout=WAIT_S) for _ in range(2_000))
    for thread in threads:
        thread.join(WAIT_S)
    sockets.stop(WAIT_S)
    assert set(met) == {1}


def test_nobody_who_ships_goes_around_it() -> None:
    package = Path(spark_replication.__file__).parent
    rooms = [package / room for room in ("engine", "transport", "live", "spark", "client", "admin", "page")]
    around = {path.name for room in rooms for path in room.rglob("*.py") if ".unguarded" in path.read_text()}
    assert around == {"partition.py"}
