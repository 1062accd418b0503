"""A partition whose guard is held (over a disk that takes its time) holds up nothing but itself."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from msgspec.structs import replace

from spark_replication.core.law.writes import IsrAnswer, IsrCommitted, IsrRefused, IsrUnanswered, IsrWrite
from spark_replication.engine.broker_loop import BrokerLoop
from spark_replication.live.broker.isr_answers import IsrAnswers, guards_in
from spark_replication.live.broker.patience import Patience
from spark_replication.model import TopicPartition
from spark_replication.ports import IsrStore
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.ports_in_memory import Failures, HeldFlushes, IsrWrites, Links, Logs
from tests.unit.engine.test_broker_loop import CONFIGS, FOO_1, LIVE, ME

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
def held(guard: AbstractContextManager[object]) -> Iterator[threading.Event]:
    """By another thread, until the event is set, or the end."""
    holds, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with guard:
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


def led(store: IsrStore) -> BrokerLoop:
    """Leads foo-0 and foo-1, of which broker 2 has a replica that lags."""
    loop = BrokerLoop(
        "cluster",
        logs=Logs(),
        isr_store=store,
        links=Links(),
        flusher=HeldFlushes(),
        failures=Failures(),
        settings=settings(),
        guards=threading.RLock,
    )
    known = [command(state(1, [1, 2]), 7), command(state(1, [1, 2]), 7, partition=FOO_1)]
    loop.registered(ME, known, CONFIGS, LIVE, 0, settings={})
    return loop


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    found = ZooKeeper()
    yield found
    found.close()


def test_an_answer_for_a_busy_partition_holds_up_no_other_answer(zookeeper: ZooKeeper) -> None:
    guards = {FOO: threading.RLock(), FOO_1: threading.RLock()}
    answers = IsrAnswers(zookeeper, guards.get)
    given: queue.SimpleQueue[TopicPartition] = queue.SimpleQueue()
    with held(guards[FOO]) as let_go:
        for partition in (FOO, FOO_1, TopicPartition("gone", 0)):
            write = _write(partition)

            def then(_answer: IsrAnswer, partition: TopicPartition = partition) -> None:
                with guards.get(partition, threading.RLock()):
                    given.put(partition)

            answers.change_isr(write, then)
        assert zookeeper.answers_within(WAIT_S)
        assert given.get(timeout=WAIT_S) == FOO_1
        assert given.get(timeout=WAIT_S) == TopicPartition("gone", 0)
        assert given.empty()
        let_go.set()
        assert given.get(timeout=WAIT_S) == FOO
    answers.close()


def test_a_shrunk_isr_is_stored_while_another_partition_is_busy(zookeeper: ZooKeeper) -> None:
    answers = IsrAnswers(zookeeper, guards_in(lambda: loop.replicas))
    loop = led(answers)
    foo, foo_1 = loop.replica(FOO), loop.replica(FOO_1)
    goes_on = zookeeper.silent()
    loop.tick(1_000_000, looks=True, holds=Patience(WAIT_S).holds)
    with held(foo.guard):
        goes_on.set()
        assert zookeeper.answers_within(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while foo_1.leading().state.isr != {1}:
            assert time.monotonic() < deadline
    answers.close()


def test_a_busy_partition_is_left_for_the_next_tick() -> None:
    store = IsrWrites()
    loop = led(store)
    with held(loop.replica(FOO).guard):
        patience = Patience(0.05)
        loop.tick(1_000_000, looks=True, holds=patience.holds)
        loop.checkpoint(patience.holds)
        assert [write.partition for write, _ in store.asked] == [FOO_1]
    loop.tick(1_000_001, looks=True, holds=Patience(0).holds)
    assert [write.partition for write, _ in store.asked] == [FOO_1, FOO]


def test_one_round_waits_once_for_all_that_are_held() -> None:
    patience = Patience(0.05)
    guards = [threading.RLock() for _ in range(100)]
    found = []
    with held(guards[0]), held(guards[1]):
        for guard in guards:
            with patience.holds(guard) as got:
                found.append(got)
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
    writes, given = IsrWrites(), threading.Event()
    answers = IsrAnswers(writes, lambda _partition: None)
    answers.change_isr(write, lambda _answer: given.set())
    writes.answer(answer)
    assert given.wait(WAIT_S)
    answers.close()
    assert (answers.shrinks, answers.expands) == counted
