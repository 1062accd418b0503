"""A reader's connection after its handshake: questions in, records out. Only the broker's loop uses it.

engine.ends.read_end decides when a question is answered. Records that lie in the page cache are sent from there.
Another thread reads first what is not there yet, and makes answers of some columns only, and those whose checksums are
to be looked at.

What an answer takes in memory, because it is not sent from its file, counts until the connection has taken it
(ReadRoom).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from spark_replication.engine.ends.read_end import Read, ReadEnd
from spark_replication.engine.replica.partition import FindPartition
from spark_replication.engine.replica.reads import LogLook
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.lane import ReadAnswerFrame, ReadFrame
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset
from spark_replication.ports import Records, StoredSlice
from spark_replication.process.logs import log_if_mistaken
from spark_replication.storage.format.batches import TopicSchema
from spark_replication.storage.format.index import ENTRY_BYTES, entry_at
from spark_replication.transport.frames.client_connection import Admitted, ClientConnection
from spark_replication.transport.frames.loaded_reads import are_all_columns, checked, loaded, with_columns
from spark_replication.transport.meter import GET, Meter, Traffic
from spark_replication.transport.sockets.aside import Aside
from spark_replication.transport.sockets.frames import ReceivedFrame, encoded, goes_as_file, sendable
from spark_replication.transport.sockets.socket_loop import SocketLoop, loop_ms

QUESTION_BYTES_MAX = 64 << 10
QUESTIONS_ROOM_BYTES = 4 << 10  # of the buffer in which they are received
READ_BYTES = 1 << 20  # of one answer, which has at least one batch
LOOK_FACTOR_MAX = 8  # of columns that take so much less than their batches, an answer has so many batches more
ROOM_SHARE = 16  # an answer in memory takes this part of the room that is left, at most

Made = TypeVar("Made")

log = logging.getLogger(__name__)


class ReadRoom:
    """What answers of all readers of a broker take in memory. While it is full, no other is made that needs memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: dict[ReaderConnection, None] = {}

    @property
    def share(self) -> int:
        """How much the next answer may have, or a single batch."""
        return max(1, min(READ_BYTES, (self._bytes_max - self._bytes) // ROOM_SHARE))

    def take(self, connection: ReaderConnection, count: int) -> bool:
        """Take so much. Returns False if there is no room: the connection's turn comes once there is."""
        if self._bytes >= self._bytes_max:
            self._waiting[connection] = None
            return False
        self._bytes += count
        return True

    def give_back(self, count: int) -> None:
        self._bytes -= count
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.wake()

    def left(self, connection: ReaderConnection) -> None:
        self._waiting.pop(connection, None)


class Reads:
    """What all readers' connections of a broker share."""

    def __init__(
        self,
        loop: SocketLoop,
        aside: Aside,
        find: FindPartition,
        schema_of: Callable[[str], TopicSchema],
        *,
        room_bytes_max: int,
    ) -> None:
        """schema_of: finds a topic's schema; called for each answer, since a topic may be widened."""
        self.loop = loop
        self.aside = aside
        self.find = find
        self.schema_of = schema_of
        self.room = ReadRoom(room_bytes_max)
        self.meter = Meter((GET,))
        self.consumed = Traffic()


class ReaderConnection(ClientConnection):
    def __init__(self, reads: Reads, client: Admitted) -> None:
        super().__init__(reads.loop, client)
        client.receiver.frame_bytes_max = QUESTION_BYTES_MAX
        client.receiver.room_bytes = QUESTIONS_ROOM_BYTES
        self._reads = reads
        self._find = client.rights.guarded(reads.find, client.caller, "read")
        self._taken = 0  # of the room
        self._held: tuple[Read, LogLook, Records] | None = None  # until there is room
        self._aside = reads.aside.of(self)
        self._is_aside = False  # another thread makes an answer, for which room was taken
        self._is_over = False
        self._end = ReadEnd(self._find, self._found, clock_ms=loop_ms, wake=lambda: reads.loop.post(self.wake))

    def take(self, received: ReceivedFrame) -> None:
        if not isinstance(received.frame, ReadFrame):
            raise InvalidRequest(f"a reader sends questions, not {type(received.frame).__name__}")
        self._end.asked(received.frame)

    def do_due(self, now_ms: float) -> float:
        """Look at one question, so that other connections have their turns between two answers."""
        if not self._flush():
            return math.inf
        if self._end.owes:
            waits_until_ms = self.waits_until_ms(now_ms, "consumer_byte_rate")
            self.reads = waits_until_ms <= now_ms
            if not self.reads:
                self._flush()
                return waits_until_ms
        held, self._held = self._held, None
        if held is not None:
            self._make(*held)
        else:
            self._end.check_not_idle()
            self._end.go_on(self._looks_for)
        return self._end.due_ms if self._flush() else math.inf

    @property
    def _answer_bytes_max(self) -> int:
        """The most that the next answer has, or a single batch."""
        return self.share.at_most("consumer_byte_rate", self._reads.room.share)

    def _looks_for(self, ticket: ReadTicket) -> int:
        """How much of a log becomes an answer: the fewer columns are asked for, the more."""
        columns = ticket.columns
        try:
            width = 0 if columns is None else self._reads.schema_of(ticket.topic).width
        except ReplicationError:  # it is met again as the answer is made
            width = 0
        return self._answer_bytes_max * max(1, min(LOOK_FACTOR_MAX, width // max(1, len(columns or ()))))

    def _flush(self) -> bool:
        """Return whether all is sent."""
        is_sent = self.outbox.flush()
        if is_sent and not self._end.is_making:
            self._give_back()
        return is_sent

    def _give_back(self, *, kept: int = 0) -> None:
        more = self._taken - kept
        if more > 0:
            self._taken = kept
            self._reads.room.give_back(more)

    # Answers

    def _found(self, read: Read, found: LogLook | ReplicationError) -> None:
        """Called with the partition in hand, of which this changes nothing."""
        self._loop.perform(self, partial(self._take_found, read, found))

    def _take_found(self, read: Read, found: LogLook | ReplicationError) -> None:
        if isinstance(found, ReplicationError):
            self._refuse(read, found)
            return
        records = found.records
        if records is None:
            self._say(read, found, None)
            return
        self._make(read, found, records)

    def _make(self, read: Read, found: LogLook, records: Records) -> None:
        columns = read.ticket.columns
        is_made = read.frame.checked or (columns is not None and not are_all_columns(records, columns))
        if is_made or not goes_as_file(records):
            if not self._reads.room.take(self, len(records.data)):
                self._held = read, found, records
                return
            self._taken += len(records.data)
        if is_made:
            make = partial(self._made, read, found, self._answer_bytes_max)
            self._make_aside(make, partial(self._say_made, read))
        elif isinstance(records, StoredSlice) and not records.data.is_cached:
            self._make_aside(records.data.warm, lambda _: self._say_stored(read, found, records))
        else:
            self._say_stored(read, found, records)

    def _make_aside(self, make: Callable[[], Made], say: Callable[[Made | ReplicationError], None]) -> None:
        def then(made: Made | ReplicationError) -> None:
            self._is_aside = False
            say(made)

        self._is_aside = True
        self._aside.do(make, then)

    def _made(self, read: Read, found: LogLook, bytes_max: int) -> LogLook:
        """On another thread."""
        columns = read.ticket.columns
        load = checked if columns is None else partial(with_columns, columns=columns, bytes_max=bytes_max)
        return loaded(found, lambda: self._find(read.name), read.ticket, load)

    def _say_made(self, read: Read, made: LogLook | ReplicationError) -> None:
        if isinstance(made, ReplicationError):
            self._refuse(read, made)
            return
        self._give_back(kept=0 if made.records is None else len(made.records.data))
        self._say(read, made, made.records)

    def _say_stored(self, read: Read, found: LogLook, records: Records) -> None:
        try:
            self._say(read, found, sendable(records))
        except ReplicationError as error:
            self._refuse(read, error)

    def _say(self, read: Read, found: LogLook, records: Records | None) -> None:
        try:
            width = self._reads.schema_of(read.name.topic).width
        except ReplicationError as error:
            self._refuse(read, error)
            return
        frame = ReadAnswerFrame(
            number=read.frame.number,
            offset=found.offset,
            next_offset=found.offset if records is None else _next_offset(read, records),
            last_epoch=found.place.last_epoch if records is None else _last_epoch(records),
            high_watermark=found.high_watermark,
            width=width,
            schema_bytes=0 if records is None else len(records.schema),
            entry_bytes=0 if records is None else len(records.entries),
            data_bytes=0 if records is None else len(records.data),
        )
        self._put(read, frame, records)

    def _refuse(self, read: Read, error: ReplicationError) -> None:
        log_if_mistaken(log, error)
        self._reads.meter.refused(GET, error.code)
        self._put(read, ReadAnswerFrame(number=read.frame.number, error=error.code, message=error.message))

    def _put(self, read: Read, frame: ReadAnswerFrame, records: Records | None = None) -> None:
        self._end.told(read)
        self._reads.meter.took(GET, [(loop_ms() - read.due_ms) / 1000])
        if self._is_over:
            self._give_back()
            return
        stored = () if records is None else (records.schema, records.entries, records.data)
        self.outbox.put(encoded(frame, *stored))
        if records is not None:
            self._reads.consumed.carried(records)
            self.share.take("consumer_byte_rate", len(records.data))
        self.wake()  # this may not be within its turn

    def over(self) -> None:
        self._is_over = True
        self._end.closed()
        self._reads.room.left(self)
        if not self._is_aside:
            self._give_back()

    def last_words(self) -> None:
        """A reader asks again what was not answered."""


def _next_offset(read: Read, records: Records) -> Offset:
    to = read.ticket.to
    return records.next_offset if to is None else min(to, records.next_offset)


def _last_epoch(records: Records) -> int:
    """The leader epoch of the last of these records: no read goes on within them."""
    return entry_at(records.entries, len(records.entries) // ENTRY_BYTES - 1).leader_epoch
