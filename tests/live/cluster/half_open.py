"""`python -m tests.live.cluster.half_open ADDRESS CALLS BYTES`: so many calls of Flight, each over a connection of its
own, that announce a message of so many bytes and send all of it but its end, as fast as HTTP/2's windows let them."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time

DEADLINE_S = 30.0
PIECE_BYTES = 16_384
WINDOW_BYTES = 65_535
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ASKED = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/arrow.flight.protocol.FlightService/DoAction"),
    (b":authority", b"x"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def framed(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


class HalfOpen:
    def __init__(self, address: tuple[str, int], length: int) -> None:
        self._connection = socket.create_connection(address, timeout=DEADLINE_S)
        headers = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in ASKED)
        self._to_send = PREFACE + framed(SETTINGS, 0, 0) + framed(HEADERS, END_HEADERS, 1, headers)
        self._message = b"\0" + struct.pack("!I", length)
        self._received = b""
        self._windows = [WINDOW_BYTES, WINDOW_BYTES]  # of the connection, and of its call
        self.left = length - 1_000
        self._connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def goes_on(self) -> None:
        try:
            self._hear()
            self._say()
        except OSError:  # hung up on
            self.left = 0

    def _hear(self) -> None:
        try:
            said = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        if not said:
            raise ConnectionResetError
        self._received += said
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags, stream = self._received[3], self._received[4], self._received[5:9]
            self._heard(kind, flags, int.from_bytes(stream, "big"), self._received[9 : 9 + length])
            self._received = self._received[9 + length :]

    def _heard(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._windows[min(stream, 1)] += int.from_bytes(payload, "big")
        elif kind == PING and not flags & ACK:
            self._to_send += framed(PING, ACK, 0, payload)
        elif kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack("!HI", payload):
                if name == INITIAL_WINDOW_SIZE:
                    self._windows[1] += value - WINDOW_BYTES
            self._to_send += framed(SETTINGS, ACK, 0)

    def _say(self) -> None:
        size = min(PIECE_BYTES, self.left, *self._windows)
        if size > 0 and len(self._to_send) < PIECE_BYTES:
            piece = (self._message + bytes(size))[:size]
            self._message = b""
            self._to_send += framed(DATA, 0, 1, piece)
            self._windows = [each - size for each in self._windows]
            self.left -= size
        try:
            self._to_send = self._to_send[self._connection.send(self._to_send) :] if self._to_send else b""
        except BlockingIOError:
            return


def main(address: str, calls: str, length: str) -> None:
    host, _, port = address.rpartition(":")
    held = [HalfOpen((host, int(port)), int(length)) for _ in range(int(calls))]
    deadline_s = time.monotonic() + DEADLINE_S
    while (open_ones := [each for each in held if each.left]) and time.monotonic() < deadline_s:
        select.select(open_ones, open_ones, [], 0.1)
        for each in open_ones:
            each.goes_on()


if __name__ == "__main__":
    main(*sys.argv[1:])
