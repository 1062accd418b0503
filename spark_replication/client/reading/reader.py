"""Reads a partition in the order of its offsets. When a stream ends or a leader is lost, it goes on at the next offset.

A reader that prefers another replica reads from it first, and then from the leader what the replica lacks: a follower
learns of the high watermark later. A replica that gave nothing is not asked again before the leader.

Invariant: each batch continues the one before, whatever brokers send. What lies below the next offset is cut off, a gap
is an error, and so is a log that was cut below the next offset, however far it has grown since.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from spark_replication.client.finding.best_told import best_told_page
from spark_replication.client.finding.deadline import Deadline, FailedTries
from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.client.finding.routes import Routes
from spark_replication.client.finding.topic_pages import topics_by_pages
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.nearby import from_files, has_files, is_nearby
from spark_replication.client.reading.ranges import Found, found_ranges, range_at
from spark_replication.client.reading.read_connections import Broker, ReadAnswer, ReadConnections
from spark_replication.client.reading.reading_together import together
from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace, asked_start
from spark_replication.core.routing import Route
from spark_replication.errors import (
    CorruptLog,
    InvalidRequest,
    LogTruncated,
    OffsetOutOfRange,
    ReplicationError,
    UnknownTopicOrPartition,
)
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import WantedRange
from spark_replication.messages.records import ReadTicket
from spark_replication.model import AtTime, BrokerId, NamedOffset, Offset, Registration
from spark_replication.ports import LogSlice
from spark_replication.storage.format.batches import (
    are_versions,
    batches_of,
    filled,
    in_pieces,
    projected,
    segment_schema,
    topic_schema,
)
from spark_replication.transport.security.security import Security

DEADLINE_MS = 30_000
FOLLOW_WAIT_MS = 5_000  # how long a broker holds a request that finds nothing new


Preference = Literal["leader", "follower", "near"] | BrokerId
_GoOn = tuple[ReadPlace, bool]

log = logging.getLogger(__name__)


class Replica(NamedTuple):
    """A broker to read from."""

    #: For requests (host:port).
    address: str
    #: For records.
    broker: Broker
    #: To whom its files belong; None if it does not say so.
    files_uid: int | None

    @classmethod
    def leading(cls, route: Route) -> Replica:
        return cls(route.address, Broker(route.host, route.replication_port), route.files_uid)

    @classmethod
    def at(cls, registration: Registration) -> Replica:
        broker = Broker(registration.host, registration.replication_port)
        return cls(registration.address, broker, registration.files_uid)


class Reader:
    """Reads topics. Thread-safe. Of no use in a fork: a process that is to make a Reader of its own is started by spawn
    or forkserver.

    - `security`: settings by name (security.mode, …), or a Security.
    - `prefer`: the replica to read from, as long as it is in sync and answers: "leader", any "follower", the broker of
      this id, or one that is "near". Near means on this host, where the files are read if this process may. Every
      preference reads the same records.
    - `deadline_ms`: how long a partition that cannot be read is retried, each time.
    - `reach_ms`: how long, at first, somebody is looked for who answers at all: then it is ClusterNotFound.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Security | Mapping[str, Any] | None = None,
        prefer: Preference = "leader",
        deadline_ms: int = DEADLINE_MS,
        reach_ms: float | None = None,
    ) -> None:
        if prefer not in ("leader", "follower", "near") and not (isinstance(prefer, int) and prefer >= 0):
            raise InvalidRequest(f'prefer={prefer!r}: it is "leader", "follower", "near" or the id of a broker')
        self._prefer = prefer
        self._routes = Routes(bootstrap, Security.of(security), reach_ms=reach_ms)
        self._deadline_ms = deadline_ms
        self._closed = threading.Event()
        self._process = OwnProcess("Reader")
        self._connections = ReadConnections(self._routes.security)

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: Offset | NamedOffset = 0,
        stop: Offset | None = None,
        *,
        start_time: datetime | int | None = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        topic_id: str | None = None,
        last_epoch: int | None = None,
    ) -> Iterator[LogBatch]:
        """Read batches from `start` on, up to `stop` (exclusive). The read ends at the high watermark. With `follow`,
        it waits there for more, until the reader or the generator is closed. All batches have the columns that the
        topic had when the read began.

        Without a partition, all of the topic are read, each in its order: one after the other, or with `follow` side
        by side, those too that the topic gets meanwhile. An offset is of one partition: name that.

        `start` is an offset, "earliest" (what retention has left) or "latest" (only new records). `start_time` stands
        in its place: a datetime with a time zone, or ms since 1970. The read then starts at the first batch that was
        appended at this time or later. With `topic_id`, no other topic of the same name is read.

        Whoever goes on where an earlier read ended names the leader epoch of the last batch that it has as
        `last_epoch`. LogTruncated is raised if the log was cut below `start` since; a read that runs finds out by
        itself.
        """
        self._process.require()
        asked = asked_start(start, start_time, stop)
        names_offset = stop is not None or last_epoch is not None or (isinstance(asked, int) and asked != 0)
        if partition is None and names_offset:
            raise InvalidRequest(f"an offset is of one partition of {topic}: name that as partition, too")
        try:
            ticket = ReadTicket(
                topic=topic,
                partition=0 if partition is None else partition,
                from_offset=None if isinstance(asked, AtTime) else asked,
                from_time=asked.time_ms if isinstance(asked, AtTime) else None,
                to=stop,
                max_wait_ms=FOLLOW_WAIT_MS if follow else 0,
                columns=None if columns is None else tuple(columns),
                topic_id=topic_id,
                last_epoch=last_epoch,
            )
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        return _in_one_schema(self._read(ticket) if partition is not None else self._read_all(ticket, follow=follow))

    def _read_all(self, asked: ReadTicket, *, follow: bool) -> Generator[LogBatch, None, None]:
        deadline = Deadline(self._deadline_ms)
        topic = self._routes.await_topic(asked.topic, deadline)
        ticket = replace(asked, topic_id=asked.topic_id or topic.topic_id)

        def read(number: int, is_new: bool) -> Generator[LogBatch, None, None]:  # noqa: FBT001 (see together)
            of_one = replace(ticket, partition=number)
            return self._read(replace(of_one, from_offset=0, from_time=None) if is_new else of_one)

        if follow:
            yield from together(lambda: _numbers(self.topic(asked.topic)), read, self._closed)
            return
        for number in _numbers(topic):
            yield from read(number, False)

    def topic(self, name: str) -> TopicMetadata:
        """The topic as a broker knows it at present. UnknownTopicOrPartition if there is none."""
        self._process.require()
        self._routes.stale_topic(name)
        return self._routes.await_topic(name, Deadline(self._deadline_ms))

    def topics(self) -> list[str]:
        """The names of all topics that the caller may see, sorted."""
        self._process.require()
        deadline = Deadline(self._deadline_ms)
        return [
            each.name for each in topics_by_pages(None, lambda asked: best_told_page(self._routes, asked, deadline))
        ]

    def ranges(self, wanted: Sequence[WantedRange]) -> Found:
        """Ask the leaders which offsets these ranges have, and where they are best cut. Returns an answer for each
        partition."""
        self._process.require()
        return found_ranges(self._routes, wanted, Deadline(self._deadline_ms))

    def close(self) -> None:
        """End every read; any thread may call this. In a fork, this does nothing."""
        if not self._process.is_this:
            return
        self._closed.set()
        self._connections.close()
        self._routes.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, asked: ReadTicket) -> Generator[LogBatch, None, None]:
        tries = self._tries()
        leaders_turn = False
        ticket = self._of_one_topic(asked, tries)
        place = began = self._beginning(ticket, tries.deadline)
        while not self._closed.is_set() and (ticket.to is None or place.offset < ticket.to):
            replica = None if leaders_turn else self._preferred(ticket, tries.deadline)
            if replica is not None:
                before = place
                place, leaders_turn = yield from self._from_replica(ticket, place, replica, tries.deadline)
                if place != before:
                    tries = self._tries()
                continue
            leaders_turn = False
            route: Route | None = None
            error: ReplicationError | None = None
            last: LogBatch | None = None
            try:
                route = self._routes.route(ticket.topic, ticket.partition, tries.deadline)
                for found in self._records(ticket, place, Replica.leading(route).broker):
                    last = found
                    yield found
                    tries = self._tries()
            except ReplicationError as failed:
                error = failed
            place = _after(last, place)
            if error is None:
                if not ticket.max_wait_ms:
                    return
                tries = self._tries()
            elif not self._closed.is_set():
                is_gone = isinstance(error, OffsetOutOfRange) and not isinstance(error, LogTruncated)
                retention_was_faster = is_gone and place == began and not isinstance(asked.start, int)
                if not retention_was_faster or tries.deadline.passed:
                    self._recover(error, route, tries)
                topic_id, ticket = ticket.topic_id, self._of_one_topic(ticket if place != began else asked, tries)
                if retention_was_faster or ticket.topic_id != topic_id:
                    place = began = self._beginning(ticket, tries.deadline)

    def _of_one_topic(self, ticket: ReadTicket, tries: FailedTries) -> ReadTicket:
        """The ticket for the topic that has this name at present: a read does not go on in another."""
        if ticket.topic_id is not None:
            return ticket
        try:
            topic = self._routes.await_topic(ticket.topic, tries.deadline, ticket.partition)
        except ReplicationError as error:
            raise tries.add(error) from None
        return replace(ticket, topic_id=topic.topic_id)

    def _preferred(self, ticket: ReadTicket, deadline: Deadline) -> Replica | None:
        """The preferred replica that is in sync. None if the leader is to be read from."""
        if self._prefer == "leader":
            return None
        try:
            known = self._routes.followers(ticket.topic, ticket.partition, deadline)
        except ReplicationError:
            return None  # the way to the leader meets the same error, and retries
        followers = {broker: Replica.at(registration) for broker, registration in sorted(known.items())}
        if self._prefer == "near":
            return self._near(ticket, followers, deadline)
        if self._prefer == "follower":
            chosen = [*followers.values()]
            return chosen[ticket.partition % len(chosen)] if chosen else None
        return followers.get(self._prefer)

    def _near(self, ticket: ReadTicket, followers: Mapping[BrokerId, Replica], deadline: Deadline) -> Replica | None:
        replicas = [*followers.values()]
        with suppress(ReplicationError):  # there is no leader at present
            replicas.insert(0, Replica.leading(self._routes.route(ticket.topic, ticket.partition, deadline)))
        return next((replica for replica in replicas if is_nearby(replica.address)), None)

    def _from_replica(
        self, ticket: ReadTicket, began: ReadPlace, replica: Replica, deadline: Deadline
    ) -> Generator[LogBatch, None, _GoOn]:
        """Yield what the replica gives. Returns the next place, and whether the leader is to be read from there."""
        last: LogBatch | None = None
        try:
            if self._prefer == "near":
                for found in self._from_files(ticket, began, replica, deadline):
                    last = found
                    yield found
            place = _after(last, began)
            if ticket.to is None or place.offset < ticket.to:
                for found in self._records(replace(ticket, any_replica=True), place, replica.broker):
                    last = found
                    yield found
        except ReplicationError:
            self._routes.stale_topic(ticket.topic)  # the leader has the same error, or serves what the replica did not
            return _after(last, began), last is None
        return _after(last, began), last is None or not ticket.max_wait_ms

    def _from_files(
        self, ticket: ReadTicket, place: ReadPlace, replica: Replica, deadline: Deadline
    ) -> Iterator[LogBatch]:
        """Read the replica's files, if they are on this host. An error of the files ends only this part: the rest may
        come from the broker. An error of the broker's answer is raised: it will not serve the rest either."""
        wanted = WantedRange(
            topic=ticket.topic,
            partition=ticket.partition,
            start=place.offset,
            last_epoch=_known(place),
            to=ticket.to,
            files=True,
        )
        topic = self._routes.topic(ticket.topic, deadline)
        found = range_at(self._routes, replica.address, wanted, deadline)
        is_of_topic = found.topic_id == (ticket.topic_id or topic.topic_id)
        if not is_of_topic or found.cut is not None or not has_files(found, replica.files_uid):
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

    def _beginning(self, ticket: ReadTicket, deadline: Deadline) -> ReadPlace:
        """Resolve the start of a read to an offset. A named place or a time is resolved by the leader, even if a
        follower is read afterwards. The read goes on by offset: the start is resolved again only if retention removed
        that offset before anything was read."""
        if isinstance(ticket.start, int):
            return ReadPlace(ticket.start, NO_EPOCH if ticket.last_epoch is None else ticket.last_epoch)
        asked = replace(ticket, to=0, max_wait_ms=0)
        tries = FailedTries(deadline)
        while not self._closed.is_set():
            route: Route | None = None
            try:
                route = self._routes.route(ticket.topic, ticket.partition, deadline)
                with self._connections.one(Replica.leading(route).broker) as connection:
                    connection.ask(asked, checked=False)
                    told = connection.told()
                    connection.payload()
                    return ReadPlace(told.offset, told.last_epoch)
            except ReplicationError as failed:
                error = failed
            if not self._closed.is_set():
                self._recover(error, route, tries)
        return ReadPlace(0)  # closed: nothing is read

    def _tries(self) -> FailedTries:
        return FailedTries(Deadline(self._deadline_ms))

    def _recover(self, error: ReplicationError, route: Route | None, tries: FailedTries) -> None:
        told = tries.add(error)
        may_pass = error.retriable or (route is not None and error.stale_routes)
        if route is not None and may_pass:
            # Any error that may be tried again, a timeout too, may mean that the leader is gone.
            self._routes.stale(route)
        if not may_pass or tries.deadline.passed:
            raise told
        self._closed.wait(min(tries.back_off_s, tries.deadline.remaining_s))

    def _records(
        self, ticket: ReadTicket, place: ReadPlace, broker: Broker, *, checked: bool = False
    ) -> Iterator[LogBatch]:
        """Yield what a broker has from `place` on. checked: have it look at the checksums before it sends."""
        decoder: _Decoder | None = None
        last: LogBatch | None = None
        try:
            with closing(self._answers(ticket, place, broker, checked=checked)) as answers:
                for answer in answers:
                    decoder = decoder or _Decoder(ticket, self._schema(ticket.topic, answer.told.width))
                    records = answer.records()
                    if records is None:
                        return
                    for found in decoder.decoded(records, _after(last, place).offset, answer.told.high_watermark):
                        last = found
                        yield found
                return
        except CorruptLog:
            if checked:
                raise
        yield from self._records(ticket, _after(last, place), broker, checked=True)

    def _schema(self, topic: str, width: int) -> pa.Schema:
        """width: how many columns the topic has, as a broker knows."""
        deadline = Deadline(self._deadline_ms)
        schema = topic_schema(self._routes.topic(topic, deadline).config).newest
        if width > len(schema):
            self._routes.stale_topic(topic)
            schema = topic_schema(self._routes.topic(topic, deadline).config).newest
        return schema

    def _answers(
        self, ticket: ReadTicket, place: ReadPlace, broker: Broker, *, checked: bool
    ) -> Generator[ReadAnswer, None, None]:
        """Yield a broker's answers, from `place` on. The next question goes once it is known where the records of an
        answer end, before they are received: the broker never waits for this reader."""
        with self._connections.one(broker) as connection:
            connection.ask(_at(ticket, place), checked=checked)
            while connection.owed and not self._closed.is_set():
                told = connection.told()
                after = ReadPlace(told.next_offset, told.last_epoch)
                if after.offset > place.offset and (ticket.to is None or after.offset < ticket.to):
                    place = after
                    connection.ask(_at(ticket, place), checked=checked)
                yield ReadAnswer(told, connection.payload())


def _numbers(topic: TopicMetadata) -> list[int]:
    return list(topic.numbers)


def _after(last: LogBatch | None, began: ReadPlace) -> ReadPlace:
    """Where a read goes on that has begun at `began`, and this is the last that it gave."""
    return began if last is None else ReadPlace(last.last_offset + 1, last.leader_epoch)


def _known(place: ReadPlace) -> int | None:
    return None if place.last_epoch == NO_EPOCH else place.last_epoch


def _at(ticket: ReadTicket, place: ReadPlace) -> ReadTicket:
    return replace(ticket, from_offset=place.offset, from_time=None, last_epoch=_known(place))


class _Decoder:
    """Makes of stored batches what the reader asked for."""

    def __init__(self, ticket: ReadTicket, newest: pa.Schema) -> None:
        self._ticket = ticket
        self._newest = newest
        self._schema = projected(newest, ticket.columns)

    def decoded(self, records: LogSlice, next_offset: Offset, high_watermark: Offset) -> Iterator[LogBatch]:
        """The part of these records from next_offset on and below ticket.to."""
        stored = segment_schema(bytes(records.schema))
        places = self._places(stored)
        is_as_asked = stored.equals(self._schema)
        to = self._ticket.to
        for entry, batch in batches_of(records):
            beyond = entry.last_offset + 1 if to is None else min(to, entry.last_offset + 1)
            if beyond <= next_offset:
                continue
            if entry.base_offset > next_offset:
                raise CorruptLog(
                    f"{self._ticket.topic}-{self._ticket.partition}: offset {next_offset} was next, but the broker "
                    f"sent {entry.base_offset}: read from there if what lies between may be missed"
                )
            if beyond - next_offset < batch.num_rows:
                batch = batch.slice(next_offset - entry.base_offset, beyond - next_offset)  # noqa: PLW2901
            for shown in (batch,) if is_as_asked else in_pieces(batch, places, self._schema):
                yield LogBatch(
                    topic=self._ticket.topic,
                    partition=self._ticket.partition,
                    batch=shown,
                    base_offset=next_offset,
                    last_offset=next_offset + shown.num_rows - 1,
                    leader_epoch=entry.leader_epoch,
                    timestamp=entry.timestamp_ms,
                    high_watermark=high_watermark,
                )
                next_offset += shown.num_rows

    def _places(self, stored: pa.Schema) -> list[int]:
        """Where the columns that were asked for are in these batches; beyond all columns, where one is not."""
        if self._ticket.columns is None:
            is_of_topic = are_versions(stored, self._newest)
            places = [*range(len(self._schema))]
        else:
            is_of_topic = all(field.equals(self._schema.field(field.name)) for field in stored)
            found = map(stored.get_field_index, self._schema.names)
            places = [len(stored) if place < 0 else place for place in found]
        if not is_of_topic:
            raise UnknownTopicOrPartition(f"{self._ticket.topic} was made again, with another schema: read it anew")
        return places


def _in_one_schema(found: Generator[LogBatch, None, None]) -> Iterator[LogBatch]:
    """Give all batches the schema of the first. Brokers learn of a topic's next schema version at different times, and
    each stream has the version that its broker knows."""
    schema: pa.Schema | None = None
    with closing(found):
        for each in found:
            if schema is None or not are_versions(each.batch.schema, schema):
                schema = each.batch.schema  # the first batch, or the first of a topic that was made again
            batch = filled(each.batch, range(len(schema)), schema)
            yield each if batch is each.batch else replace(each, batch=batch)
