"""Writes batches to topics: idempotent, pipelined per partition, and on to the next leader when one is lost.

send → sender (one a partition) → window → lane → connection (one a leader) → transport.frames.producer_connection.
Answers come back as futures.
"""

from __future__ import annotations

import concurrent.futures
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, SupportsIndex, overload

import pyarrow as pa

from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.placing import Placing, Rounds
from spark_replication.client.producing.rows import Rows, one_batch
from spark_replication.client.producing.sender import Sender
from spark_replication.client.producing.senders import Senders, closing_with
from spark_replication.core.replica.producers import REMEMBERED
from spark_replication.engine.client.numbers import Identity, number_within
from spark_replication.engine.client.sending import Ack, Acks, SenderSettings
from spark_replication.errors import (
    ClientClosed,
    InvalidRequest,
    ReplicationError,
    RequestTimedOut,
    SchemaMismatch,
    UnknownTopicOrPartition,
    error_of,
)
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.records import PRODUCER_ID_BITS
from spark_replication.model import NUMBER_MAX, TopicPartition
from spark_replication.storage.format.batches import in_a_version, topic_schema
from spark_replication.transport.security.security import Security

DEADLINE_MS = 30_000
IN_FLIGHT_BATCHES_MAX = 256
IN_FLIGHT_BYTES_MAX = 64 << 20
LINGER_MS = 0
BATCH_BYTES = 256 << 10
BATCH_BYTES_MAX = 1 << 30  # joined columns must not outgrow the 32-bit offsets of their strings
UNKNOWN_VERSION_MS = 3_000  # how long a batch is retried whose schema version no broker knows


class Producer:
    """Writes batches to topics. Thread-safe. Of no use in a fork: a process that is to make a Producer of its own is
    started by spawn or forkserver.

    - `acks`: "all", 1 or 0.
    - `security`: settings by name (security.mode, …), or a Security.
    - `deadline_ms`: how long a batch is retried, wherever the time goes.
    - `reach_ms`: how long, at first, brokers are looked for: then it is ClusterNotFound.
    - `in_flight_batches_max`, `in_flight_bytes_max`: how much of a partition may be unanswered. Then `send` waits.
    - `batch_bytes`: small sends to one partition are stored as one batch up to this size. Each send counts its Arrow
      bytes and 1 KiB, and has its own answer. With 0, every send is a batch of its own.
    - `linger_ms`: how long a batch that is not full waits for more sends. With 0, it waits only while others are in
      flight.
    - `identity`: the numbers of a program that sends the same batches again after a crash. Then each send is a batch of
      its own, names its `partition` or `key`, and takes with it, if it fails, all later ones to its partition.

    Callbacks of futures run on the producer's threads: they must not block. Without close(), the end of the program
    waits for the batches all the same, and a producer that nobody holds any more ends itself once they are written.
    Both log how many were not acknowledged.
    """

    def __init__(
        self,
        bootstrap: str,
        acks: Acks = "all",
        *,
        security: Security | Mapping[str, Any] | None = None,
        deadline_ms: int = DEADLINE_MS,
        reach_ms: float | None = None,
        in_flight_batches_max: int = IN_FLIGHT_BATCHES_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        linger_ms: int = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        identity: Identity | None = None,
    ) -> None:
        if acks not in ("all", 0, 1):
            raise InvalidRequest(f'acks={acks!r}: it is "all", 1 or 0')
        if not 1 <= in_flight_batches_max <= REMEMBERED:
            raise InvalidRequest(
                f"in_flight_batches_max={in_flight_batches_max}: it is 1 to {REMEMBERED}, since brokers "
                "recognise so many batches when they come again"
            )
        if not 0 <= linger_ms < deadline_ms:
            raise InvalidRequest(f"linger_ms={linger_ms}: it is 0 or more, and below deadline_ms={deadline_ms}")
        if not 0 <= batch_bytes <= BATCH_BYTES_MAX:
            raise InvalidRequest(f"batch_bytes={batch_bytes}: it is 0 to {BATCH_BYTES_MAX}")
        self._routes = Routes(bootstrap, Security.of(security), reach_ms=reach_ms)
        self._settings = SenderSettings(
            acks=acks,
            deadline_ms=deadline_ms,
            in_flight_batches_max=in_flight_batches_max,
            in_flight_bytes_max=in_flight_bytes_max,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
        )
        self._process = OwnProcess("Producer")
        numbers = identity or Identity(producer=secrets.randbits(PRODUCER_ID_BITS))
        self._senders = Senders(self._routes, numbers, self._settings, self._process, is_fixed=identity is not None)
        self._closing = closing_with(self, self._senders)
        self._is_fixed = identity is not None
        self._rounds = Rounds(self._senders.of, batch_bytes, numbers.producer)

    @overload
    def send(
        self, topic: str, batch: Rows, partition: SupportsIndex | None = None, *, key: bytes | None = None
    ) -> Future[Ack]: ...
    @overload
    def send(self, topic: str, batch: Rows, *, key: str | Sequence[str]) -> Future[tuple[Ack, ...]]: ...
    def send(
        self,
        topic: str,
        batch: Rows,
        partition: SupportsIndex | None = None,
        *,
        key: bytes | str | Sequence[str] | None = None,
    ) -> Future[Any]:
        """Send rows: a pyarrow RecordBatch or Table, a pandas or polars DataFrame, whatever else has
        `__arrow_c_stream__` or `__arrow_c_array__`, a dict of columns or a list of dicts.

        - With `partition`, or a `key` of bytes, they go to one partition, as one batch, all of them or none.
        - With neither, likewise: the partitions of the topic take turns, each for about a full batch.
        - With a `key` that names a column, or several, each row goes to the partition of its key, as with `partitionBy`
          of the Spark sink. The future then has a tuple, in order of partition: an Ack for each partition that got
          rows, which are there in their order. Parts are stored or refused on their own: if one fails, so does the
          future, and `maybe_written` of its error says whether rows of others may be stored.

        An error of the rows is in the future. What is wrong with another argument is raised here, and so are
        Overloaded, if there is no room until the deadline, and ClientClosed.
        """
        self._process.require()
        self._senders.require_open()
        number = None if partition is None else number_within("partition", partition, NUMBER_MAX)
        columns = _require_arguments(topic, number, key)
        deadline = Deadline(self._settings.deadline_ms)
        if self._is_fixed and key is None and number is None:
            raise InvalidRequest("with an identity the same sends go to the same partitions: give partition= or key=")
        try:
            found = self._routes.await_topic(topic, deadline, number)
            stored = self._as_stored(found, number, batch, deadline)
            if columns:
                placed = self._by_columns(found, stored, columns)
                return together([self._send_part(topic, *part, deadline) for part in placed])
            sender = self._sender(found, number, key, deadline)
        except ClientClosed:
            raise
        except ReplicationError as error:
            return _failed(error)
        return sender.send(stored, deadline)

    def flush(self) -> None:
        """Wait until every batch that was sent before is acknowledged or has failed: its future says which."""
        self._process.require()
        unanswered = self._senders.unanswered()
        deadline = Deadline(self._settings.deadline_ms)
        left = concurrent.futures.wait(unanswered, timeout=deadline.remaining_s + 1.0).not_done
        if left:
            raise RequestTimedOut(
                f"{len(left)} sends have no answer within {deadline.timeout_ms:.0f} ms: ask their futures",
                maybe_written=True,
            )

    def close(self) -> None:
        """Wait for the batches in flight, up to the deadline. Nothing can be sent after that. In a fork, this does
        nothing."""
        self._senders.close()
        self._closing.detach()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _sender(self, topic: TopicMetadata, number: int | None, key: object, deadline: Deadline) -> Sender:
        if number is None:
            self._senders.leaders.watch(topic.name)
            if not isinstance(key, bytes):
                return self._rounds.taker(topic)
            number = self._routes.partition_of(topic.name, key, deadline)
        return self._senders.of(TopicPartition(topic.name, number))

    def _by_columns(
        self, topic: TopicMetadata, stored: pa.RecordBatch, columns: Sequence[str]
    ) -> list[tuple[int, pa.RecordBatch]]:
        names = stored.schema.names
        for name in columns:
            if name not in names:
                raise InvalidRequest(f"key={name!r} is no column of {topic.name}: it has {', '.join(names)}")
        self._senders.leaders.watch(topic.name)
        partitions = topic.numbers
        if not partitions:
            raise UnknownTopicOrPartition(f"topic {topic.name} has no partitions yet: retry")
        try:
            return list(Placing(topic.name, partitions, columns, 0).parts(stored, stored))
        except pa.ArrowException as error:
            raise InvalidRequest(f"rows of {topic.name} cannot be placed by {', '.join(columns)}: {error}") from error

    def _send_part(self, topic: str, number: int, part: pa.RecordBatch, deadline: Deadline) -> Future[Ack]:
        try:
            return self._senders.of(TopicPartition(topic, number)).send(part, deadline)
        except ReplicationError as error:  # other parts are on their way
            return _failed(error)

    def _as_stored(self, topic: TopicMetadata, number: int | None, rows: Rows, deadline: Deadline) -> pa.RecordBatch:
        """The rows in the version of the topic's schema that they have. SchemaMismatch is raised only after a second
        look at the topic, which may have been made again. A batch of a newer version is retried for UNKNOWN_VERSION_MS,
        so that brokers have time to learn of it."""
        try:
            return _in_a_version(topic, rows)
        except SchemaMismatch:
            within = deadline.within_ms(UNKNOWN_VERSION_MS)

            def look_again() -> pa.RecordBatch:
                self._routes.stale_topic(topic.name)
                return _in_a_version(self._routes.await_topic(topic.name, deadline, number), rows)

            return persistently(look_again, within)


def _in_a_version(topic: TopicMetadata, rows: Rows) -> pa.RecordBatch:
    if not topic.config.schema:  # its brokers decide
        return one_batch(rows, topic.name, None)
    schema = topic_schema(topic.config)
    return in_a_version(one_batch(rows, topic.name, schema.newest), schema)


def _require_arguments(topic: object, partition: int | None, key: object) -> tuple[str, ...]:
    """Return the columns that `key` names."""
    if not isinstance(topic, str):
        raise InvalidRequest(f"topic={topic!r} is no text: name a topic")
    if key is not None and partition is not None:
        raise InvalidRequest(f"partition={partition} and a key: give one of them")
    if key is None or isinstance(key, bytes):
        return ()
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not columns or not all(isinstance(name, str) for name in columns):
        raise InvalidRequest(f"key={key!r} is {type(key).__name__}: it is bytes, or the name of a column, or several")
    return columns


def _failed(error: ReplicationError) -> Future[Any]:
    failed: Future[Any] = Future()
    failed.set_exception(error)
    return failed


def together(futures: Sequence[Future[Ack]]) -> Future[tuple[Ack, ...]]:
    """A future that has the results of all these once the last has one, or the error of the first that failed."""
    whole: Future[tuple[Ack, ...]] = Future()
    whole.set_running_or_notify_cancel()
    lock = threading.Lock()
    left = len(futures)

    def done(_future: Future[Ack]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        errors = [error for each in futures if isinstance(error := each.exception(), ReplicationError)]
        if errors:
            whole.set_exception(_of_parts(errors, [each.result() for each in futures if each.exception() is None]))
        else:
            whole.set_result(tuple(each.result() for each in futures))

    for future in futures:
        future.add_done_callback(done)
    return whole


def _of_parts(errors: Sequence[ReplicationError], acks: Sequence[Ack]) -> ReplicationError:
    first = errors[0]
    if not acks:
        return error_of(first.code, first.message, maybe_written=any(error.maybe_written for error in errors))
    stored = ", ".join(str(ack.partition) for ack in acks)
    return error_of(
        first.code, f"{first.message} (the rows for the partitions {stored} are stored)", maybe_written=True
    )
