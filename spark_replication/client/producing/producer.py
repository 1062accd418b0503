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
from typing import Any, Protocol, SupportsIndex, cast, overload

import pyarrow as pa

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.rows import Rows
from spark_replication.client.producing.sender import Sender
from spark_replication.client.producing.senders import Senders, closing_with
from spark_replication.client.producing.sends import Sends
from spark_replication.core.replica.producers import REMEMBERED
from spark_replication.decoding import error_of
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack, Acks, SenderSettings
from spark_replication.errors import (
    ClientClosed,
    InvalidRequest,
    ReplicationError,
)
from spark_replication.messages.records import PRODUCER_ID_BITS
from spark_replication.transport.security.security import Security

DEADLINE_MS = 30_000
IN_FLIGHT_BATCHES_MAX = 256
IN_FLIGHT_BYTES_MAX = 64 << 20
LINGER_MS = 0
BATCH_BYTES = 256 << 10
BATCH_BYTES_MAX = 1 << 30  # joined columns must not outgrow the 32-bit offsets of their strings


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
        #: For the producers of sr.aio, which wait in another way.
        self.sends = Sends(
            self._routes, self._senders, numbers, self._settings, self._process, is_fixed=identity is not None
        )

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
        asked = self.sends.asked(topic, partition, key)
        try:
            parts = self.sends.parts(asked, batch)
        except ClientClosed:
            raise
        except ReplicationError as error:
            return _failed(error)
        if asked.columns:
            return together([_sent(*part, asked.deadline) for part in parts])
        ((sender, rows),) = parts
        return sender.send(rows, asked.deadline)

    def flush(self) -> None:
        """Wait until every batch that was sent before is acknowledged or has failed: its future says which."""
        unanswered, patience_s = self.sends.unanswered()
        futures = cast("list[Future[Ack]]", unanswered)  # of Sender.send
        self.sends.require_none(len(concurrent.futures.wait(futures, timeout=patience_s).not_done))

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


def _sent(sender: Sender, rows: pa.RecordBatch, deadline: Deadline) -> Future[Ack]:
    try:
        return sender.send(rows, deadline)
    except ReplicationError as error:  # other parts are on their way
        return _failed(error)


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
        try:
            whole.set_result(acks_of_parts(futures))
        except ReplicationError as error:
            whole.set_exception(error)

    for future in futures:
        future.add_done_callback(done)
    return whole


class Answered(Protocol):
    """A future of a thread or of an event loop, once it is done."""

    def result(self) -> Ack: ...
    def exception(self) -> BaseException | None: ...


def acks_of_parts(futures: Sequence[Answered]) -> tuple[Ack, ...]:
    """The results of all these. Raises the error of the first that failed."""
    errors = [error for each in futures if isinstance(error := each.exception(), ReplicationError)]
    if errors:
        raise _of_parts(errors, [each.result() for each in futures if each.exception() is None])
    return tuple(each.result() for each in futures)


def _of_parts(errors: Sequence[ReplicationError], acks: Sequence[Ack]) -> ReplicationError:
    first = errors[0]
    if not acks:
        return error_of(first.code, first.message, maybe_written=any(error.maybe_written for error in errors))
    stored = ", ".join(str(ack.partition) for ack in acks)
    return error_of(
        first.code, f"{first.message} (the rows for the partitions {stored} are stored)", maybe_written=True
    )
