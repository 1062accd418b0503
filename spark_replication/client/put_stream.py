"""One DoPut to one leader, in two threads: one sends what the owner gives it, the other hands the answers back.

It lives until the owner gives it nothing more, the connection ends, or it is `STREAM_S_MAX` old; it is never reused. A
stream that the owner has given up ends by itself, at the latest with its age, and its answers say nothing any more.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyarrow import flight

from spark_replication.client.stream_errors import FLIGHT_ERRORS, error_of_stream
from spark_replication.core.routing import Route
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError
from spark_replication.messages import BatchMetadata, from_json, to_json

STREAM_S_MAX = 600.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """messages.Ack, or with an `error` messages.Refusal."""

    number: int = -1
    base_offset: int = -1
    last_offset: int = -1
    error: str = ""
    message: str = ""
    retriable: bool = False
    maybe_written: bool = False


class AnswersOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """messages.AnswersTogether."""

    answers: tuple[Answer, ...]


class Outgoing(NamedTuple):
    batch: pa.RecordBatch
    metadata: BatchMetadata


class Owner(Protocol):
    """Called from the stream's threads."""

    def next_batch(self, stream: PutStream) -> Outgoing | None:
        """Waits for one; None: there will be none for this stream."""

    def answered(self, stream: PutStream, answer: Answer) -> None:
        """One a batch, in their order."""

    def broken(self, stream: PutStream) -> None:
        """No answer comes any more: it takes no batch either, so that it can end."""

    def ended(self, stream: PutStream, error: ReplicationError) -> None:
        """The last call, with the reason; also if all is as it should be."""


class PutStream:
    def __init__(
        self, client: flight.FlightClient, route: Route, schema: pa.Schema, *, epoch: int, owner: Owner
    ) -> None:
        """epoch: the producer epoch that its batches are numbered in."""
        self.client = client
        self.route = route
        self.schema = schema
        self.epoch = epoch
        self._owner = owner
        self._sending = threading.Thread(target=self._send, name=f"put {route.topic}-{route.partition}", daemon=True)

    def start(self) -> None:
        self._sending.start()

    def join(self, timeout_s: float) -> None:
        self._sending.join(timeout_s)

    def _send(self) -> None:
        descriptor = flight.FlightDescriptor.for_path(self.route.topic, str(self.route.partition))
        try:
            writer, reader = self.client.do_put(descriptor, self.schema, flight.FlightCallOptions(timeout=STREAM_S_MAX))
        except FLIGHT_ERRORS as error:
            self._owner.ended(self, error_of_stream(error))
            return
        sent = threading.Event()
        reading = threading.Thread(
            target=self._read, args=(writer, reader, sent), name=f"{self._sending.name} answers", daemon=True
        )
        reading.start()
        try:
            while (outgoing := self._owner.next_batch(self)) is not None:
                writer.write_with_metadata(outgoing.batch, pa.py_buffer(to_json(outgoing.metadata)))
            writer.done_writing()
        except FLIGHT_ERRORS:
            pass  # the stream is broken: its reader ends, too, and learns why
        finally:
            sent.set()
        reading.join()

    def _read(
        self, writer: flight.FlightStreamWriter, reader: flight.FlightMetadataReader, sent: threading.Event
    ) -> None:
        reason: ReplicationError = BrokerNotAvailable("the broker ended the stream: reload routes and retry")
        try:
            while (answer := reader.read()) is not None:
                self._owner.answered(self, from_json(answer.to_pybytes(), Answer))
        except FLIGHT_ERRORS as error:
            reason = error_of_stream(error)
        except InvalidRequest as error:
            reason = error
        self._owner.broken(self)
        sent.wait()  # close() must not meet a write
        try:
            writer.close()
        except FLIGHT_ERRORS as error:
            reason = error_of_stream(error)
        self._owner.ended(self, reason)
