"""Writes in a task: its rows get the numbers that a second attempt of the task would give them, too, so that they are
stored once.

A stream's task makes one append to each partition in a micro-batch: all of its rows or none, and a second attempt may
have them in another order. Each query and task has its own producer, whose epoch is the micro-batch.

A batch's task makes as many appends as its rows need. Each write and task has its own producer. If one append is
enough for a partition, a second attempt may have its rows in another order. If it is not, they must come in the same
order, or the task fails.

Numbers belong to a task, so a repetition must have the same tasks. Adaptive execution joins and splits tasks by the
sizes of data and the number of processors that it finds: it is refused where it could do so.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_replication.client.placing import Placing
from spark_replication.client.producer import Producer
from spark_replication.client.sender import Ack, Identity
from spark_replication.errors import BatchTooLarge, InvalidProducerEpoch, InvalidRequest, ReplicationError
from spark_replication.messages.records import KEPT_PRODUCER, PRODUCER_ID_BITS
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema

APPEND_BYTES = 1 << 20  # a batch's task sends what it has for a partition once that would exceed this

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's, in each task of a stream
ADAPTIVE, ADAPTIVE_STREAMS = "spark.sql.adaptive.enabled", "spark.sql.adaptive.streaming.stateless.enabled"

Parts = dict[int, list[pa.RecordBatch]]


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written."""

    rows: int


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Spark pickles it for its tasks."""

    def __init__(self, options: LogOptions, sink: SinkSchema) -> None:
        self._options = options
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise InvalidRequest(
                "Spark does not say which query and micro-batch this is: write a stream by writeStream"
            )
        _require_same_tasks(task, ADAPTIVE_STREAMS, "a micro-batch", "sr.register does so")
        identity = Identity(
            producer=producer_id(query, task.partitionId()) | KEPT_PRODUCER, epoch=int(batch), any_order=True
        )
        parts: Parts = defaultdict(list)
        for target, part in _placed(iterator, self._sink, self._options, task.partitionId()):
            parts[target].append(part)
        if not parts:
            return Written(0)
        with _producer(self._options, identity) as producer:
            sent = [
                producer.send(self._sink.topic, pa.concat_batches(found), partition=target)
                for target, found in parts.items()
            ]
            return _written(sent, self._why)

    def _why(self, error: ReplicationError) -> str:
        if isinstance(error, BatchTooLarge):
            return (
                "a micro-batch goes to each partition as one append a task. Let a trigger take less "
                "(maxRecordsPerTrigger), have more tasks or partitions, or raise batch.bytes.max"
            )
        if isinstance(error, InvalidProducerEpoch):
            return (
                "an earlier attempt of this micro-batch had other rows, or another query writes with a copy of this "
                "one's checkpoint. Give a micro-batch the same rows and tasks each time, and a copy a checkpoint of "
                "its own"
            )
        return ""


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch. All attempts of all tasks of a write have one `write_id`. Spark pickles it."""

    def __init__(self, options: LogOptions, sink: SinkSchema, write_id: str) -> None:
        self._options = options
        self._sink = sink
        self._write_id = write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if self._options.write_id is not None:
            _require_same_tasks(_task(), ADAPTIVE, "a write with a writeId", "for this session")
        sent: list[Future[Ack]] = []
        with ExitStack() as producers:
            try:
                self._send_all(iterator, producers, sent)
            except InvalidRequest:
                _written(sent, self._why)  # after one that failed all are refused: the first error says why
                raise
            return _written(sent, self._why)

    def _send_all(self, iterator: Iterator[pa.RecordBatch], producers: ExitStack, sent: list[Future[Ack]]) -> None:
        task = _task().partitionId()
        number = producer_id(self._write_id, task)
        waiting: Parts = defaultdict(list)
        sizes: dict[int, int] = defaultdict(int)
        several: set[int] = set()  # partitions for which one append is not enough
        open_producer = _once(lambda: producers.enter_context(_producer(self._options, Identity(producer=number))))
        for target, part in _in_slices(_placed(iterator, self._sink, self._options, task)):
            if waiting[target] and sizes[target] + part.nbytes > APPEND_BYTES:
                several.add(target)
                sent.append(self._send(open_producer(), target, waiting.pop(target)))
                sizes[target] = 0
            waiting[target].append(part)
            sizes[target] += part.nbytes
        sent += [self._send(open_producer(), each, waiting.pop(each)) for each in sorted(several)]
        if waiting:
            loose = producers.enter_context(_producer(self._options, Identity(producer=number, any_order=True)))
            sent += [self._send(loose, each, parts) for each, parts in waiting.items()]

    def _send(self, producer: Producer, target: int, parts: list[pa.RecordBatch]) -> Future[Ack]:
        return producer.send(self._sink.topic, pa.concat_batches(parts), partition=target)

    def _why(self, error: ReplicationError) -> str:
        if isinstance(error, InvalidProducerEpoch):
            return (
                "an earlier attempt of this task had its rows in another order, and there are too many for one append. "
                "Rows of tasks that have succeeded are in the log: write again what is missing, of rows that come in "
                "the same order each time (sortWithinPartitions)"
            )
        return ""


def producer_id(*named: object) -> int:
    digest = hashlib.blake2b("\x1f".join(map(str, named)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - PRODUCER_ID_BITS)


def _require_same_tasks(task: TaskContext, setting: str, repeated: str, how: str) -> None:
    """Raise InvalidRequest if adaptive execution could change the tasks. A task sees only the settings that somebody
    has set in its session: these are on unless somebody has set them to false."""
    if all(task.getLocalProperty(name) != "false" for name in (ADAPTIVE, setting)):
        raise InvalidRequest(
            f"{repeated} may be repeated, and Spark's adaptive execution would give it other tasks then, so that rows "
            f"were written twice: set {setting}=false ({how})"
        )


def _placed(
    batches: Iterator[pa.RecordBatch], sink: SinkSchema, options: LogOptions, task: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    placing = Placing(sink.topic, sink.partitions, options.partition_by, task)
    for batch in batches:
        yield from placing.parts(batch, sink.as_stored(batch))


def _in_slices(placed: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The parts, cut so that none is larger than one append, except for a single row that is."""
    for target, part in placed:
        rows = max(1, part.num_rows * APPEND_BYTES // max(part.nbytes, APPEND_BYTES))
        for first in range(0, part.num_rows, rows):
            yield target, part.slice(first, rows)


def _written(sent: list[Future[Ack]], why: Callable[[ReplicationError], str]) -> Written:
    rows = 0
    for future in sent:
        try:
            ack = future.result()
        except ReplicationError as error:
            message = ". ".join(filter(None, (error.message, why(error))))
            raise type(error)(message, maybe_written=error.maybe_written) from error
        rows += ack.last_offset - ack.base_offset + 1
    return Written(rows)


def _producer(options: LogOptions, identity: Identity) -> Producer:
    return Producer(
        options.bootstrap, security=options.security or None, deadline_ms=options.deadline_ms, identity=identity
    )


def _task() -> TaskContext:
    found = TaskContext.get()
    assert found is not None, "Spark calls this in a task"
    return found


def _once(make: Callable[[], Producer]) -> Callable[[], Producer]:
    made: list[Producer] = []

    def once() -> Producer:
        if not made:
            made.append(make())
        return made[0]

    return once
