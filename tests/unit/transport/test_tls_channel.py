"""Frames over TLS, one thread reading while another writes, over real sockets."""

from __future__ import annotations

import gc
import os
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from spark_replication.config import settings_from
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable
from spark_replication.messages.replication import ErrorFrame
from spark_replication.storage.disk.files import LocalFiles, StoredRange
from spark_replication.transport.proofs.caller import ANYBODY
from spark_replication.transport.security.security import Security, read_security
from spark_replication.transport.sockets.frames import (
    RECEIVE_BYTES,
    ROOM_BYTES_MIN,
    FrameReceiver,
    Outbox,
    encoded,
    hang_up,
    send,
)
from spark_replication.transport.sockets.tls_channel import (
    ENCRYPTED_BYTES_MAX,
    RECORD_BYTES,
    RECORD_BYTES_MAX,
    STEP_BYTES,
    TlsChannel,
)
from tests.unit.transport.certificates import Authority, Files, tls_settings

HOST = "127.0.0.1"
TIMEOUT_S = 20.0
STUCK_MS = 5_000
FRAME_BYTES_MAX = 8 << 20


class Parties:
    def __init__(self, directory: Path) -> None:
        self.ours, self.theirs = Authority(directory), Authority(directory, "another CA")
        self.broker = self.security(self.ours, self.ours.issue("broker"))

    def security(self, authority: Authority, files: Files | None, *, mutual: bool = True) -> Security:
        return read_security(settings_from(tls_settings(authority, files, mutual=mutual and files is not None)))


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties(tmp_path_factory.mktemp("parties"))


class Server(threading.Thread):
    """Accepts one connection, and tells what came of its handshake."""

    def __init__(self, connection: socket.socket, security: Security, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(daemon=True)
        self.channel: TlsChannel | None = None
        self.error: Exception | None = None
        self._connection, self._security, self._timeout_s = connection, security, timeout_s
        self.start()

    def run(self) -> None:
        try:
            channel = self._security.accepted(self._connection, self._timeout_s)
            assert isinstance(channel, TlsChannel)
            self.channel = channel
        except (OSError, AuthenticationFailed, BrokerNotAvailable) as error:
            self.error = error
            self._connection.close()

    def outcome(self) -> Exception | None:
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        return self.error


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pair(parties: Parties, sockets: tuple[socket.socket, socket.socket]) -> tuple[TlsChannel, TlsChannel]:
    server = Server(sockets[1], parties.broker)
    client = parties.broker.connected(sockets[0], HOST, TIMEOUT_S)
    assert isinstance(client, TlsChannel)
    assert server.outcome() is None
    assert server.channel is not None
    return client, server.channel


@pytest.mark.parametrize(
    ("names", "known_as"),
    [
        (("2001:DB8:0:0::1", "alice"), "2001:db8::1"),  # as gRPC has it: rights are granted to one spelling
        (("10.0.0.1",), "10.0.0.1"),
        (("alice", "2001:db8::1"), "alice"),
    ],
)
def test_a_peer_has_one_name_over_frames_and_flight(
    parties: Parties,
    sockets: tuple[socket.socket, socket.socket],
    names: tuple[str, ...],
    known_as: str,
) -> None:
    own = parties.ours.issue("the common name", *names)
    server = Server(sockets[1], parties.broker)
    Security.of(tls_settings(parties.ours, own, mutual=True)).connected(sockets[0], HOST, TIMEOUT_S)
    assert server.outcome() is None
    assert server.channel is not None
    assert server.channel.peer_name == known_as


def test_frames_of_any_size_go_both_ways_at_the_same_time(pair: tuple[TlsChannel, TlsChannel]) -> None:
    """Neither side waits for the other: each reads while what it has to say does not go."""
    sizes = [0, 1, 100, RECEIVE_BYTES - 1, RECEIVE_BYTES, 5 * RECEIVE_BYTES, 3, 0, 16 << 10, RECEIVE_BYTES // 2] * 3
    sent = [(ErrorFrame(error="E", message=str(place)), bytes([place]) * size) for place, size in enumerate(sizes)]
    received: dict[int, list[tuple[object, bytes]]] = {0: [], 1: []}

    def exchange(place: int) -> None:
        channel = pair[place]
        channel.setblocking(False)
        receiver = FrameReceiver(channel, FRAME_BYTES_MAX)
        outbox = Outbox(channel)
        for frame, payload in sent:
            half = len(payload) // 2
            outbox.put(encoded(frame, payload[:half], memoryview(payload)[half:]))
        happens = select.poll()
        while True:
            outbox.flush()
            if not outbox and len(received[place]) == len(sent):
                return  # nothing comes any more that a poll could tell of
            happens.register(channel.fileno(), select.POLLIN | (select.POLLOUT if outbox else 0))
            happens.poll(1000 * TIMEOUT_S)
            received[place] += [(frame, bytes(payload)) for frame, payload in receiver.receive()]

    threads = [threading.Thread(target=exchange, args=(place,), daemon=True) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert received[0] == sent
    assert received[1] == sent


@pytest.mark.parametrize(
    "size", [0, 4_000, 16 << 10, RECEIVE_BYTES - 100, RECEIVE_BYTES, RECEIVE_BYTES + ROOM_BYTES_MIN]
)
def test_after_a_receive_nothing_is_left_that_no_poll_tells_of(pair: tuple[TlsChannel, TlsChannel], size: int) -> None:
    """As a follower reads: it waits for the socket, and OpenSSL must not sit on the frame at the end of a record."""
    receiver, waiting = FrameReceiver(pair[1], FRAME_BYTES_MAX), select.poll()
    waiting.register(pair[1].fileno(), select.POLLIN)
    assert receiver.receive() == []  # what came with the handshake is asked for once, as a connection's first frame is
    small = encoded(ErrorFrame(error="E", message="the last"))
    writer = threading.Thread(
        target=send, args=(pair[0], [*encoded(ErrorFrame(error="E", message=""), b"x" * size), *small * 5]), daemon=True
    )
    writer.start()
    found = 0
    while found < 6:
        assert waiting.poll(STUCK_MS), f"{found} of 6 frames came, and the rest is stuck"
        found += len(receiver.receive())
    writer.join()


@pytest.mark.parametrize("waits", [False, True])
def test_all_that_has_come_is_received_unless_the_next_call_of_the_kernel_could_wait(
    pair: tuple[TlsChannel, TlsChannel], *, waits: bool
) -> None:
    client, server = pair
    send(client, [bytes(100_000)])
    room = memoryview(bytearray(200_000))
    with pytest.raises(ssl.SSLWantReadError):  # nothing came with the handshake
        server.recv_into(room)
    server._received = server._received[:RECORD_BYTES_MAX]
    server.setblocking(waits)
    assert server.recv_into(room) == (RECORD_BYTES if waits else 100_000)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[bytes], StoredRange]:
    def stored(data: bytes) -> StoredRange:
        """A range of a file that goes on behind it."""
        path = tmp_path / "data"
        path.write_bytes(b"before" + data + b"behind")
        found = LocalFiles(open_files_max=1).stored(path, len(data), len(b"before"))
        assert isinstance(found, StoredRange)
        return found

    return stored


@pytest.mark.parametrize("size", [1, RECORD_BYTES, STEP_BYTES + 1, 3 * ENCRYPTED_BYTES_MAX + 5])
@pytest.mark.parametrize("waits", [True, False])
def test_stored_bytes_are_encrypted_from_their_file_as_far_as_the_socket_takes_them(
    pair: tuple[TlsChannel, TlsChannel], stored: Callable[[bytes], StoredRange], size: int, *, waits: bool
) -> None:
    data = os.urandom(size)
    ours, receiver = pair[0], FrameReceiver(pair[1], FRAME_BYTES_MAX)
    frame = ErrorFrame(error="E", message="m")
    outbox = Outbox(ours)
    outbox.put([*encoded(frame, stored(data), b"after"), *encoded(frame, b"next")])
    ours.setblocking(waits)
    found: list[bytes] = []

    def receive() -> None:
        while len(found) < 2:
            found.extend(bytes(payload) for _, payload in receiver.receive())

    receiving = threading.Thread(target=receive, daemon=True)
    if not waits:
        outbox.flush()
        assert outbox or size <= ENCRYPTED_BYTES_MAX, "the peer takes nothing yet"
        assert sum(map(len, ours._owed)) <= ENCRYPTED_BYTES_MAX + (ENCRYPTED_BYTES_MAX // RECORD_BYTES + 2) * 32
    receiving.start()
    happens = select.poll()
    happens.register(ours.fileno(), select.POLLOUT)
    while outbox:
        assert happens.poll(STUCK_MS)
        outbox.flush()
    receiving.join(TIMEOUT_S)
    assert found == [data + b"after", b"next"]


def test_a_frame_and_its_stored_bytes_are_sent_together(
    pair: tuple[TlsChannel, TlsChannel], stored: Callable[[bytes], StoredRange]
) -> None:
    """As sendfile's MSG_MORE: a packet for the header alone would wake the peer for nothing."""
    outbox = Outbox(pair[0])
    outbox.put(encoded(ErrorFrame(error="E", message="m"), stored(bytes(STEP_BYTES // 2))))
    sent: list[int] = []
    pair[0]._connection = cast(socket.socket, Counted(pair[0]._connection, sent))
    outbox.flush()
    assert len(sent) == 1


class Counted:
    def __init__(self, connection: socket.socket, sent: list[int]) -> None:
        self._connection, self._sent = connection, sent

    def sendmsg(self, buffers: Iterable[memoryview]) -> int:
        self._sent.append(self._connection.sendmsg(buffers))
        return self._sent[-1]


def test_what_cannot_be_read_any_more_is_sent_as_zeros_and_the_connection_goes_on(
    pair: tuple[TlsChannel, TlsChannel], stored: Callable[[bytes], StoredRange]
) -> None:
    found = stored(b"x" * 100_000)
    os.truncate(found._path, len(b"before") + 40_000)
    frame = ErrorFrame(error="E", message="m")
    send(pair[0], [*encoded(frame, found), *encoded(frame, b"next")])
    receiver = FrameReceiver(pair[1], FRAME_BYTES_MAX)
    payloads: list[bytes] = []
    while len(payloads) < 2:
        payloads += [bytes(payload) for _, payload in receiver.receive()]
    assert payloads == [b"x" * 40_000 + bytes(60_000), b"next"]


class Corked:
    """A client's socket that sends the first of its flights, and keeps all that follows until it is told."""

    def __init__(self, connection: socket.socket) -> None:
        self.recv_into, self.settimeout = connection.recv_into, connection.settimeout
        self._connection = connection
        self._kept: list[bytes] | None = None

    def sendall(self, data: bytes) -> None:
        if self._kept is None:
            self._connection.sendall(data)
            self._kept = []
        else:
            self._kept.append(data)

    def sendmsg(self, buffers: Iterable[bytes]) -> int:
        data = b"".join(buffers)
        self.sendall(data)
        return len(data)

    def uncork(self) -> None:
        assert self._kept is not None
        self._connection.sendall(b"".join(self._kept))


def test_a_frame_that_comes_with_the_end_of_the_handshake_is_read(
    parties: Parties, sockets: tuple[socket.socket, socket.socket]
) -> None:
    server, corked = Server(sockets[1], parties.broker), Corked(sockets[0])
    client = parties.broker.connected(cast(socket.socket, corked), HOST, TIMEOUT_S)
    send(client, encoded(ErrorFrame(error="E", message="m"), b"payload"))
    corked.uncork()
    assert server.outcome() is None
    assert server.channel is not None
    server.channel.settimeout(STUCK_MS / 1000)
    receiver = FrameReceiver(server.channel, FRAME_BYTES_MAX)
    assert [bytes(payload) for _, payload in receiver.receive()] == [b"payload"]


def test_a_record_that_comes_byte_by_byte_is_no_frame_until_it_is_whole(
    parties: Parties, sockets: tuple[socket.socket, socket.socket]
) -> None:
    middle, theirs = socket.socketpair()
    with middle, theirs:
        server = Server(theirs, parties.broker)
        relay = threading.Thread(target=_relay_slowly, args=(sockets[1], middle), daemon=True)
        back = threading.Thread(target=_relay_slowly, args=(middle, sockets[1]), daemon=True)
        relay.start()
        back.start()
        client = parties.broker.connected(sockets[0], HOST, TIMEOUT_S)
        send(client, encoded(ErrorFrame(error="E", message="m"), b"payload"))
        assert server.outcome() is None
        assert server.channel is not None
        receiver = FrameReceiver(server.channel, FRAME_BYTES_MAX)
        found: list[bytes] = []
        while not found:
            found = [bytes(payload) for _, payload in receiver.receive()]
        assert found == [b"payload"]
        hang_up(client)
        with pytest.raises(BrokerNotAvailable, match="closed"):
            received_for_ever(receiver)


def received_for_ever(receiver: FrameReceiver) -> None:
    while True:
        receiver.receive()


def _relay_slowly(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # the test is over
        while data := source.recv(1):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def test_what_is_changed_on_the_way_is_noticed(pair: tuple[TlsChannel, TlsChannel], sockets: object) -> None:
    assert isinstance(sockets, tuple)
    sockets[0].sendall(b"\x17\x03\x03\x00\x20" + b"z" * 32)
    with pytest.raises(AuthenticationFailed, match="TLS with the peer failed"):
        received_for_ever(FrameReceiver(pair[1], FRAME_BYTES_MAX))


def refused(
    sockets: tuple[socket.socket, socket.socket], server: Security, client: Security, host: str = HOST
) -> tuple[str, str]:
    """Why, as the client says, and as the server says. TLS 1.3's client hears of it with the first answer."""
    accepting = Server(sockets[1], server)
    said = ""
    try:
        channel = client.connected(sockets[0], host, TIMEOUT_S)
        room = memoryview(bytearray(100))
        while True:
            try:
                if channel.recv_into(room) == 0:
                    break
            except ssl.SSLWantReadError:
                continue
    except (AuthenticationFailed, BrokerNotAvailable, OSError) as error:
        said = str(error)
    return said, str(accepting.outcome())


def test_a_client_without_a_certificate_is_refused(
    parties: Parties, sockets: tuple[socket.socket, socket.socket]
) -> None:
    client, server = refused(sockets, parties.broker, parties.security(parties.ours, None))
    assert "certificate required" in client
    assert "did not return a certificate" in server


def test_a_client_of_another_ca_is_refused(parties: Parties, sockets: tuple[socket.socket, socket.socket]) -> None:
    stranger = read_security(settings_from(tls_settings(parties.ours, parties.theirs.issue("stranger"), mutual=True)))
    client, server = refused(sockets, parties.broker, stranger)
    assert "unknown ca" in client
    assert "unable to get local issuer certificate" in server


def test_a_client_whose_certificate_has_expired_is_refused(
    parties: Parties, sockets: tuple[socket.socket, socket.socket]
) -> None:
    client, server = refused(
        sockets, parties.broker, parties.security(parties.ours, parties.ours.issue("old", days=-1))
    )
    assert "certificate expired" in client
    assert "certificate has expired" in server


def test_a_server_of_another_ca_is_refused(parties: Parties, sockets: tuple[socket.socket, socket.socket]) -> None:
    stranger = parties.security(parties.theirs, parties.theirs.issue("stranger-server"), mutual=False)
    client, server = refused(sockets, stranger, parties.broker)
    assert "self-signed certificate in certificate chain" in client
    assert "unknown ca" in server


def test_a_server_for_another_host_is_refused(parties: Parties, sockets: tuple[socket.socket, socket.socket]) -> None:
    client, _ = refused(sockets, parties.broker, parties.broker, host="127.0.0.9")
    assert "IP address mismatch" in client


def test_who_does_not_speak_tls_is_told_so(parties: Parties, sockets: tuple[socket.socket, socket.socket]) -> None:
    server = Server(sockets[1], parties.broker)
    sockets[0].sendall(b"\0\0\0\x20 this is a plain Hello")
    assert "its peer does not: set security.mode=tls" in str(server.outcome())


@pytest.mark.parametrize("garbage", [b"\x16garbage" * 100, b"\x16\x03\x01\xff\xff" + b"\0" * 70_000, b"\x16\x03\x01"])
def test_garbage_in_the_handshake_ends_it(
    parties: Parties, sockets: tuple[socket.socket, socket.socket], garbage: bytes
) -> None:
    server = Server(sockets[1], parties.broker)
    sockets[0].sendall(garbage)
    sockets[0].shutdown(socket.SHUT_WR)
    assert isinstance(server.outcome(), (AuthenticationFailed, BrokerNotAvailable))


def test_a_handshake_that_never_ends_is_given_up(
    parties: Parties, sockets: tuple[socket.socket, socket.socket]
) -> None:
    """However often the peer sends another byte."""
    server = Server(sockets[1], parties.broker, timeout_s=0.3)
    stop = threading.Event()

    def drip() -> None:
        sockets[0].sendall(b"\x16\x03\x01\x7f\xff")
        while not stop.wait(0.02):
            try:
                sockets[0].sendall(b"\0")
            except OSError:
                return

    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    try:
        assert isinstance(server.outcome(), (BrokerNotAvailable, TimeoutError, AuthenticationFailed))
    finally:
        stop.set()
        dripping.join()


def test_a_connection_is_known_while_the_cas_are_trusted_that_its_handshake_was_made_with(
    parties: Parties, tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    """Its certificate may be of a CA that has gone between its handshake and its first frame."""
    trusted = tmp_path / "trusted"
    trusted.write_bytes(parties.ours.file.read_bytes())
    settings = tls_settings(parties.ours, parties.ours.issue("server"), mutual=True)
    security = read_security(settings_from({**settings, "security.tls.ca.file": str(trusted)}))
    server = Server(sockets[1], security)
    parties.broker.connected(sockets[0], HOST, TIMEOUT_S)
    assert server.outcome() is None
    assert server.channel is not None
    assert security.is_known(security.caller_at(server.channel, ANYBODY).ca)
    trusted.write_bytes(parties.theirs.file.read_bytes())
    assert security.certificates is not None
    assert security.certificates.look()
    assert not security.is_known(security.caller_at(server.channel, ANYBODY).ca)


def test_what_is_closed_holds_nothing_whoever_refers_to_it(pair: tuple[TlsChannel, TlsChannel]) -> None:
    """A connection's objects refer to each other in a circle, which Python's collector may leave for an hour."""
    gc.disable()
    try:
        for channel in pair:
            held = weakref.ref(channel._tls)
            channel.close()
            assert held() is None
            assert len(channel._received) == 0
            with pytest.raises(OSError, match="the channel is closed"):
                channel.recv_into(memoryview(bytearray(100_000)))
            with pytest.raises(OSError, match="the channel is closed"):
                channel.sendmsg([b"x"])
            channel.close()
    finally:
        gc.enable()
