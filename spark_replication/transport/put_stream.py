"""DoPut of one partition: batches in, answers out, in their order, without waiting for one another.

The handler's thread reads batches and appends them; another writes the answers as they complete, all that are there at
each wake-up. A batch that is refused is answered so, and the stream goes on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec
import pyarrow as pa
from pyarrow import flight

from spark_replication.config import Compression, Settings
from spark_replication.core.producers import Place
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import InvalidRequest, ReplicationError, RequestTimedOut
from spark_replication.messages import Ack, BatchMetadata, Refusal, from_json, to_json
from spark_replication.ports import PreparedBatch
from spark_replication.storage.batches import TopicSchema, prepare

_DEFAULT = BatchMetadata()
_NO_PRODUCER = -1


class MetadataWriter(Protocol):
    def write(self, data: bytes) -> None: ...


class Answer:
    """The place of one answer in the order. Filled once by whoever knows it; a late second filling says nothing."""

    __slots__ = ("_answers", "deadline", "outcome")

    def __init__(self, answers: Answers, deadline: float) -> None:
        self._answers = answers
        self.deadline = deadline
        self.outcome: Place | ReplicationError | None = None

    def fill(self, outcome: Place | ReplicationError) -> None:
        """Perhaps under a partition's guard: it only leaves a note."""
        if self.outcome is None:
            self.outcome = outcome
            self._answers.wake()


class Answers:
    """Those of a stream, in the order of its batches; at most `unanswered_max` at a time."""

    def __init__(self, *, unanswered_max: int, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._pending: deque[Answer] = deque()
        self._room = threading.Semaphore(unanswered_max)
        self._changed = threading.Event()
        self._complete = False
        self._broken = False

    def next(self) -> Answer | None:
        """For the next batch, once there is room; None: nobody takes answers any more."""
        self._room.acquire()
        if self._broken:
            return None
        answer = Answer(self, time.monotonic() + self._timeout_ms / 1000)
        self._pending.append(answer)
        return answer

    def wake(self) -> None:
        if not self._changed.is_set():
            self._changed.set()

    def complete(self) -> None:
        """No more batches come."""
        self._complete = True
        self._changed.set()

    def write(self, writer: MetadataWriter) -> None:
        """Until all are written, or the client is gone."""
        try:
            while self._pending or not self._complete:
                # Cleared before the look: what is filled after it wakes this thread again.
                self._changed.wait(self._wait_s())
                self._changed.clear()
                self._write_known(writer)
        except (flight.FlightError, pa.ArrowException, OSError):
            self._broken = True
            self._room.release()

    def _wait_s(self) -> float:
        # The first batch after a silence wakes nobody: its own deadline is looked at one timeout later at most.
        return max(0.0, self._pending[0].deadline - time.monotonic()) if self._pending else self._timeout_ms / 1000

    def _write_known(self, writer: MetadataWriter) -> None:
        while self._pending:
            answer = self._pending[0]
            if answer.outcome is None:
                if time.monotonic() < answer.deadline:
                    return
                answer.fill(
                    RequestTimedOut(
                        f"followers did not confirm the batch within request.timeout.ms={self._timeout_ms}: "
                        "send it again with its sequence, or look whether it is there",
                        maybe_written=True,
                    )
                )
            assert answer.outcome is not None
            writer.write(to_json(_told(answer.outcome)))
            self._pending.popleft()
            self._room.release()


class PutStream:
    """replica_of, schema_of: looked up for each batch, since a partition may come and go, and a topic be widened, while
    a stream is open."""

    def __init__(
        self,
        replica_of: Callable[[], ReplicaLoop],
        schema_of: Callable[[], TopicSchema],
        settings: Settings,
        now_ms: Callable[[], int],
    ) -> None:
        self._replica_of = replica_of
        self._schema_of = schema_of
        self._batch_bytes_max = settings.batch_bytes_max
        self._now_ms = now_ms
        self._answers = Answers(unanswered_max=settings.stream_unanswered_max, timeout_ms=settings.request_timeout_ms)

    def run(self, reader: flight.MetadataRecordBatchReader, writer: MetadataWriter) -> None:
        writing = threading.Thread(target=self._answers.write, args=(writer,), name="flight-answers", daemon=True)
        writing.start()
        try:
            self._read(reader)
        finally:
            self._answers.complete()
            writing.join()

    def _read(self, reader: flight.MetadataRecordBatchReader) -> None:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            answer = self._answers.next()
            if answer is None:
                return
            try:
                self._append(chunk.data, chunk.app_metadata, answer)
            except ReplicationError as error:
                answer.fill(error)

    def _append(self, batch: pa.RecordBatch | None, metadata: pa.Buffer | None, answer: Answer) -> None:
        if batch is None:
            raise InvalidRequest("metadata came without a batch")
        asked = _DEFAULT if metadata is None else from_json(metadata.to_pybytes(), BatchMetadata)
        replica = self._replica_of()
        prepared = self._prepared(batch, asked, replica.compression)
        with replica.guard:
            replica.produce(prepared, acks=asked.acks, now_ms=self._now_ms(), acknowledge=answer.fill)

    def _prepared(self, batch: pa.RecordBatch, asked: BatchMetadata, compression: Compression) -> PreparedBatch:
        return prepare(
            batch,
            self._schema_of(),
            batch_bytes_max=self._batch_bytes_max,
            compression=compression,
            producer=_NO_PRODUCER if asked.producer is None else asked.producer,
            producer_epoch=_NO_PRODUCER if asked.producer is None else asked.epoch,
            sequence=_NO_PRODUCER if asked.sequence is None else asked.sequence,
        )


def _told(outcome: Place | ReplicationError) -> msgspec.Struct:
    if isinstance(outcome, Place):
        return Ack(base_offset=outcome.base_offset, last_offset=outcome.last_offset)
    return Refusal(
        error=outcome.code,
        message=outcome.message,
        retriable=outcome.retriable,
        maybe_written=outcome.maybe_written,
    )
