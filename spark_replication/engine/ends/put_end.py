"""The broker's end of a producer's connection: which batch is appended when, and what is answered.

| event                               | what follows                                                                  |
| ----------------------------------- | ----------------------------------------------------------------------------- |
| opened                              | batches may name this stream                                                  |
| put                                 | the batch is checked and appended; its answer is owed                         |
| put, another thread has the         | it is appended once the partition is free                                     |
| partition                           |                                                                               |
| put, that may take long             | another thread checks and appends it: it is large, or is to be compressed, or |
|                                     | the disk was slow a moment ago (engine.ends.slow_disks)                       |
| put, an earlier batch of the        | a copy of it waits for its turn                                               |
| partition is not appended           |                                                                               |
| known: the batch is stored, or not  | the answer goes with all others that are known                                |
| nothing is known for `timeout_ms`   | the answer is that it is not known                                            |
| `unanswered_max` answers are owed,  | nothing is read from the connection                                           |
| or copies take too much memory      |                                                                               |
| closed                              | batches that wait for their turn are dropped                                  |

Only the broker's loop calls a PutEnd. The outcome of a batch may come from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from spark_replication.config import Compression
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.engine.ends.puts import OwedPuts, PendingPut
from spark_replication.engine.ends.slow_disks import SlowDisks
from spark_replication.engine.replica.partition import FindPartition, Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import InvalidRequest, NotLeader, ReplicationError, without_frames
from spark_replication.messages.lane import STREAMS_MAX, PutAnswer, PutFrame
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.ports import PreparedBatch

Buffer = bytes | bytearray | memoryview


class PutStream(msgspec.Struct, frozen=True, eq=False):
    topic: str
    topic_id: str
    #: Of the batches, as whoever prepares them understands it.
    schema: Any


class AsideThreads(Protocol):
    """Other threads, for work that may take long."""

    def do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """The loop calls `then` with the result."""


class KeptBytes:
    """What the copies of all connections of a broker take."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


def told(answer: PendingPut) -> PutAnswer:
    """What the producer is told."""
    outcome = answer.outcome
    assert outcome is not None, "it is known"
    if isinstance(outcome, OffsetSpan):
        return PutAnswer(number=answer.number, base_offset=outcome.base_offset, last_offset=outcome.last_offset)
    return PutAnswer(
        number=answer.number,
        error=outcome.code,
        message=outcome.message,
        retriable=outcome.retriable,
        maybe_written=outcome.maybe_written,
    )


class UnappendedPut:
    """A batch that is not appended yet."""

    __slots__ = ("answer", "frame", "is_done", "is_late", "kept_bytes", "name", "payload", "stream")

    def __init__(self, stream: PutStream, frame: PutFrame, payload: Buffer, answer: PendingPut) -> None:
        self.stream = stream
        self.frame = frame
        self.payload = payload
        self.answer = answer
        self.name = TopicPartition(stream.topic, -1 if frame.batch.partition is None else frame.batch.partition)
        self.kept_bytes = 0  # of the copy, if there is one
        self.is_done = False
        self.is_late = False  # it was not done when its turn came, and others may wait for it

    @property
    def asked(self) -> BatchMetadata:
        return self.frame.batch


class PutEnd:
    #: To check and to copy such a batch takes milliseconds.
    large_bytes_min = 2 << 20

    def __init__(
        self,
        find: FindPartition,
        prepare: Callable[[PutStream, PutFrame, Buffer, Compression], PreparedBatch],
        aside: AsideThreads,
        kept: KeptBytes,
        *,
        timeout_ms: float,
        unanswered_max: int,
        clock_ms: Callable[[], float],
        now_ms: Callable[[], int],
        accepted: Callable[[PreparedBatch], None],
        wake: Callable[[], None],
    ) -> None:
        """prepare: checks a batch, and makes of it what is stored; from any thread. clock_ms: never goes back. now_ms:
        for the log. accepted: told of each batch that was appended. wake: has the loop look at `owed` and
        `is_full` soon; from any thread."""
        self._find = find
        self._prepare = prepare
        self._aside = aside
        self._kept = kept
        self._kept_bytes = 0  # of this connection alone
        self._unanswered_max = unanswered_max
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self._accepted = accepted
        self._wake = wake
        self._streams: dict[int, PutStream] = {}
        self._slow = SlowDisks()
        #: Per partition, batches behind one that is not done yet.
        self._waiting: dict[TopicPartition, deque[UnappendedPut]] = {}
        self.owed = OwedPuts(timeout_ms=timeout_ms, wake=wake)

    def opened(self, number: int, topic: str, topic_id: str, schema: Any) -> None:
        if number in self._streams or len(self._streams) >= STREAMS_MAX:
            raise InvalidRequest(f"stream {number} is open, or {STREAMS_MAX} others are: connect again")
        self._streams[number] = PutStream(topic, topic_id, schema)

    # Batches

    def put(self, frame: PutFrame, payload: Buffer) -> None:
        """payload: valid during this call only."""
        stream = self._streams.get(frame.stream)
        if stream is None or frame.number in self.owed:
            raise InvalidRequest(f"batch {frame.number} is of stream {frame.stream}, which is not open, or is owed")
        put = UnappendedPut(stream, frame, payload, self.owed.begin(frame.number, self._clock_ms()))
        before = self._waiting.get(put.name)
        if before is not None:
            self._keep(put)
            before.append(put)
            return
        self._begin(put)
        if not put.is_done:
            put.is_late = True
            self._waiting[put.name] = deque()

    def _begin(self, put: UnappendedPut) -> None:
        try:
            if put.asked.partition is None:
                raise InvalidRequest(f'which partition of {put.stream.topic}? Name it in the metadata: "partition"')
            partition = self._find(put.name)
            if partition.topic_id != put.stream.topic_id:
                raise NotLeader(
                    f"{put.name} is topic {partition.topic_id} here, not {put.stream.topic_id}: reload routes and retry"
                )
            compression = partition.compression
            if self._may_take_long(put, compression):
                self._keep(put)
                self._aside.do(partial(self._append_aside, put, partition), partial(self._appended_aside, put))
                return
            batch = self._prepare(put.stream, put.frame, put.payload, compression)
        except ReplicationError as error:
            self._refuse(put, error)
            return
        self._give_back(put)  # the batch has memory of its own
        partition.do(partial(self._append, put, batch))

    def _may_take_long(self, put: UnappendedPut, compression: Compression) -> bool:
        is_heavy = len(put.payload) >= self.large_bytes_min or compression != "none"
        return is_heavy or (self._slow.are_some and self._slow.has(put.name, self._clock_ms()))

    def _append(self, put: UnappendedPut, batch: PreparedBatch, replica: ReplicaLoop) -> None:
        began_ms = self._clock_ms()
        try:
            self.produce(put, batch, replica)
        except ReplicationError as error:
            self._took(put, began_ms, wrote=False)
            self._refuse(put, error)
        else:
            self._took(put, began_ms, wrote=True)
            self._done(put)

    def produce(self, put: UnappendedPut, batch: PreparedBatch, replica: ReplicaLoop) -> None:
        """Whoever has the partition calls this."""
        replica.produce(batch, acks=put.asked.acks, now_ms=self._now_ms(), acknowledge=put.answer.fill)
        self._accepted(batch)

    def _append_aside(self, put: UnappendedPut, partition: Partition) -> ReplicationError | float:
        """On another thread. Returns why the batch was refused, or how long its append took."""
        try:
            batch = self._prepare(put.stream, put.frame, put.payload, partition.compression)
            with partition as replica:
                began_ms = self._clock_ms()
                self.produce(put, batch, replica)
                return self._clock_ms() - began_ms
        except ReplicationError as error:
            return error

    def _appended_aside(self, put: UnappendedPut, result: ReplicationError | float) -> None:
        if isinstance(result, ReplicationError):
            self._refuse(put, result)
        else:
            self._slow.took(put.name, result, self._clock_ms(), wrote=True)
            self._done(put)

    def _took(self, put: UnappendedPut, began_ms: float, *, wrote: bool) -> None:
        now_ms = self._clock_ms()
        self._slow.took(put.name, now_ms - began_ms, now_ms, wrote=wrote)

    def _refuse(self, put: UnappendedPut, error: ReplicationError) -> None:
        put.answer.fill(without_frames(error))
        self._done(put)

    def _done(self, put: UnappendedPut) -> None:
        put.is_done = True
        self._give_back(put)
        if put.is_late:
            self._go_on(put.name)

    def _go_on(self, name: TopicPartition) -> None:
        waiting = self._waiting[name]
        while waiting:
            put = waiting.popleft()
            self._begin(put)
            if not put.is_done:
                put.is_late = True
                return
        del self._waiting[name]

    def _keep(self, put: UnappendedPut) -> None:
        if not put.kept_bytes:
            put.payload = bytes(put.payload)
            self._count_kept(put, len(put.payload))

    def _give_back(self, put: UnappendedPut) -> None:
        put.payload = b""
        self._count_kept(put, 0)

    def _count_kept(self, put: UnappendedPut, count: int) -> None:
        more = count - put.kept_bytes
        put.kept_bytes = count
        self._kept_bytes += more
        self._kept.bytes += more
        if more < 0:
            self._wake()  # more may be read

    def closed(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                self._give_back(waiting.popleft())

    # Answers

    @property
    def is_full(self) -> bool:
        """Whether to read no more from the connection."""
        keeps_too_much = self._kept_bytes > 0 and self._kept.bytes >= self._kept.bytes_max
        return keeps_too_much or len(self.owed) >= self._unanswered_max
