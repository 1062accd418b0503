"""DoPut: batches in, answers out, without waiting for one another.

A stream of one partition (path [topic, "0"]) gets one answer for each batch, in the order of the batches. A stream of a
topic (path [topic]) takes batches for any partition that this broker leads, each with its partition in its metadata.
Its answers carry the numbers of their batches and go as they come, all that are known at a wake-up in one message: no
partition waits for another's followers.

The handler's thread reads batches and appends them: when they were handed to the broker's loop, one partition's stream
took 15 to 20 % more CPU. Another thread writes the answers. After a refused batch the stream goes on. On a busy broker
answers wait a little for each other while more are owed: one message for each would cost broker and client as much as
the batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
from msgspec.structs import replace
from pyarrow import flight

from spark_replication.config import Settings
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.engine.ends.puts import OwedPuts, PendingPut, numbers_of
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import InvalidRequest, ReplicationError, mistake, without_frames
from spark_replication.messages import records
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.records import BatchMetadata, PutAck, Refusal
from spark_replication.process.logs import log_mistake
from spark_replication.storage.format.batches import TopicSchema, prepare
from spark_replication.transport.flight.limits import Room
from spark_replication.transport.meter import Meter, Traffic, count_puts
from spark_replication.transport.sockets.socket_loop import loop_ms

_DEFAULT = BatchMetadata()

log = logging.getLogger(__name__)


class MetadataWriter(Protocol):
    def write(self, data: bytes) -> None: ...


class AnswerQueue:
    """The answers of one stream, which another thread writes; at most `unanswered_max` are owed at a time."""

    def __init__(self, *, unanswered_max: int, timeout_ms: int, gather: Callable[[], None], meter: Meter) -> None:
        """gather: called after a message while more answers are owed; those that are known when it returns go together.
        meter: counts the answers that were given."""
        self._unanswered_max = unanswered_max
        self._timeout_ms = timeout_ms
        self._gather = gather
        self._meter = meter
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._changed = threading.Event()
        self._owed = OwedPuts(timeout_ms=timeout_ms, wake=self._changed.set)
        self._begun = 0
        self._complete = False
        self._broken = False

    def next(self) -> PendingPut | None:
        """The answer for the next batch, once there is room; None if the client takes no answers any more."""
        with self._lock:
            while len(self._owed) >= self._unanswered_max and not self._broken:
                self._room.wait()
            if self._broken:
                return None
            self._begun += 1
            return self._owed.begin(self._begun - 1, loop_ms())

    def complete(self) -> None:
        """No more batches come."""
        self._complete = True
        self._changed.set()

    def write(self, writer: MetadataWriter) -> None:
        """Write answers until all are written, or the client is gone."""
        try:
            while self._owed or not self._complete:
                # Cleared before the look, so that an answer that is filled after it wakes this thread again.
                self._changed.wait(self._wait_s())
                self._changed.clear()
                known = self._take()
                if known:
                    count_puts(self._meter, known, loop_ms())
                    self._tell(known, writer)
                if self._owed:
                    self._gather()
        except (flight.FlightError, pa.ArrowException, OSError):
            self._break()
        except Exception as error:  # noqa: BLE001 (it is logged)
            log_mistake(log, error, "the answers of a stream end")
            self._break()

    def _break(self) -> None:
        with self._lock:
            self._broken = True
            self._room.notify()

    def _wait_s(self) -> float:
        # The first batch after a silence wakes nobody: its deadline is looked at one timeout too late at most.
        with self._lock:
            due_ms = self._owed.due_ms
        return min(self._timeout_ms, max(0.0, due_ms - loop_ms())) / 1000

    def _take(self) -> list[PendingPut]:
        """Take the answers that are to be written now, which makes room."""
        with self._lock:
            self._owed.expire(loop_ms())
            known = self._known()
            self._room.notify()
        return known

    def _known(self) -> list[PendingPut]:
        raise NotImplementedError

    def _tell(self, known: list[PendingPut], writer: MetadataWriter) -> None:
        raise NotImplementedError


class QueueInOrder(AnswerQueue):
    """The answers of one partition's stream: one message for each, in the order of the batches."""

    def _known(self) -> list[PendingPut]:
        return self._owed.take_in_order()

    def _tell(self, known: list[PendingPut], writer: MetadataWriter) -> None:
        for answer in known:
            writer.write(to_json(_told(answer)))


class QueueTogether(AnswerQueue):
    """The answers of a topic's stream: as they come, many in one message."""

    def _known(self) -> list[PendingPut]:
        return self._owed.take()

    def _tell(self, known: list[PendingPut], writer: MetadataWriter) -> None:
        told = tuple(replace(_told(answer), number=answer.number) for answer in known)
        writer.write(to_json(records.AnswersTogether(answers=told)))


class FlightPutStream:
    def __init__(
        self,
        find: Callable[[int | None], Partition],
        schema_of: Callable[[], TopicSchema],
        answers: type[AnswerQueue],
        settings: Settings,
        now_ms: Callable[[], int],
        gather: Callable[[], None],
        *,
        room: Room,
        meter: Meter,
        traffic: Traffic,
        pace: Callable[[int], None],
    ) -> None:
        """find: finds the partition of a batch by the number that its metadata names, if any. This and schema_of are
        called for each batch, since a partition may come and go, and a topic be widened, while a stream is open.
        gather: see AnswerQueue. room: shared by all streams, for batches while they are checked, serialised and
        appended. traffic: counts what is accepted. pace: told how many bytes came; it returns once more may come."""
        self._find = find
        self._schema_of = schema_of
        self._batch_bytes_max = settings.batch_bytes_max
        self._now_ms = now_ms
        self._room = room
        self._traffic = traffic
        self._pace = pace
        self._answers = answers(
            unanswered_max=settings.stream_unanswered_max,
            timeout_ms=settings.request_timeout_ms,
            gather=gather,
            meter=meter,
        )

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
            except flight.FlightError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise InvalidRequest(f"the stream cannot be read on: {error}") from error
            answer = self._answers.next()
            if answer is None:
                return
            self._take(chunk.data, chunk.app_metadata, answer)
            self._pace(0 if chunk.data is None else chunk.data.nbytes)

    def _take(self, batch: pa.RecordBatch | None, metadata: pa.Buffer | None, answer: PendingPut) -> None:
        try:
            if batch is None:
                raise InvalidRequest("metadata came without a batch")
            asked = _DEFAULT if metadata is None else from_json(metadata.to_pybytes(), BatchMetadata)
            self._append(batch, asked, answer)
        except ReplicationError as error:
            answer.fill(without_frames(error))
        except Exception as error:
            answer.fill(mistake(error, "this batch"))  # the stream ends by it, once its answers are written
            raise

    def _append(self, batch: pa.RecordBatch, asked: BatchMetadata, answer: PendingPut) -> None:
        partition = self._find(asked.partition)
        # A batch over the cap is refused before anything is made of it, so it takes no more room than the cap.
        size = min(batch.get_total_buffer_size(), self._batch_bytes_max)
        self._room.take(size)
        try:
            prepared = prepare(
                batch,
                self._schema_of(),
                batch_bytes_max=self._batch_bytes_max,
                compression=partition.compression,
                **numbers_of(asked),
            )
            with partition as replica:
                replica.produce(prepared, acks=asked.acks, now_ms=self._now_ms(), acknowledge=answer.fill)
            self._traffic.moved(batches=1, records=prepared.rows, count_bytes=len(prepared.message))
        finally:
            self._room.give_back(size)


def _told(answer: PendingPut) -> PutAck | Refusal:
    outcome = answer.outcome
    assert outcome is not None
    if isinstance(outcome, OffsetSpan):
        return PutAck(base_offset=outcome.base_offset, last_offset=outcome.last_offset)
    return Refusal(
        error=outcome.code,
        message=outcome.message,
        retriable=outcome.retriable,
        maybe_written=outcome.maybe_written,
    )
