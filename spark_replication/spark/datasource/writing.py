"""Writes in a task: its rows get the numbers that a second attempt of the task would give them, too, so that they are
stored once (spark.datasource.appends).

A stream's task makes one append to each partition in a micro-batch: all of its rows or none, and a second attempt may
have them in another order.

A batch's task makes as many appends as its rows need. If one append is enough for a partition, a second attempt may
have its rows in another order. If it is not, they must come in the same order, or the task fails: its appends would
have other rows.

Numbers belong to a task, so a repetition must have the same tasks. Adaptive execution joins and splits tasks by the
sizes of data and the number of processors that it finds: it is refused where it could do so.
"""

from __future__ import annotations

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
from spark_replication.spark.datasource.appends import APPEND_BYTES, Append, WriteName, appends, stream_identity
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema

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
        identity = stream_identity(query, int(batch), task.partitionId())
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
    """Writes a batch. Spark pickles it."""

    def __init__(self, options: LogOptions, sink: SinkSchema, name: WriteName) -> None:
        self._options = options
        self._sink = sink
        self._name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        if self._options.write_id is not None:
            _require_same_tasks(task, ADAPTIVE, "a write with a writeId", "for this session")
        number = task.partitionId()
        placed = _placed(iterator, self._sink, self._options, number)
        with ExitStack() as producers:
            sending = Sending(
                self._sink.topic,
                lambda producer: producers.enter_context(
                    _producer(self._options, self._name.identity(number, producer))
                ),
            )
            try:
                for append in appends(placed, self._options.append_bytes or APPEND_BYTES):
                    sending.send(append)
            except ReplicationError:
                _written(sending.sent, self._why)  # after one that failed all are refused: the first error says why
                raise
            return _written(sending.sent, self._why)

    def _why(self, error: ReplicationError) -> str:
        if isinstance(error, BatchTooLarge):
            return (
                "if these are several rows, the brokers' batch.bytes.max is below what a task sends at once: set the "
                "option appendBytes to less than that"
            )
        if isinstance(error, InvalidProducerEpoch) and self._options.write_id is not None:
            return (
                "other rows were written under this writeId, or a task had its rows in another order, and too many for "
                "one append. Give each write an id of its own, or each micro-batch a writeBatch, and rows that come in "
                "the same order each time (sortWithinPartitions)"
            )
        if isinstance(error, InvalidProducerEpoch):
            return (
                "an earlier attempt of this task had its rows in another order, and there are too many for one append. "
                "Rows of tasks that have succeeded are in the log: write again what is missing, of rows that come in "
                "the same order each time (sortWithinPartitions)"
            )
        return ""


class Sending:
    """Sends the appends of a task. A partition's rows keep their order, though several producers send them."""

    def __init__(self, topic: str, opened: Callable[[int], Producer]) -> None:
        self._topic = topic
        self._opened = opened
        self._producers: dict[int, Producer] = {}
        #: Of each partition, which producer has sent the last append, and its answer.
        self._last: dict[int, tuple[int, Future[Ack]]] = {}
        self.sent: list[Future[Ack]] = []

    def send(self, append: Append) -> None:
        """Raises the error of an append before it, if that has failed by now."""
        last = self._last.get(append.target)
        if last is not None and last[0] != append.producer:
            last[1].result()  # an append is answered after those before it
        if append.producer not in self._producers:
            self._producers[append.producer] = self._opened(append.producer)
        producer = self._producers[append.producer]
        future = producer.send(self._topic, append.batch, partition=append.target)
        self._last[append.target] = append.producer, future
        self.sent.append(future)


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
