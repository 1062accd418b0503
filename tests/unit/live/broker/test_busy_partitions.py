"""A partition whose guard is held (over a disk that takes its time) holds up nothing but itself."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from spark_replication.core.law.writes import IsrAnswer, IsrCommitted, IsrRefused, IsrUnanswered, IsrWrite
from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.replica.partition import Partition, Post, Turns
from spark_replication.live.broker.isr_changes import CountedIsrChanges
from spark_replication.live.broker.patience import RoundPatience
from spark_replication.model import TopicPartition
from spark_replication.ports import IsrStore
from spark_replication.sim.world.one_at_a_time import at_once
from spark_replication.transport.sockets.socket_loop import SocketLoop
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.ports_in_memory import Failures, HeldFlushes, IsrWrites, Links, Logs
from tests.unit.engine.replica.story import Story
from tests.unit.engine.test_broker_loop import CONFIGS, FOO_1, LIVE, ME
from tests.waiting import eventually

WAIT_S = 20.0


class ZooKeeper:
    """Answers on one thread, as its client does; `idle` once that has nothing to do."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        self._asked.put(lambda: then(IsrCommitted(write.version + 1)))

    def answers_within(self, timeout_s: float) -> bool:
        """Whether what is asked now is answered: a reading, a registration."""
        answered = threading.Event()
        self._asked.put(answered.set)
        return answered.wait(timeout_s)

    def silent(self) -> threading.Event:
        """Until the event is set."""
        goes_on = threading.Event()
        self._asked.put(lambda: assert_set(goes_on))
        return goes_on

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        while (answer := self._asked.get()) is not None:
            answer()


def assert_set(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


@contextmanager
def held(partition: Partition) -> Iterator[threading.Event]:
    """By another thread, until the event is set, or the end."""
    holds, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with partition:
            holds.set()
            let_go.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert holds.wait(WAIT_S)
    try:
        yield let_go
    finally:
        let_go.set()
        thread.join(WAIT_S)


def led(store: IsrStore, post: Post = at_once) -> BrokerLoop:
    """Leads foo-0 and foo-1, of which broker 2 has a replica that lags."""
    loop = BrokerLoop(
        "cluster",
        logs=Logs(),
        isr_store=store,
        links=Links(),
        flusher=HeldFlushes(),
        failures=Failures(),
        settings=settings(),
        locks=threading.Lock,
        post=post,
        now_ms=lambda: 0,
    )
    known = [command(state(1, [1, 2]), 7), command(state(1, [1, 2]), 7, partition=FOO_1)]
    loop.registered(ME, known, CONFIGS, LIVE, settings={}, controller_epoch=-1)
    return loop


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    found = ZooKeeper()
    yield found
    found.close()


def test_a_shrunk_isr_is_stored_while_another_partition_is_busy(zookeeper: ZooKeeper) -> None:
    """Neither ZooKeeper's thread nor the loop waits for it; its own answer comes when it is free."""
    sockets = SocketLoop("broker-loop")
    sockets.start()
    loop = led(zookeeper, sockets.post)
    foo, foo_1 = loop.partition(FOO), loop.partition(FOO_1)
    goes_on = zookeeper.silent()
    loop.tick(1_000_000, looks=True, holds=RoundPatience(WAIT_S).holds)
    with held(foo) as let_go:
        goes_on.set()
        assert zookeeper.answers_within(WAIT_S)
        eventually(lambda: foo_1.unguarded.leading().state.isr == {1}, "the one that is not busy is alone in sync")
        assert foo.unguarded.leading().state.isr == {1, 2}
        let_go.set()
        eventually(lambda: foo.unguarded.leading().state.isr == {1}, "the one that was busy is, too")
    sockets.stop(WAIT_S)


def test_a_busy_partition_is_left_for_the_next_tick() -> None:
    store = IsrWrites()
    loop = led(store)
    with held(loop.partition(FOO)):
        patience = RoundPatience(0.05)
        loop.tick(1_000_000, looks=True, holds=patience.holds)
        loop.checkpoint(patience.holds)
        assert [write.partition for write, _ in store.asked] == [FOO_1]
    loop.tick(1_000_001, looks=True, holds=RoundPatience(0).holds)
    assert [write.partition for write, _ in store.asked] == [FOO_1, FOO]


def test_one_round_waits_once_for_all_that_are_held() -> None:
    patience = RoundPatience(0.05)
    story = Story()
    partitions = [Partition(story.loop, Turns(threading.Lock(), at_once)) for _ in range(100)]
    found = []
    with held(partitions[0]), held(partitions[1]):
        for partition in partitions:
            with patience.holds(partition) as replica:
                found.append(replica is not None)
    assert found == [False, False, *[True] * 98]


def _write(partition: TopicPartition) -> IsrWrite:
    return IsrWrite(
        partition=partition, topic_id=FOO_ID, broker=1, broker_epoch=0, state=state(1, [1]), version=7, joining={}
    )


@pytest.mark.parametrize(
    ("write", "answer", "counted"),
    [
        (replace(_write(FOO), leaving=frozenset({2})), IsrCommitted(8), (1, 0)),
        (replace(_write(FOO), joining={2: 0, 3: 0}), IsrCommitted(8), (0, 1)),
        (replace(_write(FOO), leaving=frozenset({2}), joining={3: 0}), IsrCommitted(8), (1, 1)),
        (replace(_write(FOO), leaving=frozenset({2})), IsrRefused(None), (0, 0)),
        (replace(_write(FOO), leaving=frozenset({2})), IsrUnanswered(), (0, 0)),
    ],
)
def test_changes_that_were_stored_are_counted(write: IsrWrite, answer: IsrAnswer, counted: tuple[int, int]) -> None:
    writes, given = IsrWrites(), list[IsrAnswer]()
    changes = CountedIsrChanges(writes)
    changes.change_isr(write, given.append)
    writes.answer(answer)
    assert (given, changes.shrinks, changes.expands) == ([answer], *counted)
