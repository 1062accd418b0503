"""The broker's end of a reader's connection: each row of its table, what is answered, and who is left waiting."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.core.replica.replica import Me
from spark_replication.engine.ends.read_end import IDLE_MS, Read, ReadEnd
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.partition import Partition, Turns
from spark_replication.engine.replica.reads import LogLook, is_over, look
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    LogTruncated,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ReplicationError,
    UnknownTopicOrPartition,
)
from spark_replication.messages.lane import READS_MAX, ReadFrame
from spark_replication.messages.records import ReadTicket
from spark_replication.model import PartitionState, TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.sim.scenarios.memory_log import MemoryLog
from tests.unit.core.stories import FOO_ID, command, settings, state
from tests.unit.engine.late_queue import FilledAtTheEnd
from tests.unit.engine.ports_in_memory import FailingLog, Failures, HeldFlushes, IsrWrites, Links
from tests.unit.engine.replica import story as replica_story

BYTES_MAX = 1 << 20
WAIT_MS = 1_000
TIMEOUT_S = 20.0
ALONE = state(1, [1], min_isr=1)


class Replica:
    """Broker 1's replica of a partition of foo, over an empty log in memory, in which a record is a byte. It leads
    alone: what is produced is committed."""

    def __init__(self, number: int, post: Callable[[Callable[[], None]], None]) -> None:
        self.name = TopicPartition("foo", number)
        runs = MemoryLog.of_runs([], 0)
        self.log = FailingLog(runs.log_start, runs.records, runs.epochs, 0)
        links, turns = Links(), Turns(threading.Lock(), post)
        self.loop = ReplicaLoop(
            self.name,
            FOO_ID,
            self.log,
            settings=settings(),
            isr_store=IsrWrites(),
            links=links,
            flusher=HeldFlushes(),
            failures=Failures(),
            throttle=CopyThrottle(links, nullcontext()),
            post=turns.post,
        )
        self.partition = Partition(self.loop, turns)
        self.told(ALONE, 1)

    def told(self, stored: PartitionState, partition_epoch: int) -> None:
        with self.partition as replica:
            replica.command(command(stored, partition_epoch, partition=self.name), Me(1, 0, 0), 0)

    def produce(self, rows: int = 1, *, now_ms: int = 0) -> None:
        with self.partition as replica:
            batch = PreparedBatch(rows, b"x", 0, b"")
            replica.produce(batch, acks=1, now_ms=now_ms, acknowledge=lambda _outcome: None)

    @property
    def waiters(self) -> int:
        return len(self.loop.progress._waiting)


class Story:
    """A reader's connection to the broker of foo-0 and foo-1. An answer is told as soon as it is said, unless the story
    makes it (`making`)."""

    def __init__(self) -> None:
        self.clock_ms = 0.0
        self.posted: deque[Callable[[], None]] = deque()
        self.replicas = [Replica(number, self.posted.append) for number in range(2)]
        self.wakes = 0
        self.is_slow = False
        self.making: deque[Read] = deque()
        #: Since when each of them was due.
        self.due: list[float] = []
        self._said: list[tuple[int, str]] = []
        self.end = ReadEnd(self._find, self._say, clock_ms=lambda: self.clock_ms, wake=self._wake)

    def _find(self, name: TopicPartition) -> Partition:
        for replica in self.replicas:
            if replica.name == name:
                return replica.partition
        raise UnknownTopicOrPartition(f"{name} is not here")

    def _say(self, read: Read, found: LogLook | ReplicationError) -> None:
        self._said.append((read.frame.number, _outcome(found)))
        self.due.append(read.due_ms)
        if self.is_slow:
            self.making.append(read)
        else:
            self.end.told(read)

    def _wake(self) -> None:
        self.wakes += 1

    def ask(self, number: int = 0, *, partition: int = 0, waits_ms: int = 0, **asked: Any) -> None:
        ticket = ReadTicket(topic="foo", partition=partition, max_wait_ms=waits_ms, **asked)
        self.end.asked(ReadFrame(number=number, ticket=ticket))

    def waits(self, number: int = 0, *, partition: int = 0, waits_ms: int = WAIT_MS, **asked: Any) -> None:
        """It has looked, and found nothing."""
        self.ask(number, partition=partition, waits_ms=waits_ms, **asked)
        assert self.go_on()
        assert self.said() == []

    def is_made(self, number: int = 0, **asked: Any) -> None:
        """Its answer is being made from now on, until `is_told`."""
        self.is_slow = True
        self.ask(number, **asked)
        assert self.go_on()
        assert self.making
        self.said()

    def is_told(self) -> None:
        self.is_slow = False
        self.end.told(self.making.popleft())

    def go_on(self, bytes_max: int = BYTES_MAX) -> bool:
        return self.end.go_on(lambda _: bytes_max)

    def goes_on(self) -> None:
        """The broker's loop: as long as a question is due."""
        while self.go_on():
            pass

    def run(self) -> None:
        """The broker's loop does what was posted to it."""
        while self.posted:
            self.posted.popleft()()

    def said(self) -> list[tuple[int, str]]:
        """What was said since the last time."""
        said, self._said = self._said, []
        return said

    def answer(self) -> str:
        """Of the only question that was answered."""
        ((_, outcome),) = self.said()
        return outcome

    def due_ms(self) -> float:
        return self.end.due_ms

    def waiters(self) -> list[int]:
        """How many wait for progress, of each partition."""
        return [replica.waiters for replica in self.replicas]


def _outcome(found: LogLook | ReplicationError) -> str:
    if isinstance(found, ReplicationError):
        return found.code
    records = found.records
    read = "nothing" if records is None else f"{records.first_offset} to {records.next_offset}"
    return f"at {found.offset} of {found.high_watermark}: {read}"


@pytest.fixture
def story() -> Story:
    return Story()


@contextmanager
def taken_by_another_thread(replica: Replica) -> Iterator[None]:
    taken, gives_back = threading.Event(), threading.Event()

    def take() -> None:
        with replica.partition:
            taken.set()
            assert gives_back.wait(TIMEOUT_S)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert taken.wait(TIMEOUT_S)
    yield
    gives_back.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def on_another_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


# Asked


def test_a_question_is_due_as_it_comes_and_is_looked_at_when_the_connection_goes_on(story: Story) -> None:
    story.replicas[0].produce(3)
    story.clock_ms = 7
    story.ask()
    assert (story.due_ms(), story.said()) == (7, [])
    assert story.go_on()
    assert story.answer() == "at 0 of 3: 0 to 3"


def test_without_a_question_nothing_is_done(story: Story) -> None:
    assert not story.go_on()
    assert (story.said(), story.wakes) == ([], 0)


def test_questions_are_looked_at_one_at_a_time_in_their_order(story: Story) -> None:
    story.replicas[0].produce(3)
    for number in (5, 2, 9):
        story.ask(number, from_offset=1)
    assert story.go_on()
    assert story.said() == [(5, "at 1 of 3: 1 to 3")]
    story.goes_on()
    assert [number for number, _ in story.said()] == [2, 9]
    assert not story.go_on()


def test_a_number_names_a_question_until_that_is_told(story: Story) -> None:
    story.replicas[0].produce()
    story.ask(3)
    with pytest.raises(InvalidRequest, match="question 3 is not answered yet"):
        story.ask(3)
    story.is_slow = True
    story.goes_on()
    with pytest.raises(InvalidRequest, match="question 3 is not answered yet"):
        story.ask(3)
    story.is_told()
    story.ask(3, from_offset=1)
    story.goes_on()
    assert story.said() == [(3, "at 0 of 1: 0 to 1"), (3, "at 1 of 1: nothing")]


def test_a_connection_asks_so_many_questions_at_a_time(story: Story) -> None:
    for number in range(READS_MAX):
        story.ask(number, waits_ms=WAIT_MS)
    story.goes_on()
    with pytest.raises(InvalidRequest, match=f"or {READS_MAX} others are not"):
        story.ask(READS_MAX)
    assert story.waiters() == [READS_MAX, 0]
    story.clock_ms = WAIT_MS
    story.go_on()
    assert story.said() == [(0, "at 0 of 0: nothing")]
    story.ask(READS_MAX)
    with pytest.raises(InvalidRequest, match=f"or {READS_MAX} others are not"):
        story.ask(READS_MAX + 1)


# Looks


def test_so_much_is_found_as_there_is_room_for(story: Story) -> None:
    story.replicas[0].produce(9)
    story.ask(from_offset=2)
    story.go_on(4)
    assert story.answer() == "at 2 of 9: 2 to 6"


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({}, "at 5 of 9: 5 to 9"),
        ({"topic_id": FOO_ID}, "at 5 of 9: 5 to 9"),
        ({"topic_id": "another"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": 7}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"from_offset": 10}, "OFFSET_OUT_OF_RANGE"),
        ({"from_offset": "earliest"}, "at 0 of 9: 0 to 9"),
        ({"from_offset": "latest"}, "at 9 of 9: nothing"),
        ({"from_offset": None, "from_time": 20}, "at 3 of 9: 3 to 9"),
        ({"from_offset": None, "from_time": 31}, "at 9 of 9: nothing"),
        ({"to": 7}, "at 5 of 9: 5 to 9"),
        ({"to": 5}, "at 5 of 9: nothing"),
        ({"from_offset": "latest", "to": 4}, "at 9 of 9: nothing"),
        ({"from_offset": 9}, "at 9 of 9: nothing"),
    ],
    ids=str,
)
def test_a_question_that_does_not_wait_is_answered_at_its_first_look(
    story: Story, asked: dict[str, Any], answer: str
) -> None:
    for now_ms in (10, 20, 30):
        story.replicas[0].produce(3, now_ms=now_ms)
    story.ask(**{"from_offset": 5, **asked})
    assert story.go_on()
    assert story.answer() == answer
    assert story.waiters() == [0, 0]


@pytest.mark.parametrize("asked", [{"partition": 7}, {"topic_id": "another"}, {"from_offset": 99}], ids=str)
def test_a_refusal_is_said_also_to_one_that_would_wait_and_the_next_question_is_looked_at(
    story: Story, asked: dict[str, Any]
) -> None:
    story.replicas[0].produce()
    story.ask(0, waits_ms=WAIT_MS, **asked)
    story.ask(1)
    story.goes_on()
    (_, refusal), found = story.said()
    assert refusal in (UnknownTopicOrPartition.code, OffsetOutOfRange.code)
    assert found == (1, "at 0 of 1: 0 to 1")
    assert story.waiters() == [0, 0]


def test_who_does_not_lead_refuses(story: Story) -> None:
    story.replicas[0].told(state(2, [1, 2], leader_epoch=5), 2)
    story.ask(waits_ms=WAIT_MS)
    story.goes_on()
    assert story.answer() == "NOT_LEADER_OR_FOLLOWER"


def test_records_at_the_log_end_of_a_read_that_is_over_are_not_waited_for(story: Story) -> None:
    story.replicas[0].produce(2)
    story.ask(from_offset=2, to=2, waits_ms=WAIT_MS)
    story.goes_on()
    assert (story.answer(), story.waiters()) == ("at 2 of 2: nothing", [0, 0])


# The answer is being made


def test_while_an_answer_is_made_no_other_question_is_looked_at(story: Story) -> None:
    for replica in story.replicas:
        replica.produce()
    story.is_made(0)
    story.ask(1, partition=1)
    assert not story.go_on()
    assert (story.said(), story.due_ms()) == ([], math.inf)
    story.is_told()
    assert story.due_ms() == 0
    assert story.go_on()
    assert story.said() == [(1, "at 0 of 1: 0 to 1")]


def test_a_refusal_is_an_answer_that_is_made_too(story: Story) -> None:
    story.is_made(0, partition=7)
    story.ask(1)
    assert not story.go_on()
    story.is_told()
    assert story.go_on()


def test_progress_of_another_thread_while_an_answer_is_made_is_seen_after_it(story: Story) -> None:
    story.waits(1, partition=1)
    story.replicas[0].produce()
    story.is_made(0)
    wakes = story.wakes
    on_another_thread(story.replicas[1].produce)
    assert story.wakes == wakes + 1
    story.clock_ms = 40
    assert not story.go_on()
    assert story.said() == []
    story.is_told()
    assert story.due_ms() == 40, "since the loop knows of it"
    assert story.go_on()
    assert story.said() == [(1, "at 0 of 1: 0 to 1")]


def test_a_deadline_that_passes_while_an_answer_is_made_is_met_after_it(story: Story) -> None:
    story.waits(1, partition=1)
    story.replicas[0].produce()
    story.is_made(0)
    story.clock_ms = WAIT_MS + 1
    assert not story.go_on()
    assert (story.said(), story.due_ms(), story.waiters()) == ([], math.inf, [0, 1])
    story.is_told()
    assert story.due_ms() == WAIT_MS
    story.go_on()
    assert (story.said(), story.waiters()) == ([(1, "at 0 of 0: nothing")], [0, 0])


def test_an_answer_without_records_is_made_as_well(story: Story) -> None:
    """Nothing else is looked at, and no other deadline is met, until it is told."""
    story.waits(0)
    story.waits(1)
    story.ask(2)
    story.clock_ms = WAIT_MS
    story.is_slow = True
    assert not story.go_on()
    assert not story.go_on()
    assert story.said() == [(0, "at 0 of 0: nothing")]
    story.is_told()
    story.goes_on()
    assert [number for number, _ in story.said()] == [1, 2]


# Waiting


def test_what_finds_nothing_waits_and_is_answered_at_the_next_progress(story: Story) -> None:
    story.replicas[0].produce(2)
    story.waits(from_offset=2)
    assert (story.due_ms(), story.waiters()) == (WAIT_MS, [1, 0])
    assert not story.go_on()
    story.clock_ms = 40
    wakes = story.wakes
    story.replicas[0].produce(3)
    assert (story.wakes, story.said(), story.waiters()) == (wakes + 1, [], [0, 0])
    assert story.go_on()
    assert (story.answer(), story.due) == ("at 2 of 5: 2 to 5", [40])


def test_a_question_that_waits_wakes_the_loop_since_the_next_may_be_looked_at(story: Story) -> None:
    story.waits()
    assert story.wakes == 1


def test_reads_of_two_partitions_go_on_beside_each_other(story: Story) -> None:
    story.replicas[1].produce(2)
    story.waits(0, partition=0)
    for number in range(1, 4):
        story.ask(number, partition=1)
        story.goes_on()
        assert story.said() == [(number, "at 0 of 2: 0 to 2")]
    story.replicas[0].produce()
    story.goes_on()
    assert story.said() == [(0, "at 0 of 1: 0 to 1")]


def test_progress_of_another_partition_is_none(story: Story) -> None:
    story.waits(0)
    wakes = story.wakes
    story.replicas[1].produce()
    assert (story.wakes, story.go_on(), story.said()) == (wakes, False, [])


def test_the_loop_is_woken_once_for_all_progress_until_it_goes_on(story: Story) -> None:
    for number, partition in enumerate((0, 0, 1)):
        story.waits(number, partition=partition)
    wakes = story.wakes
    for replica in story.replicas:
        replica.produce()
    assert story.wakes == wakes + 1
    story.goes_on()
    assert [number for number, _ in story.said()] == [0, 1, 2]
    story.waits(3, from_offset=1)
    wakes = story.wakes
    story.replicas[0].produce()
    assert story.wakes == wakes + 1


def test_progress_right_after_the_look_for_it_wakes_the_loop_again(story: Story) -> None:
    story.waits(0)
    story.waits(1, partition=1)
    story.end._woken = FilledAtTheEnd(story.replicas[1].produce)
    story.replicas[0].produce()
    wakes = story.wakes
    assert story.go_on()
    assert (story.said(), story.wakes) == ([(0, "at 0 of 1: 0 to 1")], wakes + 1)
    assert story.go_on()
    assert story.said() == [(1, "at 0 of 1: 0 to 1")]


def test_progress_that_brings_it_nothing_lets_it_wait_again_until_the_same_deadline(story: Story) -> None:
    story.waits()
    story.clock_ms = 300
    with story.replicas[0].partition as replica:
        replica.progress.wake()
    assert story.go_on()
    assert (story.said(), story.due_ms(), story.waiters()) == ([], WAIT_MS, [1, 0])
    story.clock_ms = WAIT_MS
    with story.replicas[0].partition as replica:
        replica.progress.wake()
    assert story.go_on()
    assert (story.answer(), story.waiters()) == ("at 0 of 0: nothing", [0, 0])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"from_offset": "latest"}, "at 3 of 5: 3 to 5"),
        ({"from_time": 99}, "at 3 of 5: 3 to 5"),
        ({"from_offset": 3, "to": 4}, "at 3 of 5: 3 to 5"),
    ],
    ids=str,
)
def test_where_a_read_begins_is_decided_at_its_first_look(story: Story, asked: dict[str, Any], answer: str) -> None:
    story.replicas[0].produce(3)
    story.waits(**asked)
    story.replicas[0].produce(2)
    story.goes_on()
    assert story.answer() == answer


def test_one_whose_leader_steps_aside_waits_no_longer(story: Story) -> None:
    story.waits()
    story.replicas[0].told(state(2, [1, 2], leader_epoch=5), 2)
    assert story.go_on()
    assert (story.answer(), story.waiters()) == ("NOT_LEADER_OR_FOLLOWER", [0, 0])


def test_one_whose_partition_is_gone_is_refused(story: Story) -> None:
    story.waits()
    gone = story.replicas.pop(0)
    with gone.partition as replica:
        replica.resign("it is removed")
    assert story.go_on()
    assert (story.answer(), gone.waiters) == ("UNKNOWN_TOPIC_OR_PARTITION", 0)


# Deadlines


def test_without_progress_a_question_is_answered_at_its_deadline_and_not_before(story: Story) -> None:
    story.clock_ms = 5
    story.replicas[0].produce(2)
    story.waits(from_offset="latest")
    story.clock_ms = WAIT_MS + 4.5
    story.go_on()
    assert (story.said(), story.waiters()) == ([], [1, 0])
    story.clock_ms = WAIT_MS + 5
    story.go_on()
    assert (story.answer(), story.waiters()) == ("at 2 of 2: nothing", [0, 0])
    assert story.due == [WAIT_MS + 5], "it was not slow: it waited"


def test_what_comes_with_the_deadline_is_looked_at(story: Story) -> None:
    story.waits()
    story.replicas[0].produce()
    story.clock_ms = WAIT_MS
    story.goes_on()
    assert story.answer() == "at 0 of 1: 0 to 1"


def test_the_earliest_deadline_counts_whatever_has_waited_longest(story: Story) -> None:
    for number, waits_ms in enumerate((300, 100, 200)):
        story.waits(number, waits_ms=waits_ms)
    assert story.due_ms() == 100
    story.clock_ms = 100
    story.go_on()
    assert (story.said(), story.due_ms()) == ([(1, "at 0 of 0: nothing")], 200)


def test_deadlines_that_pass_together_are_met_one_after_another(story: Story) -> None:
    for number in range(3):
        story.waits(number)
    story.clock_ms = WAIT_MS
    for number in range(3):
        assert story.due_ms() == WAIT_MS
        story.go_on()
        assert story.said() == [(number, "at 0 of 0: nothing")]
    assert story.due_ms() == WAIT_MS + IDLE_MS


def test_progress_after_the_deadline_is_ignored_also_by_a_question_of_the_same_number(story: Story) -> None:
    """The partition was taken at the deadline, and whoever had it made progress."""
    story.waits()
    with story.replicas[0].partition as replica:
        story.clock_ms = WAIT_MS
        story.go_on()
        assert (story.answer(), story.waiters()) == ("at 0 of 0: nothing", [1, 0])
        story.ask(partition=1, waits_ms=WAIT_MS)
        story.goes_on()
        replica.progress.wake()
    story.run()
    story.goes_on()
    assert (story.said(), story.due_ms(), story.waiters()) == ([], 2 * WAIT_MS, [0, 1])


# Another thread has the partition


def test_a_question_for_a_partition_that_another_thread_has_is_answered_once_that_is_free(story: Story) -> None:
    for replica in story.replicas:
        replica.produce()
    story.ask(0)
    story.ask(1, partition=1)
    with taken_by_another_thread(story.replicas[0]):
        assert story.go_on()
        assert not story.go_on()
        assert (story.said(), story.due_ms()) == ([], math.inf)
    assert story.said() == []
    story.run()
    assert story.said() == [(0, "at 0 of 1: 0 to 1")]
    story.goes_on()
    assert story.said() == [(1, "at 0 of 1: 0 to 1")]


def test_a_look_that_comes_late_waits_only_until_the_deadline_of_its_question(story: Story) -> None:
    story.ask(waits_ms=WAIT_MS)
    with taken_by_another_thread(story.replicas[0]):
        story.go_on()
        story.clock_ms = WAIT_MS - 1
    story.run()
    assert (story.said(), story.due_ms(), story.waiters()) == ([], WAIT_MS, [1, 0])
    story.ask(1, partition=1, waits_ms=WAIT_MS)
    with taken_by_another_thread(story.replicas[1]):
        story.go_on()
        story.clock_ms = 2 * WAIT_MS
    story.run()
    assert (story.said(), story.waiters()) == ([(1, "at 0 of 0: nothing")], [1, 0])


# Idle


def test_a_connection_that_nobody_reads_over_ends(story: Story) -> None:
    assert story.due_ms() == IDLE_MS
    story.clock_ms = IDLE_MS - 1
    story.end.check_not_idle()
    story.clock_ms = IDLE_MS
    with pytest.raises(BrokerNotAvailable, match="connect again"):
        story.end.check_not_idle()


def test_a_connection_is_not_idle_while_a_question_waits_or_is_answered_nor_for_a_time_after_that(story: Story) -> None:
    story.waits(waits_ms=2 * IDLE_MS)
    story.clock_ms = 2 * IDLE_MS - 1
    story.end.check_not_idle()
    story.is_slow = True
    story.clock_ms = 2 * IDLE_MS
    story.go_on()
    story.clock_ms = 4 * IDLE_MS
    story.end.check_not_idle()
    story.is_told()
    story.end.check_not_idle()
    assert story.due_ms() == 5 * IDLE_MS
    story.clock_ms = 5 * IDLE_MS
    with pytest.raises(BrokerNotAvailable):
        story.end.check_not_idle()


# Closed


def test_a_connection_that_is_closed_leaves_nobody_waiting(story: Story) -> None:
    for number in range(4):
        story.waits(number, partition=number % 2)
    assert story.waiters() == [2, 2]
    wakes = story.wakes
    story.end.closed()
    assert story.waiters() == [0, 0]
    for replica in story.replicas:
        replica.produce()
    assert (story.wakes, story.said(), story.due_ms()) == (wakes, [], math.inf)


def test_a_connection_that_is_closed_leaves_a_partition_that_another_thread_has_once_that_is_free(story: Story) -> None:
    story.waits()
    with taken_by_another_thread(story.replicas[0]):
        story.end.closed()
        assert story.waiters() == [1, 0]
    story.run()
    assert (story.waiters(), story.said()) == ([0, 0], [])


def test_a_look_that_waits_for_its_partition_does_nothing_once_the_connection_is_closed(story: Story) -> None:
    story.ask(waits_ms=WAIT_MS)
    with taken_by_another_thread(story.replicas[0]):
        story.go_on()
        story.end.closed()
    story.run()
    assert (story.said(), story.waiters()) == ([], [0, 0])


def test_an_answer_that_is_made_when_the_connection_is_closed_may_be_told(story: Story) -> None:
    story.replicas[0].produce()
    story.is_made()
    story.end.closed()
    story.is_told()
    assert story.waiters() == [0, 0]


# Looks by themselves


def ticket(**asked: Any) -> ReadTicket:
    return ReadTicket(topic="foo", partition=0, **asked)


@pytest.mark.parametrize(("offset", "over"), [(3, False), (4, True), (5, True)])
def test_a_read_is_over_at_its_end_and_beyond(offset: int, *, over: bool) -> None:
    assert is_over(ticket(to=4), offset) == over
    assert not is_over(ticket(), offset)


def test_a_look_goes_on_where_it_is_told_to_and_not_where_the_ticket_starts(story: Story) -> None:
    replica = story.replicas[0]
    replica.produce(5)
    for start in ({"from_offset": 1}, {"from_offset": "latest"}, {"from_offset": "earliest"}, {"from_time": 0}):
        found = look(replica.loop, ticket(**start), ReadPlace(3), BYTES_MAX)
        assert _outcome(found) == "at 3 of 5: 3 to 5"


def test_a_follower_is_looked_at_only_by_whom_any_replica_will_do() -> None:
    leader, story = replica_story.Story((0, 4, 3)).told(), replica_story.follower((0, 1, 3))
    replica_story.fetched(story, leader, high_watermark=4)
    found = {
        str(start): _outcome(look(story.loop, ticket(from_offset=start, any_replica=True), None, BYTES_MAX))
        for start in (1, "earliest", "latest")
    }
    assert found == {"1": "at 1 of 4: 1 to 4", "earliest": "at 0 of 4: 0 to 4", "latest": "at 4 of 4: nothing"}
    for start in (1, "earliest", "latest"):
        with pytest.raises(NotLeader):
            look(story.loop, ticket(from_offset=start), None, BYTES_MAX)
    with pytest.raises(UnknownTopicOrPartition, match=f"is of topic_id {FOO_ID} here, not another"):
        look(story.loop, ticket(topic_id="another", any_replica=True), None, BYTES_MAX)


def test_a_read_that_begins_beyond_its_end_is_over_though_there_are_records() -> None:
    story = replica_story.Story((5, 9, 3)).told()
    story.fetch(2, 10)
    assert _outcome(look(story.loop, ticket(from_offset="earliest"), None, BYTES_MAX)) == "at 5 of 10: 5 to 10"
    assert _outcome(look(story.loop, ticket(from_offset="earliest", to=3), None, BYTES_MAX)) == "at 5 of 10: nothing"


def test_a_read_does_not_end_where_its_leader_does_not_know_the_end() -> None:
    """Three of five records are committed as its last checkpoint says."""
    story = replica_story.Story((0, 4, 3))
    story.log.checkpoint(3)
    story.told()
    assert _outcome(look(story.loop, ticket(), None, BYTES_MAX)) == "at 0 of 3: 0 to 3"
    for asked in (ticket(), ticket(to=5)):
        with pytest.raises(OffsetNotAvailable):
            look(story.loop, asked, ReadPlace(3), BYTES_MAX)
    assert _outcome(look(story.loop, ticket(to=3), ReadPlace(3), BYTES_MAX)) == "at 3 of 3: nothing"
    assert _outcome(look(story.loop, ticket(max_wait_ms=9), ReadPlace(3), BYTES_MAX)) == "at 3 of 3: nothing"


def test_a_read_does_not_go_on_in_a_log_that_was_cut_below_it() -> None:
    story = replica_story.Story((0, 1, 2), (2, 5, 3)).told()
    story.fetch(2, 6)
    assert look(story.loop, ticket(from_offset=2, last_epoch=2), None, BYTES_MAX).place == ReadPlace(2, 2)
    assert look(story.loop, ticket(from_offset=4), None, BYTES_MAX).place == ReadPlace(4, 3)
    assert look(story.loop, ticket(from_offset="latest"), None, BYTES_MAX).place == ReadPlace(6, 3)
    with pytest.raises(LogTruncated, match="foo-0 was read up to offset 4, in leader epoch 2, and has been cut at 2"):
        look(story.loop, ticket(from_offset=4, last_epoch=2), None, BYTES_MAX)
    with pytest.raises(LogTruncated):
        look(story.loop, ticket(), ReadPlace(4, 2), BYTES_MAX)


# Any story


class AnyStory(Story):
    """Its steps come in any order: each is done if it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.taken: set[int] = set()

    def step(self, kind: str, number: int, much: int) -> None:
        if kind == "ask":
            start = "earliest" if self.asked % 2 else "latest"
            self.ask(self.asked, partition=number, waits_ms=much, from_offset=start)
            self.asked += 1
        elif kind == "time":
            self.clock_ms += much
        elif kind == "slow":
            self.is_slow = not self.is_slow
        elif kind == "tell":
            self.tell()
        elif kind == "go on":
            self.run()
            self.go_on()
        elif number < len(self.replicas):
            self.happens_to(number, kind)

    def happens_to(self, number: int, kind: str) -> None:
        replica = self.replicas[number]
        if number not in self.taken and kind == "produce":
            replica.produce()
        elif number not in self.taken and kind == "take":
            assert replica.partition.take(0) is not None
            self.taken.add(number)
        elif number in self.taken and kind == "give":
            replica.partition.give_back()
            self.taken.discard(number)

    def tell(self) -> None:
        if self.making:
            self.end.told(self.making.popleft())

    def give_all_back(self) -> None:
        for number in range(len(self.replicas)):
            self.happens_to(number, "give")
        self.run()

    def comes_to_its_end(self) -> list[int]:
        """Time goes on until nothing is owed. Returns the numbers of what was answered."""
        self.is_slow = False
        for _ in range(3 * self.asked + 1):
            self.tell()
            if self.due_ms() < math.inf and len(self._said) < self.asked:
                self.clock_ms = max(self.clock_ms, self.due_ms())
            self.go_on()
            self.run()
        return sorted(number for number, _ in self.said())


KINDS = ("ask", "ask", "ask", "produce", "produce", "time", "take", "give", "slow", "tell", "tell", "go on", "go on")
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.sampled_from((0, 40, 50, 400))), min_size=5, max_size=60
)


@given(steps=STEPS, ends=st.booleans())
def test_in_any_story_each_question_is_answered_once_and_nobody_is_left_waiting(
    steps: list[tuple[str, int, int]], *, ends: bool
) -> None:
    """ends: whether the connection is closed in the midst of it."""
    story = AnyStory()
    for step in steps:
        story.step(*step)
    if ends:
        story.end.closed()
        story.give_all_back()
    else:
        story.give_all_back()
        assert story.comes_to_its_end() == list(range(story.asked))
    assert story.waiters() == [0, 0]
