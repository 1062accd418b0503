"""Frames between brokers and of clients: u32 header length, u32 payload length (big-endian), msgpack header, payload.

The payload of an answer is schema, entries and data as they lie in the leader's files. The kernel sends the data from
its file (with TLS it is encrypted from there), and the receiver hands it on as a view of its receive buffer.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, overload

import pyarrow as pa

from spark_replication.errors import BrokerNotAvailable, InvalidRequest
from spark_replication.messages.frames import Frame, from_frame, to_frame
from spark_replication.messages.lane import ReadAnswerFrame
from spark_replication.messages.replication import FetchedPartition
from spark_replication.ports import Records, StoredBytes, StoredSlice
from spark_replication.storage.format.index import ENTRY_BYTES
from spark_replication.transport.sockets.tls_channel import TlsChannel

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
Part = Buffer | StoredBytes
Channel = socket.socket | TlsChannel


HANDSHAKE_BYTES_MAX = 4 << 10  # read from a peer before it is known
RECEIVE_BYTES = 1 << 20  # for what brokers and producers send
HEAD_BYTES = 512  # of a LastingReceiver: what of a payload comes with the header is copied
ROOM_BYTES_MIN = 64 << 10  # for one recv: all that TlsChannel has decrypted must fit, since no poll reports the rest
# Against a path that takes packets and brings none: the kernel probes a silent peer, and gives up a peer that has not
# confirmed what was sent.
KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES_MAX = 3
UNCONFIRMED_MS_MAX = 10_000
SENDFILE_BYTES_MIN = 16 << 10  # it is faster to read less, and to send it along with the bytes around it
BUFFERS_PER_CALL_MAX = 512  # of one sendmsg: Linux takes 1024

_LENGTHS = struct.Struct("!II")


class ReceivedFrame(NamedTuple):
    frame: Frame
    #: Of a FrameReceiver: valid until its next `receive`.
    payload: memoryview


class FrameReceiver:
    """Invariant: buffer[start:filled] holds what was received and not handed out yet.

    The buffer is small until the first `receive`: a peer that is not known yet takes little memory.
    """

    def __init__(self, connection: Channel, frame_bytes_max: int) -> None:
        self._connection = connection
        #: A longer frame ends the connection.
        self.frame_bytes_max = frame_bytes_max
        #: The room of the buffer, until a larger frame comes.
        self.room_bytes = RECEIVE_BYTES
        self._view = memoryview(bytearray(HANDSHAKE_BYTES_MAX))
        self._start = 0
        self._filled = 0
        self._largest = 0  # of the frames that came whole
        self.is_drained = False  # whether the last recv left nothing, as far as it could know
        self.came_bytes = 0  # ever

    def receive_first(self, before_recv: Callable[[], None]) -> Frame:
        """The next frame of a handshake, however many recvs it takes. Only before the first `receive`.

        before_recv: called before each recv. Little is read beyond the frame; `whole` returns what came behind it.
        """
        while (length := self._frame_length()) > self._filled - self._start:
            if length > HANDSHAKE_BYTES_MAX:
                raise InvalidRequest(
                    f"a connection begins with a frame of {length} bytes: {HANDSHAKE_BYTES_MAX} at most"
                )
            self._move_to_front()
            before_recv()
            self._receive_some()
        frame, _ = self._frame(length)
        self._start += length
        return frame

    def receive(self) -> list[ReceivedFrame]:
        """Make one recv. Returns the frames that are complete after it, perhaps none. BrokerNotAvailable: the peer has
        closed."""
        if self._start == self._filled and len(self._view) >= self._largest + ROOM_BYTES_MIN + _LENGTHS.size:
            self._start = self._filled = 0
        else:
            self._make_room()
        self._receive_some()
        return self.whole()

    def _receive_some(self) -> None:
        room = self._view[self._filled :]
        try:
            received = self._connection.recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError):  # nothing has come, or less than one record of TLS
            self.is_drained = True
            return
        if received == 0:
            raise BrokerNotAvailable("the peer closed the connection")
        self.is_drained = received < len(room)
        self.came_bytes += received
        self._filled += received

    def whole(self) -> list[ReceivedFrame]:
        """The frames that are complete already."""
        frames = []
        while self._start < self._filled and self._start + (length := self._frame_length()) <= self._filled:
            frames.append(self._frame(length))
            self._start += length
            self._largest = max(self._largest, length)
        return frames

    def _frame_length(self) -> int:
        """The length of the frame at `start`; while its lengths have not come, that of the lengths alone."""
        if self._filled - self._start < _LENGTHS.size:
            return _LENGTHS.size
        header, payload = _LENGTHS.unpack_from(self._view, self._start)
        length = int(_LENGTHS.size + header + payload)
        if length > self.frame_bytes_max:
            raise InvalidRequest(
                f"a frame of {length} bytes is over {self.frame_bytes_max} (replication.frame.bytes.max, or what "
                "batch.bytes.max needs): the peer speaks something else, or its settings differ, or one side speaks "
                "TLS (security.mode)"
            )
        return length

    def _frame(self, length: int) -> ReceivedFrame:
        header, _ = _LENGTHS.unpack_from(self._view, self._start)
        body = self._start + _LENGTHS.size + header
        frame = from_frame(self._view[self._start + _LENGTHS.size : body])
        return ReceivedFrame(frame, self._view[body : self._start + length])

    def _make_room(self) -> None:
        """Make room for the rest of the frame at `start`, and for what comes behind it. A frame that is larger than
        all before gets its room as it comes, twice what has come at a time: its length alone takes no memory."""
        left = self._view[self._start : self._filled]
        length = self._frame_length()
        needed = max(min(length, 2 * len(left)), self._largest) + ROOM_BYTES_MIN
        if needed > len(self._view):
            larger = memoryview(bytearray(needed + self.room_bytes))
            larger[: len(left)] = left
            self._view = larger
            self._start, self._filled = 0, len(left)
        elif self._start and (
            not left or self._start + length + ROOM_BYTES_MIN > len(self._view) or self._start > len(self._view) // 2
        ):
            self._move_to_front()

    def free(self) -> None:
        """Give its memory back, whoever still refers to this. Nothing is received any more."""
        self._view = memoryview(b"")
        self._start = self._filled = 0

    def _move_to_front(self) -> None:
        left = self._view[self._start : self._filled]
        self._view[: len(left)] = left
        self._start, self._filled = 0, len(left)


class LastingReceiver:
    """Receives a frame at a time over a blocking connection, each payload into memory of its own: what refers to it may
    live on, and nothing is copied."""

    def __init__(self, connection: Channel, frame_bytes_max: int) -> None:
        self._connection = connection
        self._frame_bytes_max = frame_bytes_max
        #: What was received beyond the last frame: few bytes, as a rule none.
        self._head = bytearray()
        self._payload_bytes = 0

    def frame(self) -> Frame:
        """The next frame, whose payload is to be received next. BrokerNotAvailable: the peer has closed."""
        self._need(_LENGTHS.size)
        header_bytes, payload_bytes = _LENGTHS.unpack_from(self._head)
        if header_bytes + payload_bytes > self._frame_bytes_max:
            raise InvalidRequest(f"a frame of {header_bytes + payload_bytes} bytes is over {self._frame_bytes_max}")
        body = _LENGTHS.size + header_bytes
        self._need(body)
        frame = from_frame(bytes(self._head[_LENGTHS.size : body]))
        del self._head[:body]
        self._payload_bytes = payload_bytes
        return frame

    def payload(self) -> memoryview:
        """What came with the last frame."""
        payload = memoryview(pa.allocate_buffer(self._payload_bytes)).cast("B")
        early = self._head[: len(payload)]
        filled = len(early)
        payload[:filled] = early
        del self._head[:filled]
        while filled < len(payload):
            filled += self._receive_into(payload[filled:])
        return payload

    def _need(self, count: int) -> None:
        while len(self._head) < count:
            room = memoryview(bytearray(max(HEAD_BYTES, count - len(self._head))))
            self._head += room[: self._receive_into(room)]

    def _receive_into(self, room: memoryview) -> int:
        try:
            received = self._connection.recv_into(room)
        except ssl.SSLWantReadError:  # less than one record of TLS has come
            return 0
        if received == 0:
            raise BrokerNotAvailable("the peer closed the connection")
        return received


@overload
def encoded(frame: Frame, *payload: Buffer) -> list[Buffer]: ...
@overload
def encoded(frame: Frame, *payload: Part) -> list[Part]: ...
def encoded(frame: Frame, *payload: Part) -> Sequence[Part]:
    header = to_frame(frame)
    lengths = _LENGTHS.pack(len(header), sum(map(len, payload)))
    return [lengths + header, *filter(len, payload)]


class StoredBatches(NamedTuple):
    """Stored batches as they follow a frame: views of its payload."""

    schema: memoryview
    entries: memoryview
    data: memoryview

    @classmethod
    def of(cls, told: FetchedPartition | ReadAnswerFrame, payload: memoryview) -> StoredBatches | None:
        """Return None if no batches follow."""
        data_at = told.schema_bytes + told.entry_bytes
        if data_at + told.data_bytes != len(payload) or told.entry_bytes % ENTRY_BYTES:
            of = f" of {told.topic_partition}" if isinstance(told, FetchedPartition) else ""
            raise InvalidRequest(f"an answer{of} does not describe its payload of {len(payload)} bytes")
        if not told.entry_bytes:
            return None
        return cls(payload[: told.schema_bytes], payload[told.schema_bytes : data_at], payload[data_at:])


def goes_as_file(records: Records) -> bool:
    """Whether they are sent from their file: by the kernel, and with TLS a step at a time."""
    return isinstance(records, StoredSlice) and len(records.data) >= SENDFILE_BYTES_MIN


def sendable(records: Records) -> Records:
    """The records in the form in which they are sent: from their file, or read into memory."""
    return records if goes_as_file(records) else records.loaded()


def send(connection: Channel, parts: Iterable[Part]) -> None:
    """Send all of it, over a blocking connection."""
    outbox = Outbox(connection)
    outbox.put(parts)
    is_sent = outbox.flush()
    assert is_sent, "the connection waits"


class Outbox:
    """The bytes that are still to be sent over a connection, in order, in as few calls as the kernel needs."""

    def __init__(self, connection: Channel) -> None:
        self._connection = connection
        self._tls = connection if isinstance(connection, TlsChannel) else None
        self._parts: deque[Part] = deque()
        self._sent = 0  # how much of the first part is sent, if that lies in a file

    def __bool__(self) -> bool:
        return bool(self._parts) or (self._tls is not None and self._tls.owes)

    def put(self, parts: Iterable[Part]) -> None:
        self._parts.extend(parts)

    def flush(self) -> bool:
        """Send everything over a blocking connection, and as much as the socket takes over a non-blocking one. Returns
        whether that was all."""
        try:
            if self._tls is not None:
                self._tls.flush()
            while self._parts:
                first = self._parts[0]
                if isinstance(first, (bytes, bytearray, memoryview)):
                    self._send_buffers()
                else:
                    self._send_stored(first)
        except BlockingIOError:
            return False
        return self._tls is None or not self._tls.owes

    def _send_buffers(self) -> None:
        batch: list[Buffer] = []
        flags = 0
        for part in islice(self._parts, BUFFERS_PER_CALL_MAX):
            if not isinstance(part, (bytes, bytearray, memoryview)):
                flags = socket.MSG_MORE
                break
            batch.append(part)
        sent = self._connection.sendmsg(batch, (), flags)
        for part in batch:
            if sent < len(part):
                self._parts[0] = memoryview(part)[sent:]
                return
            sent -= len(part)
            self._parts.popleft()

    def _send_stored(self, stored: StoredBytes) -> None:
        """Send bytes from a file. Their count was promised, so zeros are sent for what cannot be read: the receiver
        finds out by the checksums, and the connection goes on for all other partitions."""
        if self._tls is not None:
            count = self._tls.send_stored(stored, self._sent)
        else:
            count = stored.send_to(self._connection.fileno(), self._sent)
        self._sent += count
        missing = len(stored) - self._sent
        if missing and count:
            return
        self._sent = 0
        self._parts.popleft()
        if missing:
            log.error("%s of %s stored bytes could not be read and are sent as zeros", missing, len(stored))
            self._parts.appendleft(bytes(missing))


def tune(connection: socket.socket) -> None:
    """Small frames are sent at once. A peer whose host is gone is noticed within seconds, even if nothing is sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNCONFIRMED_MS_MAX)


def hang_up(connection: Channel) -> None:
    """End the connection for whoever waits on it, on any thread. Its owner still has to close it."""
    with contextlib.suppress(OSError):  # the peer has ended it already
        connection.shutdown(socket.SHUT_RDWR)
