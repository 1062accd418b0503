"""Connections over which a reader asks brokers for records, and what they answer.

A read has a connection for itself while it lasts. Once all that it asked for is answered, the connection waits for the
next read of the same broker. A broker ends a connection that waits for long.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from crc32c import crc32c

from spark_replication.client.finding.connecting import opened
from spark_replication.decoding import error_of
from spark_replication.errors import BrokerNotAvailable, ClientClosed, CorruptLog, InvalidRequest
from spark_replication.messages.envelope import NONE
from spark_replication.messages.lane import ReadAnswerFrame, ReadFrame, ThrottledFrame
from spark_replication.messages.records import ReadTicket
from spark_replication.messages.replication import ErrorFrame
from spark_replication.ports import LogSlice
from spark_replication.storage.format.batches import check_data
from spark_replication.storage.format.index import ENTRY_BYTES, count_below, entry_at
from spark_replication.transport.security.security import Security
from spark_replication.transport.sockets.frames import (
    HANDSHAKE_BYTES_MAX,
    Channel,
    LastingReceiver,
    StoredBatches,
    encoded,
    hang_up,
    send,
)

ANSWER_BYTES_MAX = (1 << 31) - 1  # as much as Arrow writes in one message
ANSWER_TIMEOUT_S = 10.0  # beyond the time that the broker may wait for records
WAITING_MAX = 4  # connections to one broker that wait for the next read


class Broker(NamedTuple):
    """Where a broker listens for frames."""

    host: str
    port: int


class ReadAnswer(NamedTuple):
    told: ReadAnswerFrame
    payload: memoryview

    def records(self) -> LogSlice | None:
        """The records, as views of what was received; None if there are none. CorruptLog: they are damaged."""
        stored = StoredBatches.of(self.told, self.payload)
        if stored is None:
            return None
        schema, entries, data = stored
        count = len(entries) // ENTRY_BYTES
        first, last = entry_at(entries, 0), entry_at(entries, count - 1)
        records = LogSlice(first.base_offset, last.last_offset + 1, first.base_offset, entries, data, schema)
        check_data(records)
        if count_below(crc32c(schema), entries) < count:
            raise CorruptLog("the schema of the batches does not have its CRC-32C")
        return records


class ReadConnection:
    """Invariant: whatever breaks it leaves an answer owed, so that it is not used again."""

    def __init__(self, broker: Broker, security: Security) -> None:
        channel, _, _ = opened(*broker, security, reads=True, frame_bytes_max=HANDSHAKE_BYTES_MAX)
        self.broker = broker
        self._channel: Channel = channel
        self._receiver = LastingReceiver(channel, ANSWER_BYTES_MAX)
        self._asked = 0
        self._told = 0
        self._received = 0

    @property
    def owed(self) -> int:
        """How many questions were not answered yet."""
        return self._asked - self._received

    def ask(self, ticket: ReadTicket, *, checked: bool) -> None:
        frame = ReadFrame(number=self._asked, ticket=ticket, checked=checked)
        self._asked += 1
        self._channel.settimeout(ANSWER_TIMEOUT_S + ticket.max_wait_ms / 1000)
        send(self._channel, encoded(frame))

    def told(self) -> ReadAnswerFrame:
        """The next answer, before its records. Raises the error that the broker answers with."""
        frame = self._receiver.frame()
        while isinstance(frame, ThrottledFrame):
            frame = self._receiver.frame()
        if isinstance(frame, ErrorFrame):
            raise error_of(frame.error, frame.message)
        if not isinstance(frame, ReadAnswerFrame) or frame.number != self._told:
            raise InvalidRequest(f"a broker answers questions in their order, and does not send {frame}")
        self._told += 1
        if frame.error != NONE:
            self.payload()
            raise error_of(frame.error, frame.message)
        return frame

    def payload(self) -> memoryview:
        """The records of the answer that was told last."""
        payload = self._receiver.payload()
        self._received += 1
        return payload

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come: the broker ends a connection that waits for long, or ends itself."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        return not poll.poll(0)

    def hang_up(self) -> None:
        """For any thread: ends the wait of whoever uses it."""
        hang_up(self._channel)

    def close(self) -> None:
        self._channel.close()


class ReadConnections:
    """Thread-safe."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._lock = threading.Lock()  # guards everything below
        self._waiting: dict[Broker, list[ReadConnection]] = {}
        self._used: set[ReadConnection] = set()
        self._is_closed = False

    @contextmanager
    def one(self, broker: Broker) -> Iterator[ReadConnection]:
        """A connection to this broker, for one read. What breaks it is raised as a ReplicationError."""
        connection = None
        try:
            connection = self._taken(broker) or ReadConnection(broker, self._security)
            self._use(connection)
            yield connection
        except OSError as error:
            raise BrokerNotAvailable(f"the connection to {broker.host}:{broker.port} broke: {error}") from error
        finally:
            if connection is not None:
                self._end_use(connection)

    def _taken(self, broker: Broker) -> ReadConnection | None:
        while True:
            with self._lock:
                waiting = self._waiting.get(broker)
                if not waiting:
                    return None
                connection = waiting.pop()
            if connection.is_silent:
                return connection
            connection.close()

    def _use(self, connection: ReadConnection) -> None:
        with self._lock:
            self._used.add(connection)
            if self._is_closed:
                raise ClientClosed("this reader is closed: open another")

    def _end_use(self, connection: ReadConnection) -> None:
        with self._lock:
            self._used.discard(connection)
            waiting = self._waiting.setdefault(connection.broker, [])
            keeps = not self._is_closed and not connection.owed and len(waiting) < WAITING_MAX
            if keeps:
                waiting.append(connection)
        if not keeps:
            connection.close()

    def apart(self) -> ReadConnections:
        """Connections that are ended alone: those that wait are of both."""
        apart = ReadConnections(self._security)
        apart._lock, apart._waiting = self._lock, self._waiting
        return apart

    def end_used(self) -> None:
        """End every read; those who use connections close these."""
        with self._lock:
            self._is_closed = True
            used = list(self._used)
        for connection in used:
            connection.hang_up()

    def close(self) -> None:
        """As `end_used`, and close those that wait."""
        self.end_used()
        with self._lock:
            waiting = [each for connections in self._waiting.values() for each in connections]
            self._waiting.clear()
        for connection in waiting:
            connection.close()
