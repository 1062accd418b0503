"""Reads a partition in the order of its offsets, going on at the next offset when a stream ends or a leader is lost.

Who prefers another replica than the leader reads from one, and then from the leader what that one lacks: a follower
knows of the high watermark later. It is never asked twice in a row for what it did not give.

Invariant: what is handed out continues what was handed out before, whatever brokers send: what lies below the next
offset is cut off, and a gap is an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa
from msgspec.structs import replace
from pyarrow import flight

from spark_replication.client.deadline import Deadline, FailedTries
from spark_replication.client.log_batch import LogBatch
from spark_replication.client.nearby import from_files, has_files, is_nearby
from spark_replication.client.own_process import OwnProcess
from spark_replication.client.ranges import Found, found_ranges, range_at
from spark_replication.client.routes import Routes
from spark_replication.client.stream_errors import FLIGHT_ERRORS, error_of_stream
from spark_replication.core.replica.read_start import asked_start
from spark_replication.core.routing import Route
from spark_replication.errors import BrokerNotAvailable, CorruptLog, InvalidRequest, OffsetOutOfRange, ReplicationError
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.ranges import WantedRange
from spark_replication.messages.records import BatchPosition, ReadTicket
from spark_replication.model import AtTime, BrokerId, NamedOffset, Offset
from spark_replication.storage.batches import are_versions, filled, topic_schema
from spark_replication.transport.security import Security

DEADLINE_MS = 30_000
FOLLOW_WAIT_MS = 5_000  # how long a broker holds a request that finds nothing new
STREAM_MS = 10_000  # a stream this old is opened anew: so a leader that hangs is found out, whatever it has sent before


Preference = Literal["leader", "follower", "near"] | BrokerId
_GoOn = tuple[Offset, bool]

log = logging.getLogger(__name__)


class Reader:
    """Thread-safe; a forked process makes its own. deadline_ms: how long a partition that cannot be read is tried for,
    each time. security: settings by name (security.mode, …), or a Security.

    prefer: whom to read from, as long as that one is in sync and answers: "leader", any "follower", the broker of this
    id, or who is "near": on this host, and there from its files where this process may read them. Every read gives the
    same, whoever is preferred.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Security | Mapping[str, Any] | None = None,
        prefer: Preference = "leader",
        deadline_ms: int = DEADLINE_MS,
    ) -> None:
        if prefer not in ("leader", "follower", "near") and not (isinstance(prefer, int) and prefer >= 0):
            raise InvalidRequest(f'prefer={prefer!r}: it is "leader", "follower", "near" or the id of a broker')
        self._prefer = prefer
        self._routes = Routes(bootstrap, Security.of(security))
        self._deadline_ms = deadline_ms
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._process = OwnProcess("Reader")
        self._streams: set[flight.FlightStreamReader] = set()

    def read(
        self,
        topic: str,
        partition: int = 0,
        start: Offset | NamedOffset = 0,
        stop: Offset | None = None,
        *,
        start_time: datetime | int | None = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        topic_id: str | None = None,
    ) -> Iterator[LogBatch]:
        """From `start` on, up to `stop` (exclusive). Without follow it ends at the high watermark; with it, it waits
        for more until the reader or the generator is closed. All batches have the columns that the topic had as it
        began, whatever is added to it meanwhile.

        start: an offset, "earliest" (what retention has left) or "latest" (only what comes). In its place start_time,
        a datetime with a time zone or ms since 1970: from the first batch on that was appended then or later.

        topic_id: of the topic that is meant: nothing is read of another one that has its name.
        """
        self._process.require()
        asked = asked_start(start, start_time, stop)
        ticket = ReadTicket(
            topic=topic,
            partition=partition,
            from_offset=None if isinstance(asked, AtTime) else asked,
            from_time=asked.time_ms if isinstance(asked, AtTime) else None,
            to=stop,
            max_wait_ms=FOLLOW_WAIT_MS if follow else 0,
            columns=None if columns is None else tuple(columns),
            topic_id=topic_id,
        )
        return _in_one_schema(self._read(ticket))

    def topic(self, name: str) -> TopicMetadata:
        """As a broker tells of it now. UnknownTopicOrPartition: there is none."""
        self._process.require()
        self._routes.stale_topic(name)
        return self._routes.await_topic(name, Deadline(self._deadline_ms))

    def ranges(self, wanted: Sequence[WantedRange]) -> Found:
        """Which offsets there are, by partition, and where ranges of them are best cut, as their leaders say."""
        self._process.require()
        return found_ranges(self._routes, wanted, Deadline(self._deadline_ms))

    def close(self) -> None:
        """Ends every read, from whatever thread. Nothing to do in a fork."""
        if not self._process.is_this:
            return
        self._closed.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        self._routes.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, ticket: ReadTicket) -> Generator[LogBatch, None, None]:
        tries = self._tries()
        leaders_turn = False
        self._routes.await_topic(ticket.topic, tries.deadline, ticket.partition)
        offset = began = self._beginning(ticket, tries.deadline)
        while not self._closed.is_set() and (ticket.to is None or offset < ticket.to):
            replica = None if leaders_turn else self._preferred(ticket, tries.deadline)
            if replica is not None:
                before = offset
                offset, leaders_turn = yield from self._from_replica(ticket, offset, replica, tries.deadline)
                if offset > before:
                    tries = self._tries()
                continue
            leaders_turn = False
            route: Route | None = None
            error: ReplicationError | None = None
            try:
                route = self._routes.route(ticket.topic, ticket.partition, tries.deadline)
                for found in self._stream(ticket, offset, route.address):
                    offset = found.last_offset + 1
                    yield found
                    tries = self._tries()
            except ReplicationError as failed:
                error = failed
            if error is None:
                if not ticket.max_wait_ms:
                    return
                tries = self._tries()
            elif not self._closed.is_set():
                at_beginning = isinstance(error, OffsetOutOfRange) and offset == began != ticket.start
                if at_beginning and not tries.deadline.passed:
                    offset = began = self._beginning(ticket, tries.deadline)  # retention was faster
                else:
                    self._recover(error, route, tries)

    def _preferred(self, ticket: ReadTicket, deadline: Deadline) -> str | None:
        """The address of a replica in sync; None: the leader is to be read from as ever."""
        if self._prefer == "leader":
            return None
        try:
            followers = self._routes.followers(ticket.topic, ticket.partition, deadline)
        except ReplicationError:
            return None  # asking for the leader finds out what is wrong, and tries again
        if self._prefer == "near":
            return self._near(ticket, followers, deadline)
        if self._prefer == "follower":
            known = [followers[broker] for broker in sorted(followers)]
            return known[ticket.partition % len(known)] if known else None
        return followers.get(self._prefer)

    def _near(self, ticket: ReadTicket, followers: Mapping[BrokerId, str], deadline: Deadline) -> str | None:
        addresses = [*followers.values()]
        with suppress(ReplicationError):  # there is none now
            addresses.insert(0, self._routes.route(ticket.topic, ticket.partition, deadline).address)
        return next(filter(is_nearby, addresses), None)

    def _from_replica(
        self, ticket: ReadTicket, offset: Offset, address: str, deadline: Deadline
    ) -> Generator[LogBatch, None, _GoOn]:
        """What it gives. Returned: where to go on, and whether the leader is to be asked there."""
        began = offset
        try:
            if self._prefer == "near":
                for found in self._from_files(ticket, offset, address, deadline):
                    offset = found.last_offset + 1
                    yield found
            if ticket.to is None or offset < ticket.to:
                for found in self._stream(replace(ticket, any_replica=True), offset, address):
                    offset = found.last_offset + 1
                    yield found
        except ReplicationError:
            self._routes.stale_topic(ticket.topic)  # whatever it is, the leader says it, too, or makes up for it
            return offset, offset == began
        return offset, offset == began or not ticket.max_wait_ms

    def _from_files(self, ticket: ReadTicket, offset: Offset, address: str, deadline: Deadline) -> Iterator[LogBatch]:
        """What the replica there has in its files, if these are here. Whatever is wrong with them, the rest may come
        from its broker; but from one that does not even tell of them, nothing will."""
        wanted = WantedRange(topic=ticket.topic, partition=ticket.partition, start=offset, to=ticket.to, files=True)
        topic = self._routes.topic(ticket.topic, deadline)
        found = range_at(self._routes, address, wanted, deadline)
        if found.topic_id != (ticket.topic_id or topic.topic_id) or not has_files(found):
            return
        try:
            yield from self._unless_closed(from_files(found, ticket.columns, topic_schema(topic.config).newest))
        except ReplicationError as error:
            log.info("%s-%d is read over the network, not from files: %s", ticket.topic, ticket.partition, error)

    def _unless_closed(self, found: Iterator[LogBatch]) -> Iterator[LogBatch]:
        for each in found:
            if self._closed.is_set():
                return
            yield each

    def _beginning(self, ticket: ReadTicket, deadline: Deadline) -> Offset:
        """Where a read begins that names a place or a time: its leader says so, whoever is read from then, and is asked
        for nothing but that. Once there is something of it, nobody is asked again."""
        if isinstance(ticket.start, int):
            return ticket.start
        asked = replace(ticket, to=0, max_wait_ms=0)
        tries = FailedTries(deadline)
        while not self._closed.is_set():
            route: Route | None = None
            try:
                route = self._routes.route(ticket.topic, ticket.partition, deadline)
                with closing(self._chunks(asked, route.address)) as chunks:
                    for chunk in chunks:
                        return _position(ticket, chunk).base_offset
                error: ReplicationError = BrokerNotAvailable(
                    f"{route.address} ended a stream before its beginning: retry"
                )
            except ReplicationError as failed:
                error = failed
            if not self._closed.is_set():
                self._recover(error, route, tries)
        return 0  # closed: nothing is read

    def _tries(self) -> FailedTries:
        return FailedTries(Deadline(self._deadline_ms))

    def _recover(self, error: ReplicationError, route: Route | None, tries: FailedTries) -> None:
        told = tries.add(error)
        if not error.retriable or tries.deadline.passed:
            raise told
        if route is not None:
            # Whatever ended it, a timeout too, may be a leader that is gone.
            self._routes.stale(route)
        self._closed.wait(min(tries.back_off_s, tries.deadline.remaining_s))

    def _stream(self, ticket: ReadTicket, offset: Offset, address: str) -> Iterator[LogBatch]:
        """What one DoGet from `offset` on gives."""
        with closing(self._chunks(replace(ticket, from_offset=offset, from_time=None), address)) as chunks:
            for chunk in chunks:
                found = _continued(ticket, offset, chunk)
                if found is not None:
                    offset = found.last_offset + 1
                    yield found

    def _chunks(self, ticket: ReadTicket, address: str) -> Generator[flight.FlightStreamChunk, None, None]:
        """It ends with the broker's stream; an error of our tree says why before its time."""
        client = self._routes.client(address)
        try:
            stream = client.do_get(flight.Ticket(to_json(ticket)), flight.FlightCallOptions(timeout=STREAM_MS / 1000))
        except FLIGHT_ERRORS as error:
            self._routes.forget(address, client)
            raise error_of_stream(error) from error
        with self._lock:
            self._streams.add(stream)
        try:
            while not self._closed.is_set() and (chunk := _next_chunk(stream)) is not None:
                yield chunk
        except FLIGHT_ERRORS as error:
            self._routes.forget(address, client)
            raise error_of_stream(error) from error
        finally:
            with self._lock:
                self._streams.discard(stream)
            stream.cancel()


def _in_one_schema(found: Generator[LogBatch, None, None]) -> Iterator[LogBatch]:
    """Brokers hear of a topic's next version at different times, and each stream has the one that its broker knows."""
    schema: pa.Schema | None = None
    with closing(found):
        for each in found:
            if schema is None or not are_versions(each.batch.schema, schema):
                schema = each.batch.schema  # of the first, or of a topic that was made again
            batch = filled(each.batch, range(len(schema)), schema)
            yield each if batch is each.batch else replace(each, batch=batch)


def _next_chunk(stream: flight.FlightStreamReader) -> flight.FlightStreamChunk | None:
    try:
        return stream.read_chunk()
    except StopIteration:
        return None


def _position(ticket: ReadTicket, chunk: flight.FlightStreamChunk) -> BatchPosition:
    if chunk.app_metadata is None or chunk.data is None:
        raise InvalidRequest(f"the broker sent a batch of {ticket.topic}-{ticket.partition} without its offset")
    return from_json(chunk.app_metadata.to_pybytes(), BatchPosition)


def _continued(ticket: ReadTicket, next_offset: Offset, chunk: flight.FlightStreamChunk) -> LogBatch | None:
    """What of this chunk lies from next_offset on and below ticket.to; None: nothing."""
    position = _position(ticket, chunk)
    end = position.base_offset + chunk.data.num_rows
    if ticket.to is not None:
        end = min(end, ticket.to)
    if end <= next_offset:
        return None
    if position.base_offset > next_offset:
        raise CorruptLog(
            f"{ticket.topic}-{ticket.partition}: offset {next_offset} was next, but the broker sent "
            f"{position.base_offset}: read from there if what lies between may be missed"
        )
    batch = chunk.data
    if end - next_offset < batch.num_rows:
        batch = batch.slice(next_offset - position.base_offset, end - next_offset)
    return LogBatch(
        batch=batch,
        base_offset=next_offset,
        last_offset=end - 1,
        leader_epoch=position.leader_epoch,
        timestamp=position.timestamp,
        high_watermark=position.high_watermark,
    )
