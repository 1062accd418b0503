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

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from tempfile import TemporaryFile
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_replication.client.producing.placing import Placing
from spark_replication.client.producing.producer import Producer
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.repeating import Append, FirstTry, Known, Partitions, Runs, placements
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import BatchTooLarge, InvalidProducerEpoch, InvalidRequest, ReplicationError
from spark_replication.messages.records import PARTITION
from spark_replication.spark.datasource.appends import (
    APPEND_BYTES,
    WriteName,
    appends,
    stream_identity,
    whole,
)
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema
from spark_replication.spark.datasource.topic import Topic

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's, in each task of a stream
RUN_ID = "spark.jobGroup.id"  # Spark names a group of jobs after each run of a query
ADAPTIVE, ADAPTIVE_STREAMS = "spark.sql.adaptive.enabled", "spark.sql.adaptive.streaming.stateless.enabled"

Cut = Callable[[Iterator[tuple[int, pa.RecordBatch]]], Iterator[Append]]
Rows = Callable[[], Iterator[pa.RecordBatch]]  # the same each time
AnyError = TypeVar("AnyError", bound=ReplicationError)

_runs = Runs()


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
        number, micro_batch = task.partitionId(), int(batch)
        write = TaskWrite(
            self._options, self._sink, number, lambda _producer: stream_identity(query, micro_batch, number), self._why
        )
        if _runs.may_repeat(task.getLocalProperty(RUN_ID), micro_batch):
            return write.perhaps_again(iterator, whole)
        return write.first(iterator, whole)

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
        task, number = _task(), _task().partitionId()
        write = TaskWrite(
            self._options, self._sink, number, lambda producer: self._name.identity(number, producer), self._why
        )
        cut = partial(appends, bytes_max=self._options.append_bytes or APPEND_BYTES)
        if self._options.write_id is None:
            return write.first(iterator, cut)
        _require_same_tasks(task, ADAPTIVE, "a write with a writeId", "for this session")
        return write.perhaps_again(iterator, cut)

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


class TaskWrite:
    """What a task writes, for the first time or again."""

    def __init__(
        self,
        options: LogOptions,
        sink: SinkSchema,
        number: int,
        identity: Callable[[int], Identity],
        why: Callable[[ReplicationError], str],
    ) -> None:
        """identity: of each of the task's producers. why: what the error of an append means."""
        self._options = options
        self._sink = sink
        self._number = number
        self._identity = identity
        self._why = why

    def first(self, batches: Iterator[pa.RecordBatch], cut: Cut) -> Written:
        """Write rows of which no earlier write has put any elsewhere."""
        with self._appending() as appending:
            return self._sent(appending, cut(self._placed(batches, self._sink.partitions)))

    def perhaps_again(self, batches: Iterator[pa.RecordBatch], cut: Cut) -> Written:
        """Write rows of which an earlier write may have stored some, on the partitions that there were then."""
        try:
            first = self._first_try()
        except InvalidProducerEpoch as error:
            raise _explained(error, self._why) from error
        if not first.stored:
            return self.first(batches, cut)
        with _kept(batches) as rows:
            return self._again(first, rows, cut)

    def _again(self, first: FirstTry, rows: Rows, cut: Cut) -> Written:
        def appends_on(partitions: Partitions) -> Iterable[Append]:
            return cut(self._placed(rows(), partitions))

        names: list[str] = next((batch.schema.names for batch in rows()), [])
        is_named = PARTITION in names and not self._options.partition_by
        those = [first.partitions] if is_named else placements(self._sink.partitions, first.partitions)
        parts = first.again(those, appends_on, _explained(first.unplaced(), self._why))
        part = next(parts)
        while True:
            with self._appending() as appending:
                try:
                    while not part.is_last:
                        self._sent(appending, part.appends)
                        part = next(parts)
                    return self._sent(appending, part.appends)
                except ReplicationError as error:
                    part = parts.throw(error)

    def _first_try(self) -> FirstTry:
        asking = FirstTry.asking(self._identity)
        producer = next(asking)
        while True:
            try:
                producer = asking.send(_known(self._options, producer))
            except StopIteration as ended:
                found: FirstTry = ended.value
                return found

    def _placed(
        self, batches: Iterator[pa.RecordBatch], partitions: Partitions
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        placing = Placing(self._sink.topic, partitions, self._options.partition_by, self._number)
        for batch in batches:
            yield from placing.parts(batch, self._sink.as_stored(batch))

    @contextmanager
    def _appending(self) -> Iterator[Appending]:
        with ExitStack() as producers:
            yield Appending(
                self._sink.topic,
                lambda producer: producers.enter_context(_producer(self._options, self._identity(producer))),
            )

    def _sent(self, appending: Appending, those: Iterable[Append]) -> Written:
        """Send these, and wait for the acknowledgements of all that was sent."""
        try:
            for append in those:
                appending.send(append)
        except ReplicationError:
            _written(appending.sent, self._why)  # after one that failed all are refused: the first error says why
            raise
        return _written(appending.sent, self._why)


class Appending:
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


def _written(sent: list[Future[Ack]], why: Callable[[ReplicationError], str]) -> Written:
    rows = 0
    for future in sent:
        try:
            ack = future.result()
        except ReplicationError as error:
            raise _explained(error, why) from error
        rows += ack.last_offset - ack.base_offset + 1
    return Written(rows)


def _explained(error: AnyError, why: Callable[[ReplicationError], str]) -> AnyError:
    message = ". ".join(filter(None, (error.message, why(error))))
    return type(error)(message, maybe_written=error.maybe_written)


@contextmanager
def _kept(batches: Iterator[pa.RecordBatch]) -> Iterator[Rows]:
    """The batches, to be read several times: in a file, since a batch's task may have more than its memory holds."""
    with TemporaryFile() as file:
        first = next(batches, None)
        if first is not None:
            with pa.ipc.new_stream(file, first.schema) as stream:
                for batch in chain([first], batches):
                    stream.write_batch(batch)

        def rows() -> Iterator[pa.RecordBatch]:
            file.seek(0)
            return iter(pa.ipc.open_stream(file) if first is not None else ())

        yield rows


def _known(options: LogOptions, producer: int) -> Known:
    return Topic(options).known(producer)


def _producer(options: LogOptions, identity: Identity) -> Producer:
    return Producer(
        options.bootstrap, security=options.security or None, deadline_ms=options.deadline_ms, identity=identity
    )


def _task() -> TaskContext:
    found = TaskContext.get()
    assert found is not None, "Spark calls this in a task"
    return found
