"""DoPut streams, one for each leader, topic and schema: all partitions that a producer writes to there share it.

A lane is a partition's place on a stream. One thread of a stream asks the lanes' owners for batches, in turn, and sends
them. The other hands the answers to the owners. Each owner gets its answers in the order of its batches, whatever order
they came in.

A stream lives until no lane is left on it, the connection ends, an owner finds it silent for too long, or it is
`STREAM_S_MAX` old. An owner ignores the answers of a lane that it has left.
"""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import threading
import time
from collections import deque
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyarrow import flight

from spark_replication.client.stream_errors import FLIGHT_ERRORS, error_of_stream
from spark_replication.core.routing import Route
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.records import BatchMetadata

STREAM_S_MAX = 600.0
AT_ONCE = 0.0  # for Lane.ask_at


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A messages.records.Ack, or with an `error` a messages.records.Refusal."""

    number: int = -1
    base_offset: int = -1
    last_offset: int = -1
    error: str = ""
    message: str = ""
    retriable: bool = False
    maybe_written: bool = False


class AnswersOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """The messages.records.AnswersTogether of a stream."""

    answers: tuple[Answer, ...]


class Outgoing(NamedTuple):
    batch: pa.RecordBatch
    metadata: BatchMetadata


class Owner(Protocol):
    """Whoever sends over a lane. The stream's threads call it, without holding any lock of the stream."""

    def next_batch(self, lane: Lane) -> Outgoing | None:
        """The batch to send now: the time that the owner gave to `ask_at` has come. None if there is none to send."""

    def answered(self, lane: Lane, answers: list[Answer]) -> None:
        """Take one answer a batch, in the order of the batches."""

    def ended(self, lane: Lane, error: ReplicationError) -> None:
        """The stream has ended, for this reason. This is the last call for a lane. It is not made for a lane that was
        left before."""


class Lane:
    """The place of one partition on a stream, in one producer epoch."""

    def __init__(self, stream: LeaderStream, route: Route, epoch: int, owner: Owner) -> None:
        self.route = route
        self.epoch = epoch
        self.owner = owner
        #: When the owner is asked for a batch next. The owner guards it.
        self.asked_at_s = math.inf
        self._stream = stream
        #: The numbers of the batches whose answers were not handed on yet, in order.
        self._owed: deque[int] = deque()
        #: Answers, by number, that came before the answer to an earlier batch.
        self._early: dict[int, Answer] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._stream.schema

    @property
    def client(self) -> flight.FlightClient:
        return self._stream.client

    @property
    def heard_s(self) -> float:
        """When the stream last received anything, for any lane."""
        return self._stream.heard_s

    def abandon(self, why: str) -> None:
        """Give up the whole stream, for all of its lanes. Do not call this under an owner's lock."""
        self._stream.abandon(why)

    def ask_at(self, at_s: float) -> None:
        """Have the owner asked for a batch at this time, unless it is asked sooner. Each asking needs another call."""
        if at_s < self.asked_at_s:
            self.asked_at_s = at_s
            self._stream.ask_at(at_s, self)

    def leave(self) -> None:
        self._stream.leave(self)

    def sends(self, number: int) -> None:
        self._owed.append(number)

    def in_order(self, answer: Answer) -> list[Answer]:
        """Take an answer, and return the answers that are next in order."""
        self._early[answer.number] = answer
        found = []
        while self._owed and (first := self._early.pop(self._owed[0], None)) is not None:
            self._owed.popleft()
            found.append(first)
        return found


class LeaderStream:
    def __init__(self, client: flight.FlightClient, topic: str, schema: pa.Schema) -> None:
        self.client = client
        self.schema = schema
        self.heard_s = 0.0
        self._topic = topic
        self._lock = threading.Lock()
        self._lanes: dict[Lane, None] = {}
        self._over = False
        #: Orders to the sending thread: ask this lane's owner at this time, or end (None).
        self._asked: queue.SimpleQueue[tuple[float, Lane] | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Lane]] = []
        self._count = itertools.count()
        self._owing: dict[int, Lane] = {}  # the lane of each unanswered batch, by number
        self._sending = threading.Thread(target=self._send, name=f"put {topic}", daemon=True)

    def start(self) -> None:
        self._sending.start()

    def join(self, timeout_s: float) -> None:
        if self._sending.ident is not None:
            self._sending.join(timeout_s)

    @property
    def over(self) -> bool:
        return self._over

    def enter(self, lane: Lane) -> bool:
        """Add a lane. False if it is too late: the stream is ending."""
        with self._lock:
            if not self._over:
                self._lanes[lane] = None
            return not self._over

    def leave(self, lane: Lane) -> None:
        with self._lock:
            self._lanes.pop(lane, None)
            if not self._lanes:
                self._end_sending()

    def ask_at(self, at_s: float, lane: Lane) -> None:
        self._asked.put((at_s, lane))

    def abandon(self, why: str) -> None:
        with self._lock:
            self._end_sending()
        self._tell_the_end(BrokerNotAvailable(f"{why}: reload routes and retry", maybe_written=True))

    def _end_sending(self) -> None:
        self._over = True
        self._asked.put(None)

    # The sending thread

    def _send(self) -> None:
        descriptor = flight.FlightDescriptor.for_path(self._topic)
        try:
            writer, reader = self.client.do_put(descriptor, self.schema, flight.FlightCallOptions(timeout=STREAM_S_MAX))
        except FLIGHT_ERRORS as error:
            self._tell_the_end(error_of_stream(error))
            return
        sent = threading.Event()
        reading = threading.Thread(
            target=self._read, args=(writer, reader, sent), name=f"{self._sending.name} answers", daemon=True
        )
        reading.start()
        try:
            self._send_batches(writer)
            writer.done_writing()
        except FLIGHT_ERRORS:
            pass  # the stream is broken: the reading thread ends, too, and learns why
        finally:
            sent.set()
        reading.join()

    def _send_batches(self, writer: flight.FlightStreamWriter) -> None:
        number = 0
        while (lane := self._next_lane()) is not None:
            outgoing = lane.owner.next_batch(lane)
            if outgoing is not None:
                self._owing[number] = lane
                lane.sends(number)
                number += 1
                writer.write_with_metadata(outgoing.batch, pa.py_buffer(to_json(outgoing.metadata)))

    def _next_lane(self) -> Lane | None:
        """Wait for the next lane whose time has come. None if the stream is to end."""
        while True:
            now_s = time.monotonic()
            if self._later and self._later[0][0] <= now_s:
                return heapq.heappop(self._later)[2]
            try:
                asked = self._asked.get(timeout=self._later[0][0] - now_s if self._later else None)
            except queue.Empty:
                continue
            if asked is None:
                return None
            at_s, lane = asked
            if at_s <= now_s:
                return lane
            heapq.heappush(self._later, (at_s, next(self._count), lane))

    # The reading thread

    def _read(
        self, writer: flight.FlightStreamWriter, reader: flight.FlightMetadataReader, sent: threading.Event
    ) -> None:
        reason: ReplicationError = BrokerNotAvailable("the broker ended the stream: reload routes and retry")
        try:
            while (message := reader.read()) is not None:
                self.heard_s = time.monotonic()
                self._hand_on(from_json(message.to_pybytes(), AnswersOfStream))
        except FLIGHT_ERRORS as error:
            reason = error_of_stream(error)
        except InvalidRequest as error:
            reason = error
        with self._lock:
            self._end_sending()
        sent.wait()  # close() must not run beside a write
        try:
            writer.close()
        except FLIGHT_ERRORS as error:
            reason = error_of_stream(error)
        self._tell_the_end(reason)

    def _hand_on(self, told: AnswersOfStream) -> None:
        ready: dict[Lane, list[Answer]] = {}
        for answer in told.answers:
            lane = self._owing.pop(answer.number, None)
            if lane is None:
                raise InvalidRequest(f"the broker answered batch {answer.number} of {self._topic}, which is not owed")
            ready.setdefault(lane, []).extend(lane.in_order(answer))
        for lane, answers in ready.items():
            if answers:
                lane.owner.answered(lane, answers)

    def _tell_the_end(self, reason: ReplicationError) -> None:
        with self._lock:
            self._over = True
            lanes, self._lanes = self._lanes, {}
        for lane in lanes:
            lane.owner.ended(lane, reason)


class LeaderStreams:
    """The streams of a producer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str, pa.Schema], LeaderStream] = {}

    def lane(self, client: flight.FlightClient, route: Route, schema: pa.Schema, *, epoch: int, owner: Owner) -> Lane:
        """Return a lane to the route's leader, on the present stream or on a new one over `client`. The owner calls
        this under the lock that its own methods take: otherwise it could learn of the lane's end before it has the
        lane."""
        key = (route.address, route.topic_id, schema)
        with self._lock:
            stream = self._streams.get(key)
            if stream is not None:
                lane = Lane(stream, route, epoch, owner)
                if stream.enter(lane):
                    return lane
            # Forget streams that have ended: brokers that restart have new addresses.
            self._streams = {each: found for each, found in self._streams.items() if not found.over}
            stream = self._streams[key] = LeaderStream(client, route.topic, schema)
            lane = Lane(stream, route, epoch, owner)
            stream.enter(lane)
            stream.start()
            return lane

    def join(self, timeout_s: float) -> None:
        """Wait until all streams have ended. Their lanes were left before."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.join(max(0.0, deadline_s - time.monotonic()))
