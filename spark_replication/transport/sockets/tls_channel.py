"""TLS between brokers, with the part of a socket's interface that frames need.

OpenSSL works on memory. So large records go in one call, and a non-blocking socket leaves nothing half done.

Rules:
- One thread uses a channel at a time.
- Encrypted bytes that the socket did not take are kept, and sent before anything else (`owes`, `flush`).
- What OpenSSL owes the peer after a receive goes with the next answer.
- After a `recv_into` with ROOM_BYTES_MIN of room nothing decrypted is left: a poll of the socket reports all the rest.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from types import TracebackType
from typing import Any

from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable
from spark_replication.ports import StoredBytes

ENCRYPTED_BYTES_MAX = 512 << 10  # encrypted before it is sent: the memory of a sender
RECEIVE_BYTES = 256 << 10  # of a call of the kernel
RECEIVE_BYTES_MIN = 1 << 10
STEP_BYTES = 128 << 10  # through OpenSSL's memory at a time: what it copies is still in the processor's cache
RECORD_BYTES = 16 << 10  # of data, before they are encrypted
RECORD_BYTES_MAX = RECORD_BYTES + 2048 + 5  # RFC 5246, 6.2.3; TLS 1.3 has less
HANDSHAKE_RECORD = 0x16

Buffer = bytes | bytearray | memoryview


class TlsChannel:
    """Use `connected` or `accepted`."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        #: Of the CAs that its handshake went by, where this side was called: see Tls.
        self.mark = ""
        #: Whether the CAs are still trusted that its handshake went by, where this side has called.
        self.is_trusted: Callable[[], bool] = lambda: True
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        #: None once this is closed.
        self._open: ssl.SSLObject | None = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._received = memoryview(bytearray(RECORD_BYTES_MAX))
        self._owed: deque[memoryview] = deque()  # encrypted, and not sent yet
        self._more = True  # memory may hold more: the last recv_into had too little room, or the handshake read on
        self._is_over = False  # the peer sends nothing any more
        self._waits = True  # the socket, for what has not come

    @classmethod
    def connected(cls, connection: socket.socket, context: ssl.SSLContext, host: str, timeout_s: float) -> TlsChannel:
        """A channel to a server whose certificate the context's CA signed for this host."""
        channel = cls(connection, context, host)
        channel._shake_hands(timeout_s, f"the peer at {host}")
        return channel

    @classmethod
    def accepted(cls, connection: socket.socket, context: ssl.SSLContext, timeout_s: float) -> TlsChannel:
        """A channel to a client that shows what the context demands."""
        connection.settimeout(timeout_s)
        first = connection.recv(1, socket.MSG_PEEK)
        if first and first[0] != HANDSHAKE_RECORD:
            raise AuthenticationFailed(
                "this broker speaks TLS, and its peer does not: set security.mode=tls there, too"
            )
        channel = cls(connection, context, None)
        channel._shake_hands(timeout_s, "a peer")
        return channel

    @property
    def _tls(self) -> ssl.SSLObject:
        if self._open is None:
            raise OSError(errno.EBADF, "the channel is closed")
        return self._open

    def _shake_hands(self, timeout_s: float, peer: str) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange(deadline, peer)
                continue
            except ssl.SSLError as error:
                self._send_owed()  # the alert, which says why
                raise _failed(peer, error) from error
            self._send_owed()
            self._connection.settimeout(None)
            self._received = memoryview(bytearray(RECEIVE_BYTES))
            return

    def _exchange(self, deadline: float, peer: str) -> None:
        self._send_owed()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise BrokerNotAvailable(f"{peer} did not finish its TLS handshake in time")
        self._connection.settimeout(left_s)
        received = self._connection.recv_into(self._received)
        if received == 0:
            raise BrokerNotAvailable(f"{peer} closed the connection during its TLS handshake")
        self._incoming.write(self._received[:received])

    def _send_owed(self) -> None:
        owed = self._outgoing.read()
        if owed:
            self._connection.sendall(owed)

    @property
    def peer_name(self) -> str:
        """The name in the peer's certificate, as gRPC has it: its first alternative name, or else its common name.
        Empty if the peer has shown none."""
        shown: dict[str, Any] = self._tls.getpeercert() or {}
        names = [_as_grpc_has_it(kind, value) for kind, value in shown.get("subjectAltName", ())]
        names += [value for entry in shown.get("subject", ()) for key, value in entry if key == "commonName"]
        return names[0] if names else ""

    # The part of a socket's interface that frames need

    def recv_into(self, room: memoryview) -> int:
        """As a socket's: 0 at the end. Raises ssl.SSLWantReadError if less than a record has come."""
        self._require_trusted()
        filled = self._decrypted_into(room) if self._more else self._received_into(room)
        if not (filled or self._more or self._is_over):
            raise ssl.SSLWantReadError
        return filled

    def _received_into(self, room: memoryview) -> int:
        """Receive all that has come and that there is room for; once, if the socket waits."""
        filled = 0
        # Memory may hold a record whose end had not come. So less is received: that record must fit as well.
        free = max(len(room) - RECORD_BYTES_MAX, RECEIVE_BYTES_MIN)
        while free >= RECEIVE_BYTES_MIN:
            try:
                received = self._connection.recv_into(self._received[:free])
            except BlockingIOError:
                if not filled:
                    raise
                break
            self._is_over = received == 0
            for start in range(0, received, STEP_BYTES):
                self._incoming.write(self._received[start : min(start + STEP_BYTES, received)])
                filled += self._decrypted_into(room[filled:])
            if self._waits or received < len(self._received):
                break
            free = len(room) - filled - RECORD_BYTES_MAX
        return filled

    def _decrypted_into(self, room: memoryview) -> int:
        """Take what memory holds of whole records, as far as there is room."""
        filled = 0
        read = self._tls.read
        try:
            while filled < len(room):
                count: int = read(len(room) - filled, room[filled:])  # type: ignore[assignment]
                if count == 0:  # the peer ends TLS; the end of the socket follows
                    self._is_over = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            self._more = False
            return filled
        except ssl.SSLError as error:
            raise _failed("the peer", error) from error
        self._more = True
        return filled

    def sendmsg(self, buffers: Sequence[Buffer], _ancillary: tuple[()] = (), flags: int = 0) -> int:
        """As a socket's: how many bytes were taken, at least one. Raises BlockingIOError if none could be."""
        self._require_trusted()
        self.flush()
        taken = 0
        for plain in _with_small_joined(buffers, ENCRYPTED_BYTES_MAX):
            self._encrypt(plain)
            taken += len(plain)
        if not flags & socket.MSG_MORE:
            self._send_encrypted()
        return taken

    def _require_trusted(self) -> None:
        """Nothing goes to, or is taken from, a server whose CA was taken back."""
        if not self.is_trusted():
            raise ConnectionAbortedError(errno.ECONNABORTED, "a CA was taken back since this connection began")

    def send_stored(self, stored: StoredBytes, position: int) -> int:
        """As StoredBytes.send_to. It is read a step at a time, which is in the processor's cache as it is encrypted."""
        self.flush()
        room = self._received[:STEP_BYTES]  # nothing lies there between two receives
        start, end = position, min(position + ENCRYPTED_BYTES_MAX, len(stored))
        while position < end and (count := stored.read_into(room[: end - position], position)):
            self._encrypt(room[:count])
            position += count
        self._send_encrypted()
        return position - start

    def _encrypt(self, plain: memoryview) -> None:
        write, encrypted = self._tls.write, self._outgoing
        start = 0
        try:
            while start < len(plain):
                start += write(plain[start:])  # a record
                if encrypted.pending >= STEP_BYTES:
                    self._owed.append(memoryview(encrypted.read()))
        except ssl.SSLError as error:
            raise _failed("the peer", error) from error

    def _send_encrypted(self) -> None:
        if self._outgoing.pending:
            self._owed.append(memoryview(self._outgoing.read()))
        with suppress(BlockingIOError):
            self.flush()

    @property
    def owes(self) -> bool:
        return bool(self._owed)

    def flush(self) -> None:
        """Send what is owed. Raises BlockingIOError if the socket does not take all of it."""
        while self._owed:
            sent = self._connection.sendmsg(self._owed)
            while self._owed and sent >= len(self._owed[0]):
                sent -= len(self._owed.popleft())
            if sent:
                self._owed[0] = self._owed[0][sent:]

    def fileno(self) -> int:
        return self._connection.fileno()

    def setblocking(self, waits: bool) -> None:  # noqa: FBT001 (as of a socket)
        self._waits = waits
        self._connection.setblocking(waits)

    def settimeout(self, timeout_s: float | None) -> None:
        self._waits = timeout_s != 0
        self._connection.settimeout(timeout_s)

    def shutdown(self, how: int) -> None:
        self._connection.shutdown(how)

    def close(self) -> None:
        """Give its memory back, too, whoever still refers to this: Python's collector could leave it for an hour
        (process.memory)."""
        self._connection.close()
        self._open = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._received = memoryview(b"")
        self._owed.clear()

    def __enter__(self) -> TlsChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _as_grpc_has_it(kind: str, name: str) -> str:
    """OpenSSL writes `2001:DB8:0:0:0:0:0:1` where everybody else writes `2001:db8::1`."""
    with suppress(ValueError):
        return str(ip_address(name)) if kind == "IP Address" else name
    return name


def _with_small_joined(buffers: Iterable[Buffer], bytes_max: int) -> Iterator[memoryview]:
    """Their first bytes, with small buffers that follow each other in one: a record each would cost more than a copy.
    Large ones are not copied."""
    small: list[memoryview] = []
    for buffer in buffers:
        part = memoryview(buffer)[:bytes_max]
        bytes_max -= len(part)
        if len(part) < RECORD_BYTES:
            small.append(part)
        else:
            if small:
                yield memoryview(b"".join(small))
                small = []
            yield part
        if not bytes_max:
            break
    if small:
        yield memoryview(b"".join(small))


def _failed(peer: str, error: ssl.SSLError) -> AuthenticationFailed:
    why = getattr(error, "verify_message", "") or (error.reason or str(error)).replace("_", " ").lower()
    return AuthenticationFailed(
        f"TLS with {peer} failed: {why}. Is security.mode the same on both sides, and are both certificates signed by "
        "security.tls.ca.file, for the hosts that are dialled?"
    )
