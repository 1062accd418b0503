"""Reads topics: does what engine.client.reading says, over connections and from files, and decodes what comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from types import TracebackType
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from spark_replication.client.finding.best_told import best_told_page
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.client.finding.ranges import Found, found_ranges, range_at
from spark_replication.client.finding.routes import Routes
from spark_replication.client.finding.topic_pages import topics_by_pages
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.nearby import from_files, has_files, is_nearby
from spark_replication.client.reading.read_connections import Broker, ReadAnswer, ReadConnections
from spark_replication.client.reading.reading_together import together
from spark_replication.core.replica.read_start import ReadPlace, asked_start
from spark_replication.engine.client.reading import (
    AskFiles,
    AskRecords,
    EndRead,
    FindLeader,
    FindReplicas,
    FindStart,
    Instruction,
    LearnTopic,
    PartitionRead,
    Pause,
    Preference,
    RaiseError,
    ReadFiles,
    Replica,
    ReportRoute,
    ReportTopic,
)
from spark_replication.errors import InvalidRequest, ReplicationError, UnknownTopicOrPartition
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.messages.records import ReadTicket
from spark_replication.model import AtTime, NamedOffset, Offset
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

log = logging.getLogger(__name__)


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
        whole: bool = False,
    ) -> Generator[LogBatch, None, None]:
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

        Whoever knows that everything below `stop` was committed asks for the `whole` of it: then a leader that has less
        is asked again, and LogTruncated is raised where it still has less once the deadline has passed.
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
        if whole and stop is None:
            raise InvalidRequest("whole=True without a stop: name the offset up to which records were committed")
        if partition is None:
            return _in_one_schema(self._read_all(ticket, follow=follow))
        return _in_one_schema(self._read(ticket, whole=whole))

    def _read_all(self, asked: ReadTicket, *, follow: bool) -> Generator[LogBatch, None, None]:
        deadline = Deadline(self._deadline_ms)
        topic = self._routes.await_topic(asked.topic, deadline, ended=self._closed)
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

    def _read(self, asked: ReadTicket, *, whole: bool = False) -> Generator[LogBatch, None, None]:
        patience_s = self._deadline_ms / 1000
        read = PartitionRead(asked, self._prefer, patience_s=patience_s, now_s=time.monotonic(), whole=whole)
        while not isinstance(doing := read.next(), EndRead):
            if isinstance(doing, RaiseError):
                raise doing.error
            error: ReplicationError | None = None
            try:
                yield from self._do(doing, read)
            except ReplicationError as failed:
                error = failed
            if self._closed.is_set():
                read.closed()
            if error is not None:
                read.failed(error, time.monotonic())

    def _do(self, doing: Instruction, read: PartitionRead) -> Iterator[LogBatch]:
        topic, partition = read.ticket.topic, read.ticket.partition
        match doing:
            case LearnTopic():
                read.topic_known(self._routes.await_topic(topic, _left(read), partition, self._closed).topic_id)
            case FindLeader():
                read.leader_known(self._routes.route(topic, partition, _left(read)))
            case FindReplicas():
                read.replicas_known(self._replicas(read))
            case FindStart(leader, ticket):
                read.starts_at(self._start(leader, ticket))
            case AskFiles(replica, wanted):
                found = range_at(self._routes, replica.address, wanted, _left(read))
                read.files_told(found, are_here=has_files(found, replica.files_uid))
            case ReadFiles(found):
                yield from self._from_files(found, read)
            case AskRecords():
                yield from self._records(doing, read)
            case ReportRoute(route):
                self._routes.stale(route)
            case ReportTopic():
                self._routes.stale_topic(topic)
            case Pause(s):
                self._closed.wait(s)

    def _replicas(self, read: PartitionRead) -> list[Replica]:
        topic, partition = read.ticket.topic, read.ticket.partition
        known = self._routes.followers(topic, partition, _left(read))
        followers = [Replica.at(broker, registration) for broker, registration in sorted(known.items())]
        if self._prefer != "near":
            return followers
        with suppress(ReplicationError):  # there is no leader at present
            followers.insert(0, Replica.leading(self._routes.route(topic, partition, _left(read))))
        return [replica for replica in followers if is_nearby(replica.address)]

    def _start(self, leader: Replica, ticket: ReadTicket) -> ReadPlace:
        with self._connections.one(Broker(leader.host, leader.port)) as connection:
            connection.ask(ticket, checked=False)
            told = connection.told()
            connection.payload()
            return ReadPlace(told.offset, told.last_epoch)

    def _from_files(self, found: FoundRange, read: PartitionRead) -> Iterator[LogBatch]:
        ticket = read.ticket
        try:
            for each in from_files(found, ticket.columns, self._schema(read)):
                if self._closed.is_set():
                    return
                yield each
                read.given(each.last_offset + 1, each.leader_epoch, time.monotonic())
        except ReplicationError as error:
            log.info("%s-%d is read over the network, not from files: %s", ticket.topic, ticket.partition, error)
            raise
        read.served(time.monotonic())

    def _records(self, asked: AskRecords, read: PartitionRead) -> Iterator[LogBatch]:
        decoder: _Decoder | None = None
        with self._connections.one(Broker(asked.replica.host, asked.replica.port)) as connection:
            connection.ask(asked.ticket, checked=asked.checked)
            while connection.owed and not self._closed.is_set():
                told = connection.told()
                following = read.answered(ReadPlace(told.next_offset, told.last_epoch))
                if following is not None:
                    connection.ask(following, checked=asked.checked)
                answer = ReadAnswer(told, connection.payload())
                decoder = decoder or _Decoder(read, self._schema(read, told.width))
                records = answer.records()
                if records is not None:
                    yield from decoder.decoded(records, told.high_watermark)
        read.served(time.monotonic())

    def _schema(self, read: PartitionRead, width: int = 0) -> pa.Schema:
        """width: how many columns the topic has at least, as a broker knows."""
        topic = read.ticket.topic
        deadline = Deadline(self._deadline_ms)
        schema = topic_schema(self._routes.topic(topic, deadline).config).newest
        if width > len(schema):
            self._routes.stale_topic(topic)
            schema = topic_schema(self._routes.topic(topic, deadline).config).newest
        return schema


class ReaderApart(Reader):
    """Reads over the routes and connections of another reader, and is closed alone: then that one goes on."""

    def __init__(self, of: Reader) -> None:
        self._prefer = of._prefer
        self._routes = of._routes
        self._deadline_ms = of._deadline_ms
        self._closed = threading.Event()
        self._process = of._process
        self._connections = of._connections.apart()

    def close(self) -> None:
        self._closed.set()
        self._connections.end_used()


def _left(read: PartitionRead) -> Deadline:
    return Deadline(1000 * read.left_s(time.monotonic()))


def _numbers(topic: TopicMetadata) -> list[int]:
    return list(topic.numbers)


class _Decoder:
    """Makes of stored batches what the reader asked for."""

    def __init__(self, read: PartitionRead, newest: pa.Schema) -> None:
        self._read = read
        self._ticket = read.ticket
        self._newest = newest
        self._schema = projected(newest, self._ticket.columns)

    def decoded(self, records: LogSlice, high_watermark: Offset) -> Iterator[LogBatch]:
        """What of these records comes next."""
        stored = segment_schema(bytes(records.schema))
        places = self._places(stored)
        is_as_asked = stored.equals(self._schema)
        for entry, batch in batches_of(records):
            wanted = self._read.wanted(entry.base_offset, entry.last_offset)
            if wanted is None:
                continue
            next_offset, beyond = wanted
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
                self._read.given(next_offset, entry.leader_epoch, time.monotonic())

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


def _in_one_schema(found: Generator[LogBatch, None, None]) -> Generator[LogBatch, None, None]:
    """Give all batches the schema of the first. Brokers learn of a topic's next schema version at different times, and
    each stream has the version that its broker knows."""
    schema: pa.Schema | None = None
    with closing(found):
        for each in found:
            if schema is None or not are_versions(each.batch.schema, schema):
                schema = each.batch.schema  # the first batch, or the first of a topic that was made again
            batch = filled(each.batch, range(len(schema)), schema)
            yield each if batch is each.batch else replace(each, batch=batch)
