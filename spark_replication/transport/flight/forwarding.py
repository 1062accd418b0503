"""Calls that one process of ours takes, and another answers: what passes between the two, and both ends of it.

The process that takes them (transport.flight.door_process) has the port, gRPC and a limit of memory. It looks at
nothing: whose call it is, and what the caller may do, the process that answers decides as if it had the port itself.

A channel is a pair of sockets. It has one call at a time:

```
port's process                                          controller's process
lengths, ForwardedCall, body of the action   ───▶       looks whose call it is, and only then reads the body
                                             ◀───       lengths, ForwardedAnswer, messages
```

Rules:
- Of a call whose caller has proven nothing, at most STRANGER_BYTES_MAX are held here. What is more is read and dropped.
- Calls with a larger body are carried out one at a time, on one thread. The C library keeps what is free at the end of
  each thread's heap (process.memory), and malloc_trim gives back none of that: 16 calls of 15 MiB left 180 MiB.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
from pyarrow import flight

from spark_replication.errors import InvalidRequest, Overloaded

CHANNELS_MAX = 256  # calls at a time
CHANNEL_WAIT_S = 5.0
STRANGER_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 16 << 20
LARGE_WAIT_S = 5.0
HEAD_BYTES_MAX = 1 << 20  # gRPC takes 16 KiB of headers
PIECE_BYTES = 64 << 10

_LENGTHS = struct.Struct("!II")  # of the head, and of what follows it

_UNAUTHENTICATED = "unauthenticated"
_REFUSED = "refused"


class ForwardedCall(msgspec.Struct, frozen=True, array_like=True):
    #: The name of a flight.FlightMethod.
    method: str
    headers: Mapping[str, Sequence[str]]
    #: Where it comes from, as gRPC names it. Empty of a call that is refused whatever it holds.
    peer: str = ""
    #: The name in its certificate.
    identity: bytes = b""
    #: The mark of the CAs by which that was trusted; empty if none was asked for.
    ca: str = ""
    action: str = ""


class ForwardedAnswer(msgspec.Struct, frozen=True, array_like=True):
    #: The lengths of the messages.
    lengths: Sequence[int] = ()
    #: Whether the caller was let in.
    is_known: bool = False
    #: The kind of Flight's error, and its text. Empty if it is none.
    error: str = ""
    text: str = ""


_call = msgspec.msgpack.Decoder(ForwardedCall)
_answer = msgspec.msgpack.Decoder(ForwardedAnswer)


class LocalChannel:
    """One end of a channel. Any failure of it is an OSError; it is of no more use then."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reading = connection.makefile("rb")

    def send(self, head: msgspec.Struct, parts: Sequence[bytes | memoryview] = ()) -> None:
        encoded = msgspec.msgpack.encode(head)
        length = sum(map(len, parts))
        lengths = _LENGTHS.pack(len(encoded), length)
        if length <= PIECE_BYTES:
            self._connection.sendall(b"".join([lengths, encoded, *parts]))
            return
        self._connection.sendall(lengths + encoded)
        for part in parts:
            self._connection.sendall(part)

    def receive_call(self) -> tuple[ForwardedCall, Body]:
        head, left = self._received()
        return _decoded(head, _call), Body(self, left)

    def receive_answer(self) -> tuple[ForwardedAnswer, list[bytes]]:
        head, _ = self._received()
        answer = _decoded(head, _answer)
        return answer, [self.read(length) for length in answer.lengths]

    def read(self, length: int) -> bytes:
        found = self._reading.read(length)
        if len(found) < length:
            raise ConnectionResetError("the other end of a local channel is gone")
        return found

    def close(self) -> None:
        self._reading.close()
        self._connection.close()

    def _received(self) -> tuple[bytes, int]:
        head, left = _LENGTHS.unpack(self.read(_LENGTHS.size))
        if head > HEAD_BYTES_MAX:
            raise ConnectionAbortedError(f"a head of {head} bytes came over a local channel")
        return self.read(head), left


def _decoded(head: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    try:
        return decoder.decode(head)
    except msgspec.MsgspecError as error:
        raise ConnectionAbortedError(f"a head that nobody can read came over a local channel: {error}") from error


class Body:
    """The body of an action, which is still in the channel."""

    def __init__(self, channel: LocalChannel, length: int) -> None:
        self._channel = channel
        self.bytes = length
        self.held_bytes = 0
        self._left = length

    def read(self) -> bytes:
        self.held_bytes, self._left = self._left, 0
        return self._channel.read(self.held_bytes)

    def skip(self) -> None:
        while self._left:
            piece = min(self._left, PIECE_BYTES)
            self._left -= piece
            self._channel.read(piece)


class LargeCalls:
    """Thread-safe."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="door-large")  # it begins with the first one

    def answered(self, answer: Callable[[], list[bytes]]) -> list[bytes]:
        """Raises Overloaded if those before it take too long."""
        if not self._free.acquire(timeout=LARGE_WAIT_S):
            raise Overloaded("another large request is under way, and they are carried out one at a time: try again")
        try:
            answering = self._thread.submit(answer)
            try:
                return answering.result()
            finally:
                del answering  # an error holds this frame, and would hold itself by it
        finally:
            self._free.release()

    def close(self) -> None:
        self._thread.shutdown(wait=False)


class _Info(NamedTuple):
    """As a flight.CallInfo."""

    method: flight.FlightMethod


class ForwardedContext:
    """As a flight.ServerCallContext, of a call that the other process has taken."""

    def __init__(self, call: ForwardedCall) -> None:
        self._call = call
        self._middleware: dict[str, object] = {}
        #: Whether its caller was let in.
        self.is_known = False

    def check(self, middleware: Mapping[str, flight.ServerMiddlewareFactory]) -> None:
        """Raises what the middleware does."""
        info = _Info(flight.FlightMethod[self._call.method])
        for name, factory in middleware.items():
            self._middleware[name] = factory.start_call(info, self._call.headers)

    def peer(self) -> str:
        return self._call.peer

    def peer_identity(self) -> bytes:
        return self._call.identity

    def get_middleware(self, name: str) -> Any:
        return self._middleware.get(name)


class Answerer:
    """The end that answers."""

    def __init__(self, answered: Callable[[ForwardedContext, ForwardedCall, Body], list[bytes]]) -> None:
        """answered: returns the messages, or raises a Flight error."""
        self._answered = answered

    def serve(self, channel: LocalChannel) -> None:
        """Answer one call after the other, until the channel fails."""
        while True:
            call, body = channel.receive_call()
            context = ForwardedContext(call)
            try:
                messages = self._answered(context, call, body)
            except flight.FlightUnauthenticatedError as error:
                messages, kind, text = [], _UNAUTHENTICATED, str(error)
            except flight.FlightError as error:
                messages, kind, text = [], _REFUSED, str(error)
            else:
                kind = text = ""
            body.skip()
            channel.send(ForwardedAnswer([*map(len, messages)], context.is_known, kind, text), messages)


class Forwarder:
    """The end that takes calls. Thread-safe."""

    def __init__(self, opened: Callable[[], socket.socket]) -> None:
        """opened: returns a new channel's end."""
        self._opened = opened
        self._slots = threading.BoundedSemaphore(CHANNELS_MAX)
        self._idle: list[LocalChannel] = []  # the one that was used last is used next

    def asked(self, call: ForwardedCall, body: bytes | memoryview = b"") -> tuple[list[bytes], bool]:
        """The messages of the answer, and whether its caller was let in. Raises Flight's errors."""
        length = len(body)
        if length + len(call.action) > BODY_BYTES_MAX:
            raise flight.FlightServerError(
                str(InvalidRequest(f"a request has at most {BODY_BYTES_MAX} bytes, and this one {length}"))
            )
        if not self._slots.acquire(timeout=CHANNEL_WAIT_S):
            raise flight.FlightServerError(
                str(Overloaded(f"{CHANNELS_MAX} calls have been under way for {CHANNEL_WAIT_S:.0f} s: try again"))
            )
        try:
            answer, messages = self._exchanged(call, body)
        finally:
            self._slots.release()
        if answer.error == _UNAUTHENTICATED:
            raise flight.FlightUnauthenticatedError(answer.text)
        if answer.error:
            raise flight.FlightServerError(answer.text)
        return messages, answer.is_known

    def _exchanged(self, call: ForwardedCall, body: bytes | memoryview) -> tuple[ForwardedAnswer, list[bytes]]:
        channel = None
        try:
            channel = self._taken()
            channel.send(call, [body])
            answered = channel.receive_answer()
        except OSError as error:
            if channel is not None:
                channel.close()
            raise flight.FlightUnavailableError(f"the controller of this port is going: {error}") from error
        self._idle.append(channel)
        return answered

    def _taken(self) -> LocalChannel:
        try:
            return self._idle.pop()
        except IndexError:
            return LocalChannel(self._opened())
