"""Writes batches to topics: idempotent, pipelined per partition, and on to the next leader when one is lost.

send → sender (one a partition) → window → lane → connection (one a leader) → transport.producer_connection. Answers
come back as futures.
"""

from __future__ import annotations

import concurrent.futures
import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, SupportsIndex

import pyarrow as pa

from spark_replication.client.deadline import Deadline, persistently
from spark_replication.client.own_process import OwnProcess
from spark_replication.client.routes import Routes
from spark_replication.client.sender import Ack, Acks, Identity, SenderSettings, number_within
from spark_replication.client.senders import Senders, closing_with
from spark_replication.core.replica.producers import REMEMBERED
from spark_replication.errors import (
    ClientClosed,
    InvalidRequest,
    ReplicationError,
    RequestTimedOut,
    SchemaMismatch,
)
from spark_replication.messages.records import PRODUCER_ID_BITS
from spark_replication.model import NUMBER_MAX, TopicPartition
from spark_replication.storage.batches import in_a_version, topic_schema
from spark_replication.transport.security import Security

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
    - `in_flight_batches_max`, `in_flight_bytes_max`: how much of a partition may be unanswered. Then `send` waits.
    - `batch_bytes`: small sends to one partition are stored as one batch up to this size. Each send counts its Arrow
      bytes and 1 KiB, and has its own answer. With 0, every send is a batch of its own.
    - `linger_ms`: how long a batch that is not full waits for more sends. With 0, it waits only while others are in
      flight.
    - `identity`: the numbers of a program that sends the same batches again after a crash. Then each send is a batch of
      its own, and a send that fails takes with it all later ones to its partition.

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
        self._routes = Routes(bootstrap, Security.of(security))
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

    def send(
        self,
        topic: str,
        batch: pa.RecordBatch | pa.Table,
        partition: SupportsIndex | None = None,
        *,
        key: bytes | None = None,
    ) -> Future[Ack]:
        """Send a batch to this partition, or to the partition of `key`, or else to partition 0. A Table is sent as one
        batch, all of it or none. An error of the batch is in its future. What is wrong with another argument is raised
        here, and so are Overloaded, if there is no room until the deadline, and ClientClosed."""
        self._process.require()
        self._senders.require_open()
        number = None if partition is None else number_within("partition", partition, NUMBER_MAX)
        _require_arguments(topic, number, key)
        deadline = Deadline(self._settings.deadline_ms)
        try:
            target = TopicPartition(topic, self._place(topic, number, key, deadline))
            stored = self._as_stored(target, _one_batch(batch), deadline)
        except ClientClosed:
            raise
        except ReplicationError as error:
            refused: Future[Ack] = Future()
            refused.set_exception(error)
            return refused
        return self._senders.of(target).send(stored, deadline)

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

    def _place(self, topic: str, partition: int | None, key: bytes | None, deadline: Deadline) -> int:
        if key is None:
            return partition or 0
        self._senders.leaders.watch(topic)
        return self._routes.partition_of(topic, key, deadline)

    def _as_stored(self, partition: TopicPartition, batch: pa.RecordBatch, deadline: Deadline) -> pa.RecordBatch:
        """The batch in the version of the topic's schema that it has. SchemaMismatch is raised only after a second look
        at the topic, which may have been made again. A batch of a newer version is retried for UNKNOWN_VERSION_MS, so
        that brokers have time to learn of it."""
        try:
            return self._in_a_version(partition, batch, deadline)
        except SchemaMismatch:
            within = deadline.within_ms(UNKNOWN_VERSION_MS)

            def look_again() -> pa.RecordBatch:
                self._routes.stale_topic(partition.topic)
                return self._in_a_version(partition, batch, deadline)

            return persistently(look_again, within)

    def _in_a_version(self, partition: TopicPartition, batch: pa.RecordBatch, deadline: Deadline) -> pa.RecordBatch:
        config = self._routes.await_topic(partition.topic, deadline, partition.partition).config
        # If the topic has no schema, its brokers decide.
        return in_a_version(batch, topic_schema(config)) if config.schema else batch


def _require_arguments(topic: object, partition: int | None, key: object) -> None:
    if not isinstance(topic, str):
        raise InvalidRequest(f"topic={topic!r} is no text: name a topic")
    if key is not None and not isinstance(key, bytes):
        raise InvalidRequest(f"key={key!r} is {type(key).__name__}: it is bytes")
    if key is not None and partition is not None:
        raise InvalidRequest(f"partition={partition} and a key: give one of them")


def _one_batch(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if isinstance(batch, pa.Table):
        combined = batch.combine_chunks().to_batches()
        if len(combined) > 1:
            raise InvalidRequest(f"a table of {batch.num_rows} rows does not fit one batch: send parts of it")
        if combined:
            return combined[0]
    elif not isinstance(batch, pa.RecordBatch):
        raise InvalidRequest(f"{type(batch).__name__} is no pyarrow RecordBatch or Table: convert it first")
    if batch.num_rows == 0:
        raise InvalidRequest("a batch without rows has no offsets: send at least one row")
    return batch
