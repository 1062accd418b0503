"""Readers: the read end in the broker, and whoever asks it. What is read is compared with what is committed."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.ends.read_end import Read, ReadEnd
from spark_replication.engine.replica.reads import LogLook
from spark_replication.errors import (
    CorruptLog,
    LogTruncated,
    OffsetOutOfRange,
    ReplicationError,
    UnknownTopicOrPartition,
)
from spark_replication.messages.lane import ReadFrame
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.world.disk import contents_of
from spark_replication.storage.format.batches import check_data
from spark_replication.storage.format.index import decode_entries

READ_MS = (60, 140)
READ_BYTES_MAX = 300
WAITS_MS = (0, 40, 250)  # in turn, how long a broker may wait for records
LEAVES_EVERY = 7  # so often a reader connects anew


class Reader(Client):
    """Reads one partition after another to its end. It asks again whether or not the question before is answered."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        super().__init__(f"r{number}", cluster)
        self._number = number
        #: None: from the earliest record on.
        self._place: ReadPlace | None = None
        #: The batch before that place, its partition, and its topic.
        self._last = b""
        self._read_of: TopicPartition | None = None
        self._topic_id = ""
        self._asked = count()
        self._connections: dict[BrokerProcess, BrokerEnd] = {}

    def start(self) -> None:
        self.world.after(self.world.between(*READ_MS), "reads", self._read, on=self)

    def _read(self) -> None:
        there = self.cluster.topics()
        if there and not self.stopped:
            target = there[self._number % len(there)]
            any_replica = self.world.chance(0.5)
            broker = self._some_broker() if any_replica else self.leader_of(target)
            if broker is None:
                self.reload(target.topic)
            else:
                ticket = self._ticket(target, any_replica=any_replica)
                self.cluster.network.send(
                    self.name, broker.name, "read", lambda: self._ask(broker, ticket), to=broker, about=target
                )
        self.world.after(self.world.between(*READ_MS), "reads", self._read, on=self)

    def _some_broker(self) -> BrokerProcess | None:
        living = self.cluster.brokers()
        return living[self.world.between(0, len(living) - 1)] if living else None

    def _ticket(self, target: TopicPartition, *, any_replica: bool) -> ReadTicket:
        place = self._place if self._read_of == target else None
        return ReadTicket(
            topic=target.topic,
            partition=target.partition,
            from_offset="earliest" if place is None else place.offset,
            last_epoch=None if place is None else place.last_epoch,
            topic_id=None if place is None else self._topic_id,
            max_wait_ms=WAITS_MS[next(self._asked) % len(WAITS_MS)],
            any_replica=any_replica,
        )

    def _ask(self, broker: BrokerProcess, ticket: ReadTicket) -> None:
        """In the broker."""
        number = next(self._asked)
        connection = self._connections.get(broker)
        if connection is not None and number % LEAVES_EVERY == 0:
            connection.closed()
            connection = None
        if connection is None:
            connection = self._connections[broker] = BrokerEnd(self, broker)
        connection.ask(ReadFrame(number=number, ticket=ticket))

    def answered(self, broker: BrokerProcess, read: Read, found: LogLook | ReplicationError) -> None:
        """In the broker."""
        any_replica = read.ticket.any_replica
        if isinstance(found, OffsetOutOfRange):
            self.world.counts["read_was_cut"] += isinstance(found, LogTruncated)
            self._place = self._place if any_replica else None
        elif isinstance(found, ReplicationError):
            if isinstance(found, UnknownTopicOrPartition) and not any_replica:
                self._place = None  # it may have been made again
            self.reload(read.name.topic)
        elif found.records is not None:
            records = found.records.loaded()
            replica = broker.loop.partition(read.name).unguarded
            if not self._is_whole(broker, read, records):
                return
            self.cluster.checkers.was_read(replica, records.first_offset, contents_of(records), bytes(records.schema))
            if self._read_of == read.name and self._place == (read.ticket.from_offset, read.ticket.last_epoch):
                self.cluster.checkers.was_read_on(replica, records.first_offset, self._last)
            *_, last = decode_entries(records.entries)
            self._place = ReadPlace(records.next_offset, last.leader_epoch)
            self._last, self._read_of, self._topic_id = contents_of(records)[-1], read.name, replica.topic_id
        else:
            self._check_nothing_was_there(broker, read, found.offset)
            if not any_replica:  # another may know less than the leader
                self._number += 1  # this one is read to its end
                self._place = None

    def _is_whole(self, broker: BrokerProcess, read: Read, records: LogSlice) -> bool:
        """Otherwise have the broker look at its disk, as a reader that asks for checked records does."""

        def look() -> None:
            with suppress(ReplicationError), broker.loop.partition(read.name) as replica:
                replica.damage.require_none(records)

        try:
            check_data(records)
        except CorruptLog:
            self.world.counts["read_was_damaged"] += 1
            self.world.after(0, "looks at its disk", look, on=broker)
            return False
        return True

    def _check_nothing_was_there(self, broker: BrokerProcess, read: Read, offset: Offset) -> None:
        replica = broker.loop.replicas.get(read.name)
        if replica is not None:
            checkers, any_replica = self.cluster.checkers, read.ticket.any_replica
            checkers.nothing_was_read(replica.unguarded, offset, any_replica=any_replica)
            if not any_replica and not read.ticket.max_wait_ms:
                checkers.was_read_to_its_end(replica.unguarded, offset)

    @property
    def is_through(self) -> bool:
        return not any(end.owes for broker, end in self._connections.items() if broker.alive)


class BrokerEnd:
    """A reader's connection in a broker."""

    def __init__(self, reader: Reader, broker: BrokerProcess) -> None:
        self._reader = reader
        self._broker = broker
        self._world = reader.world
        self._owed: set[int] = set()
        self._end = ReadEnd(
            broker.loop.partition,
            self._answered,
            clock_ms=lambda: self._world.now_ms,
            wake=lambda: self._world.after(0, "reads go on", self._go_on, on=broker),
        )

    @property
    def owes(self) -> bool:
        return bool(self._owed)

    def ask(self, frame: ReadFrame) -> None:
        self._owed.add(frame.number)
        self._end.asked(frame)
        self._world.after(frame.ticket.max_wait_ms, "a read may be over", self._go_on, on=self._broker)
        self._go_on()

    def _go_on(self) -> None:
        while self._end.go_on(READ_BYTES_MAX):
            pass

    def _answered(self, read: Read, found: LogLook | ReplicationError) -> None:
        self._owed.discard(read.frame.number)
        self._end.told(read)
        self._reader.answered(self._broker, read, found)

    def closed(self) -> None:
        self._owed.clear()
        self._end.closed()
