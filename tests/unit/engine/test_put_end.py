"""The broker's end of a producer's connection: each row of its table, what comes in which order, and what it keeps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.config import Compression
from spark_replication.core.replica.producers import OffsetSpan, Producers
from spark_replication.engine.ends.put_end import KeptBytes, PutEnd, PutStream
from spark_replication.engine.ends.puts import PendingPut, numbers_of
from spark_replication.engine.ends.slow_disks import FAST_AGAIN, SLOW_FOR_MS, SLOW_MS
from spark_replication.engine.replica.partition import Partition, Turns
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.engine.replica.waiters import Acknowledge
from spark_replication.errors import (
    InvalidRequest,
    NotLeader,
    ReplicationError,
    StorageFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.lane import STREAMS_MAX, PutFrame
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.sim.world.one_at_a_time import OneAtATime
from tests.unit.core.stories import FOO, FOO_ID
from tests.unit.engine.late_queue import FilledAtTheEnd
from tests.unit.engine.replica import story as replica_story

TIMEOUT_MS = 100.0
NOW_MS = 5
TOPIC_ID = "id"
SCHEMA = object()
SMALL = b"small"
LARGE = bytes(PutEnd.large_bytes_min)
NOT_SOUND = b"not sound"


class Replica:
    """What a PutEnd calls of a ReplicaLoop. It names a batch by its CRC, which in a story is the batch's number. Its
    log is what is known of producers."""

    def __init__(self, story: Story, number: int) -> None:
        self._story = story
        self.partition = TopicPartition("orders", number)
        self.topic_id = TOPIC_ID
        self.compression: Compression = "none"
        self.appended: list[int] = []
        self.acks: list[int | str] = []
        self.acknowledges: dict[int, Acknowledge] = {}
        self.producers = Producers()
        #: The next batch.
        self.refuses: ReplicationError | None = None
        self.takes_ms = 0.0

    def produce(self, batch: PreparedBatch, *, acks: int | str, now_ms: int, acknowledge: Acknowledge) -> None:
        assert now_ms == NOW_MS
        self._story.clock_ms += self.takes_ms
        refuses, self.refuses = self.refuses, None
        if refuses is not None:
            raise refuses
        if batch.producer >= 0:
            of, epoch, sequence = batch.producer, batch.producer_epoch, batch.sequence
            assert self.producers.check(of, epoch, sequence, rows=1, crc=batch.crc) is None, "no story sends one again"
            self.producers.wrote(of, epoch, sequence, OffsetSpan(batch.crc, batch.crc))
        self.appended.append(batch.crc)
        self.acks.append(acks)
        self.acknowledges[batch.crc] = acknowledge


class HeldAside:
    """engine.put_end.Aside: its threads do the next piece of work when the story says so."""

    def __init__(self) -> None:
        self.asked: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.asked.append((work, then))

    def step(self) -> None:
        work, then = self.asked.popleft()
        then(work())


class Story:
    """A producer's connection to the broker of orders-0 and orders-1, over which stream 0 is open."""

    def __init__(self, *, unanswered_max: int = 100, kept: KeptBytes | None = None) -> None:
        self.clock_ms = 0.0
        self.aside = HeldAside()
        self.posted: deque[Callable[[], None]] = deque()
        self.replicas = [Replica(self, number) for number in range(2)]
        self.partitions = [
            Partition(cast("ReplicaLoop", replica), Turns(OneAtATime(), self.posted.append))
            for replica in self.replicas
        ]
        self.prepared: list[tuple[int, bytes, Compression]] = []
        self.accepted: list[int] = []
        self.wakes = 0
        self.sent = 0
        self.kept = KeptBytes(1 << 30) if kept is None else kept
        self.end = PutEnd(
            self._find,
            self._prepare,
            self.aside,
            self.kept,
            timeout_ms=TIMEOUT_MS,
            unanswered_max=unanswered_max,
            clock_ms=lambda: self.clock_ms,
            now_ms=lambda: NOW_MS,
            accepted=lambda batch: self.accepted.append(batch.crc),
            wake=self._wake,
        )
        self.end.opened(0, "orders", TOPIC_ID, SCHEMA)

    def _find(self, name: TopicPartition) -> Partition:
        for partition in self.partitions:
            if partition.topic_partition == name:
                return partition
        raise UnknownTopicOrPartition(f"{name} is not here")

    def _prepare(
        self, stream: PutStream, frame: PutFrame, payload: bytes | bytearray | memoryview, compression: Compression
    ) -> PreparedBatch:
        assert stream.schema is SCHEMA
        self.prepared.append((frame.number, bytes(payload), compression))
        if payload == NOT_SOUND:
            try:
                raise ValueError("as a library says it")
            except ValueError as error:
                raise InvalidRequest("the batch is not sound") from error
        numbers = numbers_of(frame.batch)
        del numbers["any_order"]
        return PreparedBatch(1, bytes(payload), frame.number, b"", **numbers)

    def _wake(self) -> None:
        self.wakes += 1

    def put(
        self,
        payload: bytes | memoryview = SMALL,
        *,
        partition: int | None = 0,
        stream: int = 0,
        number: int | None = None,
        sequence: int | None = None,
        producer: int = 7,
        acks: Any = "all",
    ) -> int:
        """Returns the number of the batch: unless it is given, how many were sent before."""
        number = self.sent if number is None else number
        self.sent += 1
        asked = BatchMetadata(
            partition=partition, acks=acks, producer=None if sequence is None else producer, sequence=sequence
        )
        self.end.put(PutFrame(stream=stream, number=number, crc=number, batch=asked), payload)
        return number

    def puts(self, count: int) -> None:
        for _ in range(count):
            self.put()

    def store(self, *numbers: int, partition: int = 0) -> None:
        """The followers have these batches."""
        for number in numbers:
            self.replicas[partition].acknowledges[number](OffsetSpan(number, number))

    def run(self) -> None:
        """The broker's loop does what was posted to it."""
        while self.posted:
            self.posted.popleft()()

    def told(self) -> list[tuple[int, str]]:
        """The answers that are known: "stored", or the error's code."""
        return [(answer.number, _outcome(answer)) for answer in self.end.owed.take()]

    def is_full(self) -> bool:
        return self.end.is_full

    def due_ms(self) -> float:
        return self.end.owed.due_ms

    def appended(self, partition: int = 0) -> list[int]:
        return self.replicas[partition].appended


def _outcome(answer: PendingPut) -> str:
    assert answer.outcome is not None
    return answer.outcome.code if isinstance(answer.outcome, ReplicationError) else "stored"


@pytest.fixture
def story() -> Story:
    return Story()


# Streams


def test_a_batch_of_a_stream_that_is_not_open_ends_the_connection(story: Story) -> None:
    with pytest.raises(InvalidRequest, match="batch 0 is of stream 1, which is not open"):
        story.put(stream=1)
    story.end.opened(1, "orders", TOPIC_ID, SCHEMA)
    story.put(stream=1)
    assert story.appended() == [1]


def test_a_stream_is_opened_once(story: Story) -> None:
    with pytest.raises(InvalidRequest, match="stream 0 is open"):
        story.end.opened(0, "orders", TOPIC_ID, SCHEMA)


def test_a_connection_has_so_many_streams(story: Story) -> None:
    for number in range(1, STREAMS_MAX):
        story.end.opened(number, "orders", TOPIC_ID, SCHEMA)
    with pytest.raises(InvalidRequest, match=f"{STREAMS_MAX} others are: connect again"):
        story.end.opened(STREAMS_MAX, "orders", TOPIC_ID, SCHEMA)
    story.put(stream=STREAMS_MAX - 1)
    assert story.appended() == [0]


# Batches


def test_a_batch_that_is_refused_keeps_nothing_of_the_buffer_that_it_came_in(story: Story) -> None:
    """Not while its answer is owed, and not as garbage. The errors of 600 connections kept 25 MB."""
    received = bytearray(NOT_SOUND)
    story.put(memoryview(received))
    received.clear()  # BufferError, as long as there is a view of it
    assert story.told() == [(0, InvalidRequest.code)]


def test_a_batch_is_appended_at_once_and_its_answer_is_owed_until_it_is_known(story: Story) -> None:
    story.put(acks=1)
    assert (story.prepared, story.appended(), story.accepted) == ([(0, SMALL, "none")], [0], [0])
    assert story.replicas[0].acks == [1]
    assert (story.told(), story.wakes) == ([], 0)
    story.replicas[0].acknowledges[0](OffsetSpan(40, 42))
    (answer,) = story.end.owed.take()
    assert (answer.number, answer.outcome) == (0, OffsetSpan(40, 42))
    assert story.told() == []


def test_all_answers_that_are_known_go_together_in_the_order_in_which_they_became_known(story: Story) -> None:
    story.puts(2)
    story.put(partition=1)
    story.puts(1)
    story.store(2, partition=1)
    story.store(0, 3)
    assert story.told() == [(2, "stored"), (0, "stored"), (3, "stored")]
    story.store(1)
    assert story.told() == [(1, "stored")]


def test_a_number_that_is_owed_is_not_given_again_before_its_answer_was_taken(story: Story) -> None:
    story.put(number=3)
    story.store(3)
    with pytest.raises(InvalidRequest, match=r"batch 3 .* or is owed"):
        story.put(number=3)
    assert story.told() == [(3, "stored")]
    story.put(number=3)
    assert story.appended() == [3, 3]


def test_a_batch_without_a_partition_is_refused(story: Story) -> None:
    story.put(partition=None)
    (answer,) = story.end.owed.take()
    assert isinstance(answer.outcome, InvalidRequest)
    assert answer.outcome.message == 'which partition of orders? Name it in the metadata: "partition"'
    assert story.prepared == []


def test_a_batch_for_a_partition_that_is_not_here_is_refused(story: Story) -> None:
    story.put(partition=9)
    assert story.told() == [(0, "UNKNOWN_TOPIC_OR_PARTITION")]


def test_a_batch_that_is_not_sound_is_refused_and_so_are_those_behind_it(story: Story) -> None:
    story.put(NOT_SOUND, sequence=0)
    story.put(sequence=1)
    story.put(sequence=0, producer=8)
    story.put(sequence=0)
    assert story.told() == [(0, "INVALID_REQUEST"), (1, "OUT_OF_ORDER_SEQUENCE_NUMBER")]
    assert (story.appended(), story.accepted) == ([2, 3], [2, 3])


def test_behind_a_batch_that_the_replica_refuses_nothing_is_stored(story: Story) -> None:
    story.replicas[0].refuses = StorageFailed("the disk refuses")
    story.put(sequence=0)
    story.put(sequence=1)
    story.put(sequence=0, partition=1)
    assert story.told() == [(0, "KAFKA_STORAGE_ERROR"), (1, "OUT_OF_ORDER_SEQUENCE_NUMBER")]
    assert (story.appended(), story.appended(1), story.accepted) == ([], [2], [2])


def test_a_batch_is_appended_behind_one_that_was_refused_here_and_that_another_leader_has_stored(story: Story) -> None:
    """The producer has come back over the connection where it was refused. To be told that its batch is out of order
    would let it send the batch under another number, and it may be stored already."""
    story.replicas[0].refuses = NotLeader("another leads")
    story.put(sequence=0)
    story.replicas[0].producers.wrote(7, 0, 0, OffsetSpan(0, 0))
    story.put(sequence=1)
    assert story.told() == [(0, "NOT_LEADER_OR_FOLLOWER")]
    assert story.appended() == [1]


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])
def test_a_topic_that_was_made_again_takes_no_batches_of_the_one_before(story: Story, payload: bytes) -> None:
    story.end.opened(1, "orders", "id-of-before", SCHEMA)
    story.put(payload, stream=1)
    while story.aside.asked:
        story.aside.step()
    (answer,) = story.end.owed.take()
    assert isinstance(answer.outcome, ReplicationError)
    assert (answer.outcome.code, answer.outcome.stale_routes) == ("NOT_LEADER_OR_FOLLOWER", True)
    assert "orders-0 is topic id here, not id-of-before" in answer.outcome.message
    assert (story.appended(), story.accepted) == ([], [])


# Another thread has the partition


def test_a_batch_is_appended_once_another_thread_gives_its_partition_back_and_later_ones_follow(story: Story) -> None:
    with story.partitions[0]:
        story.puts(3)
        story.put(partition=1)
        story.run()
        assert (story.appended(), story.appended(1)) == ([], [3])
        assert [number for number, *_ in story.prepared] == [0, 3]
    assert story.appended() == []
    story.run()
    assert story.appended() == [0, 1, 2]
    story.puts(1)
    assert story.appended() == [0, 1, 2, 4]
    assert story.kept.bytes == 0


def test_what_waits_is_a_copy(story: Story) -> None:
    received = bytearray(b"first")
    with story.partitions[0]:
        story.put(memoryview(received))
        received[:] = b"other"
        story.put(memoryview(received))
        received[:] = b"again"
        assert story.kept.bytes == len(received)
    story.run()
    assert [payload for _, payload, _ in story.prepared] == [b"first", b"other"]
    assert story.kept.bytes == 0


def test_a_batch_that_is_refused_does_not_overtake_the_one_before_it(story: Story) -> None:
    with story.partitions[0]:
        story.put(sequence=0)
        story.put(NOT_SOUND, sequence=1)
        story.put(sequence=2)
        assert story.told() == []
    story.run()
    assert story.appended() == [0]
    assert story.told() == [(1, "INVALID_REQUEST"), (2, "OUT_OF_ORDER_SEQUENCE_NUMBER")]


def test_a_refusal_that_was_deferred_makes_those_that_waited_out_of_order(story: Story) -> None:
    story.replicas[0].refuses = StorageFailed("the disk refuses")
    with story.partitions[0]:
        story.put(sequence=0)
        story.put(sequence=1)
    story.run()
    assert story.told() == [(0, "KAFKA_STORAGE_ERROR"), (1, "OUT_OF_ORDER_SEQUENCE_NUMBER")]


def test_one_that_waited_may_be_deferred_itself(story: Story) -> None:
    with story.partitions[0]:
        story.put()
        story.put(LARGE)
        story.puts(2)
    story.run()
    assert (story.appended(), len(story.aside.asked)) == ([0], 1)
    story.aside.step()
    assert story.appended() == [0, 1, 2, 3]
    assert story.kept.bytes == 0


def test_batches_of_two_streams_for_one_partition_stay_in_order(story: Story) -> None:
    story.end.opened(1, "orders", TOPIC_ID, SCHEMA)
    with story.partitions[0]:
        story.put(stream=1)
        story.put()
        story.put(stream=1)
    story.run()
    assert story.appended() == [0, 1, 2]


# Batches that may take long


def slow_disk(story: Story) -> None:
    """The disk is slow once."""
    story.replicas[0].takes_ms = SLOW_MS
    story.put()
    story.replicas[0].takes_ms = 0.0


def compressed(story: Story) -> None:
    story.replicas[0].compression = "zstd"


@pytest.mark.parametrize(
    ("before", "payload", "is_aside"),
    [
        (None, LARGE, True),
        (None, LARGE[1:], False),
        (compressed, SMALL, True),
        (slow_disk, SMALL, True),
    ],
    ids=["large", "almost large", "to be compressed", "slow disk"],
)
def test_what_may_take_long_is_done_by_another_thread_and_those_behind_it_wait(
    story: Story, before: Callable[[Story], None] | None, payload: bytes, *, is_aside: bool
) -> None:
    if before is not None:
        before(story)
    first = story.put(payload)
    story.replicas[0].compression = "none"
    assert (len(story.aside.asked), story.kept.bytes) == (int(is_aside), len(payload) if is_aside else 0)
    story.put(partition=1)
    story.put(SMALL)
    assert (first in story.appended()) != is_aside
    while story.aside.asked:
        story.aside.step()
    assert story.appended() == [*range(first + 1), first + 2]
    assert (story.appended(1), story.kept.bytes) == ([first + 1], 0)
    assert sorted(story.accepted) == list(range(story.sent))


def test_the_other_thread_gets_a_copy_and_the_compression_of_the_topic(story: Story) -> None:
    compressed(story)
    received = bytearray(b"first")
    story.put(memoryview(received))
    received[:] = b"other"
    assert story.prepared == []
    story.aside.step()
    assert story.prepared == [(0, b"first", "zstd")]


def test_the_other_thread_is_free_to_begin_the_next_partition(story: Story) -> None:
    story.put(LARGE)
    story.put(LARGE, partition=1)
    story.put(LARGE)
    assert (len(story.aside.asked), story.kept.bytes) == (2, 3 * len(LARGE))
    while story.aside.asked:
        story.aside.step()
    assert (story.appended(), story.appended(1), story.kept.bytes) == ([0, 2], [1], 0)


@pytest.mark.parametrize(
    ("payload", "refuses", "code"),
    [
        (LARGE, StorageFailed("the disk refuses"), "KAFKA_STORAGE_ERROR"),
        (NOT_SOUND, None, "INVALID_REQUEST"),
    ],
    ids=["by the replica", "as not sound"],
)
def test_a_refusal_on_another_thread_makes_those_that_waited_out_of_order(
    story: Story, payload: bytes, refuses: ReplicationError | None, code: str
) -> None:
    story.replicas[0].compression = "lz4"
    story.replicas[0].refuses = refuses
    story.put(payload, sequence=0)
    story.put(sequence=1)
    story.put(sequence=2)
    story.put(sequence=0, producer=8)
    while story.aside.asked:
        story.aside.step()
    assert story.told() == [
        (0, code),
        (1, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (2, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    ]
    for sequence in range(3):
        story.put(sequence=sequence)
    while story.aside.asked:
        story.aside.step()
    assert story.appended() == [3, 4, 5, 6]
    assert story.kept.bytes == 0


def test_a_disk_is_slow_for_some_time(story: Story) -> None:
    slow_disk(story)
    story.clock_ms += SLOW_FOR_MS - 1
    story.put()
    assert len(story.aside.asked) == 1
    story.aside.step()
    story.clock_ms += 1
    story.put()
    assert (len(story.aside.asked), story.appended()) == (0, [0, 1, 2])


def test_a_disk_that_is_slow_on_another_thread_stays_slow(story: Story) -> None:
    slow_disk(story)
    story.clock_ms += SLOW_FOR_MS - 1
    story.replicas[0].takes_ms = SLOW_MS
    story.put()
    story.aside.step()
    story.clock_ms += SLOW_FOR_MS - 1
    story.put()
    assert len(story.aside.asked) == 1


def test_a_disk_that_is_fast_again_and_again_is_slow_no_longer(story: Story) -> None:
    slow_disk(story)
    for _ in range(FAST_AGAIN):
        story.put()
        story.aside.step()
    story.put()
    assert (len(story.aside.asked), len(story.appended())) == (0, FAST_AGAIN + 2)


def test_what_is_refused_does_not_show_that_the_disk_is_fast(story: Story) -> None:
    slow_disk(story)
    story.replicas[0].refuses = StorageFailed("the disk refuses")
    for _ in range(FAST_AGAIN):
        story.put()
        story.aside.step()
    story.put()
    assert len(story.aside.asked) == 1


def test_a_partition_with_a_fast_disk_does_not_care_for_the_slow_one_of_another(story: Story) -> None:
    slow_disk(story)
    story.put(partition=1)
    assert (len(story.aside.asked), story.appended(1)) == (0, [1])


# Answers


def test_the_first_outcome_of_a_batch_counts(story: Story) -> None:
    story.put()
    story.store(0)
    story.replicas[0].acknowledges[0](StorageFailed("too late"))
    assert story.told() == [(0, "stored")]
    story.store(0)
    assert story.told() == []


def test_an_answer_that_two_threads_fill_at_once_is_told_once(story: Story) -> None:
    """Both find it empty, and leave a note: its number may be another batch's by the second one."""
    story.put()
    story.store(0)
    (answer,) = story.end.owed.take()
    story.put(number=0)
    story.end.owed.filled(answer)
    assert story.told() == []
    story.store(0)
    assert story.told() == [(0, "stored")]


def test_the_broker_is_woken_once_for_all_that_becomes_known_until_it_looks(story: Story) -> None:
    story.puts(4)
    story.store(0, 1)
    assert story.wakes == 1
    assert len(story.told()) == 2
    story.store(2)
    assert story.wakes == 2
    story.store(3)
    assert (story.wakes, len(story.told())) == (2, 2)


def test_an_answer_that_becomes_known_right_after_the_look_wakes_the_broker_again(story: Story) -> None:
    story.puts(2)
    story.end.owed._filled = FilledAtTheEnd(lambda: story.store(1))
    story.store(0)
    assert story.told() == [(0, "stored")]
    assert story.wakes == 2
    assert story.told() == [(1, "stored")]


def test_a_refusal_wakes_the_broker_too(story: Story) -> None:
    story.put(NOT_SOUND)
    assert story.wakes == 1


def test_what_another_thread_has_done_wakes_the_broker_since_more_may_be_read(story: Story) -> None:
    story.put(LARGE)
    story.aside.step()
    assert story.wakes == 1


# Time


def test_nothing_known_in_time_is_answered_as_not_known(story: Story) -> None:
    assert story.due_ms() == math.inf
    story.puts(2)
    story.clock_ms = 1
    story.puts(1)
    assert story.due_ms() == TIMEOUT_MS
    story.clock_ms = TIMEOUT_MS - 0.5
    story.end.owed.expire(story.clock_ms)
    assert story.told() == []
    story.clock_ms = TIMEOUT_MS
    story.end.owed.expire(story.clock_ms)
    answers = story.end.owed.take()
    assert [(answer.number, _outcome(answer)) for answer in answers] == [
        (0, "REQUEST_TIMED_OUT"),
        (1, "REQUEST_TIMED_OUT"),
    ]
    for answer in answers:
        assert isinstance(answer.outcome, ReplicationError)
        assert (answer.outcome.maybe_written, answer.outcome.retriable) == (True, True)
        assert "request.timeout.ms=100" in answer.outcome.message
    assert story.due_ms() == TIMEOUT_MS + 1
    story.store(2)
    assert story.told() == [(2, "stored")]
    assert story.due_ms() == math.inf


def test_an_outcome_after_the_time_is_ignored_also_by_a_batch_of_the_same_number(story: Story) -> None:
    story.put()
    late = story.replicas[0].acknowledges[0]
    story.clock_ms = TIMEOUT_MS
    story.end.owed.expire(story.clock_ms)
    late(OffsetSpan(0, 0))
    assert story.told() == [(0, "REQUEST_TIMED_OUT")]
    late(OffsetSpan(0, 0))
    story.put(number=0)
    late(OffsetSpan(0, 0))
    assert story.told() == []
    story.replicas[0].acknowledges[0](OffsetSpan(1, 1))
    (answer,) = story.end.owed.take()
    assert answer.outcome == OffsetSpan(1, 1)


def test_what_is_known_and_not_taken_yet_does_not_expire(story: Story) -> None:
    story.put()
    story.store(0)
    story.clock_ms = TIMEOUT_MS
    story.end.owed.expire(story.clock_ms)
    assert story.told() == [(0, "stored")]


def test_a_batch_that_waits_for_its_turn_expires_and_may_be_appended_all_the_same(story: Story) -> None:
    with story.partitions[0]:
        story.puts(2)
        story.clock_ms = TIMEOUT_MS
        story.end.owed.expire(story.clock_ms)
        assert story.told() == [(0, "REQUEST_TIMED_OUT"), (1, "REQUEST_TIMED_OUT")]
    story.run()
    assert story.appended() == [0, 1]
    story.store(0, 1)
    assert story.told() == []
    assert story.kept.bytes == 0


# How much is taken


def test_no_more_is_read_while_so_many_answers_are_owed() -> None:
    story = Story(unanswered_max=3)
    story.puts(2)
    assert not story.is_full()
    story.puts(1)
    assert story.is_full()
    story.store(0)
    assert story.is_full()
    story.told()
    assert not story.is_full()


def test_no_more_is_read_while_copies_take_too_much_memory() -> None:
    story = Story(kept=KeptBytes(2 * len(SMALL)))
    with story.partitions[0]:
        story.puts(2)
        assert (story.kept.bytes, story.is_full()) == (len(SMALL), False)
        story.puts(1)
        assert (story.kept.bytes, story.is_full()) == (2 * len(SMALL), True)
    story.run()
    assert (story.kept.bytes, story.is_full()) == (0, False)


def test_the_copies_of_another_connection_stop_one_that_keeps_some_itself() -> None:
    kept = KeptBytes(len(LARGE) + 1)
    keeping, other, idle = (Story(kept=kept) for _ in range(3))
    keeping.put(LARGE)
    other.put()
    assert (keeping.is_full(), other.is_full()) == (False, False)
    other.put(LARGE)
    assert (keeping.is_full(), other.is_full(), idle.is_full()) == (True, True, False)
    other.aside.step()
    assert (keeping.is_full(), other.is_full()) == (False, False)
    other.put(LARGE, partition=1)
    keeping.aside.step()
    assert (keeping.is_full(), other.is_full()) == (False, False)
    other.aside.step()
    assert kept.bytes == 0


def test_the_broker_is_woken_when_copies_are_given_back_after_another_thread_had_the_partition() -> None:
    """Else it reads nothing from the connection until an answer becomes known."""
    story = Story(kept=KeptBytes(len(SMALL)))
    with story.partitions[0]:
        story.puts(2)
        assert story.is_full()
    story.run()
    assert (story.appended(), story.is_full()) == ([0, 1], False)
    assert story.wakes == 1


# The end of the connection


def test_what_waits_when_the_connection_closes_is_dropped_and_what_has_begun_is_not(story: Story) -> None:
    story.put(LARGE)
    story.puts(2)
    with story.partitions[1]:
        story.put(partition=1)
        story.put(partition=1)
        story.end.closed()
    story.run()
    story.aside.step()
    assert (story.appended(), story.appended(1), story.aside.asked) == ([0], [3], deque())
    assert [number for number, *_ in story.prepared] == [3, 0]
    assert story.kept.bytes == 0


def test_an_outcome_after_the_connection_closed_harms_nobody(story: Story) -> None:
    story.puts(1)
    story.end.closed()
    story.store(0)
    assert story.kept.bytes == 0


# With a replica, and whatever comes between


def test_a_batch_is_answered_once_the_high_watermark_covers_it() -> None:
    held = replica_story.Story().told()
    posted: deque[Callable[[], None]] = deque()
    partition = Partition(held.loop, Turns(OneAtATime(), posted.append))
    story = Story()
    story.partitions.append(partition)
    story.end.opened(1, FOO.topic, FOO_ID, SCHEMA)
    with partition:
        story.put(stream=1, sequence=0)
        story.put(stream=1, sequence=1)
    posted.popleft()()
    held.fetch(2, 0)
    assert (held.log.log_end, story.told()) == (2, [])
    held.answer(2)
    held.fetch(2, 2)
    first, second = story.end.owed.take()
    assert (first.outcome, second.outcome) == (OffsetSpan(0, 0), OffsetSpan(1, 1))


def test_a_replica_that_does_not_lead_refuses() -> None:
    held = replica_story.follower()
    story = Story()
    story.partitions.append(Partition(held.loop, Turns(OneAtATime(), story.posted.append)))
    story.end.opened(1, FOO.topic, FOO_ID, SCHEMA)
    story.put(stream=1, sequence=0)
    story.put(LARGE, stream=1, sequence=1)
    story.aside.step()
    assert story.told() == [(0, "NOT_LEADER_OR_FOLLOWER"), (1, "NOT_LEADER_OR_FOLLOWER")]


class Interleaving:
    """A story of which any step may come next."""

    def __init__(self) -> None:
        self.story = Story()
        #: Per partition, the batches that are to be appended.
        self.sent: dict[int, list[int]] = {0: [], 1: []}
        self.answered: list[int] = []
        self._wakes_seen = 0
        self._is_taken = False

    def put(self) -> None:
        self.sent[0].append(self.story.put())

    def put_large(self) -> None:
        self.sent[0].append(self.story.put(LARGE))

    def put_bad(self) -> None:
        self.story.put(NOT_SOUND)

    def put_elsewhere(self) -> None:
        self.sent[1].append(self.story.put(partition=1))

    def take(self) -> None:
        self._is_taken = self._is_taken or self.story.partitions[0].take(0) is not None

    def give_back(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self.story.partitions[0].give_back()

    def loop(self) -> None:
        self.story.run()

    def aside(self) -> None:
        if self.story.aside.asked and not self._is_taken:
            self.story.aside.step()

    def store(self) -> None:
        for replica in self.story.replicas:
            for number in list(replica.acknowledges):
                replica.acknowledges.pop(number)(OffsetSpan(number, number))

    def expire(self) -> None:
        self.story.clock_ms += TIMEOUT_MS
        self.story.end.owed.expire(self.story.clock_ms)

    def look(self) -> None:
        known = [number for number, _ in self.story.told()]
        assert not known or self.story.wakes > self._wakes_seen, "an answer was known, and nobody was woken for it"
        self._wakes_seen = self.story.wakes
        self.answered.extend(known)

    def end(self) -> None:
        self.give_back()
        self.loop()
        while self.story.aside.asked:
            self.aside()
            self.loop()
        self.store()
        self.look()


STEPS = [name for name, step in vars(Interleaving).items() if callable(step) and name not in ("__init__", "end")]


@given(st.lists(st.sampled_from(STEPS), max_size=50))
def test_nothing_is_lost_or_overtaken_or_answered_twice_whatever_comes_between(steps: list[str]) -> None:
    told = Interleaving()
    for step in steps:
        getattr(told, step)()
        for partition, numbers in told.sent.items():
            appended = told.story.appended(partition)
            assert appended == numbers[: len(appended)]
    told.end()
    assert [told.story.appended(partition) for partition in told.sent] == list(told.sent.values())
    assert sorted(told.answered) == list(range(told.story.sent))
    assert (told.story.kept.bytes, told.story.due_ms(), told.story.is_full()) == (0, math.inf, False)
