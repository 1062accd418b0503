"""Programs that take the ports of a broker. They claim all that it proves, and keep all that they hear."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

import spark_replication as sr
from spark_replication.client.asking.descriptions import BrokerDescription
from spark_replication.errors import ReplicationError
from spark_replication.messages.frames import Frame
from spark_replication.messages.lane import ClientFrame, WelcomeFrame
from spark_replication.messages.replication import ChallengeFrame, HelloFrame, ProofFrame
from spark_replication.transport.sockets.frames import FrameReceiver, encoded
from tests.unit.client.tcp_proxy import TcpProxy
from tests.unit.transport.test_flight_client import SQUATTERS, Squatter
from tests.waiting import eventually

NONCE = b"n" * 32
OWN_TICKET = "t"  # in CLAIM


class Tap(TcpProxy):
    """Passes connections on, and keeps what goes through."""

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.heard: list[bytes] = []
        super().__init__(target_port, port)

    def passing(self, data: bytes) -> None:
        self.heard.append(data)

    def close(self) -> None:
        self.down()
        self._held.close()


class FalseLeader:
    """Takes any proof and gives any, and welcomes whoever comes."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        #: What it was sent, without the TLS around it.
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="false-leader", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._meet, args=(connection,), name="false-leader", daemon=True).start()

    def _meet(self, connection: socket.socket) -> None:
        with suppress(OSError, ReplicationError), connection:
            channel = connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)
            receiver = FrameReceiver(channel, 1 << 20)
            hello = receiver.receive_first(lambda: None)
            assert isinstance(hello, (HelloFrame, ClientFrame))
            self.heard.append(repr(hello).encode())
            if hello.nonce is not msgspec.UNSET:
                _say(channel, ChallengeFrame(nonce=NONCE))
                self.heard.append(repr(receiver.receive_first(lambda: None)).encode())
                _say(channel, ProofFrame(proof=NONCE))
            _say(channel, WelcomeFrame(batch_bytes_max=1 << 20))
            while data := channel.recv(1 << 16):
                self.heard.append(data)


def _say(channel: socket.socket, frame: Frame) -> None:
    channel.sendall(b"".join(map(bytes, encoded(frame))))


class Impostor:
    """It has both ports of a broker that has ended, and what somebody has who does not belong to the cluster."""

    def __init__(self, broker: BrokerDescription, security: sr.Security) -> None:
        tls = security.tls
        answers, _ = SQUATTERS["claims to know"]
        self.flight = Squatter(answers, certificate=None if tls is None else tls.certificate)
        self.leader = FalseLeader(None if tls is None else tls.as_server)
        self.taps = [
            _at_once(self.flight.port, broker.port),
            _at_once(self.leader.port, broker.replication_port),
        ]

    @property
    def is_dialled(self) -> bool:
        """At both ports."""
        return all(tap.heard for tap in self.taps)

    @property
    def heard(self) -> bytes:
        """As it came, and once more what is to be understood of it."""
        return b"".join([*(data for tap in self.taps for data in tap.heard), self.understood])

    @property
    def understood(self) -> bytes:
        """Headers, bodies and frames, without what encodes or encrypts them. Empty if none came."""
        has_calls = self.flight.bodies or self.flight.overhears.headers
        return b"".join([self.flight.heard.encode() if has_calls else b"", *self.leader.heard])

    @property
    def authorizations(self) -> list[str]:
        """The headers of that name."""
        return [shown for headers in self.flight.overhears.headers for shown in headers.get("authorization", ())]

    def close(self) -> None:
        for tap in self.taps:
            tap.close()
        self.leader.close()
        threading.Thread(target=self.flight.shutdown, name="squatter-shutdown", daemon=True).start()


def _at_once(target_port: int, port: int) -> Tap:
    """As soon as its owner has ended."""
    taps: list[Tap] = []

    def taken() -> bool:
        with suppress(OSError):
            taps.append(Tap(target_port, port))
        return bool(taps)

    eventually(taken, f"port {port} is free")
    return taps[0]


@contextmanager
def impostor(broker: BrokerDescription, security: sr.Security) -> Iterator[Impostor]:
    found = Impostor(broker, security)
    try:
        yield found
    finally:
        found.close()
