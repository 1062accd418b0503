"""Who is hung up while descriptors run out, and who is not. In this process, whose limit is lowered for a moment."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from pyarrow import flight

from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.process.files import lowest_free
from spark_replication.transport.flight import listening, strangers
from spark_replication.transport.flight.actions import ActionServer, call, handled
from spark_replication.transport.flight.strangers import Strangers, are_scarce
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY
from tests.unit.transport.replicas import TIMEOUT_S
from tests.waiting import eventually

TIMEOUT_MS = 10_000


@contextmanager
def few_descriptors(*, more: int = 0) -> Iterator[None]:
    """So few that they are scarce, unless there are `more`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = lowest_free()
    assert free is not None
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 4 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ActionServer]:
    monkeypatch.setattr(listening, "LOOK_S", 0.02)
    found = ActionServer(
        "127.0.0.1",
        [handled(INIT_PRODUCER, lambda _: ProducerId(producer=1, epoch=0))],
        rights=Rights(NO_SECURITY),
    )
    yield found
    found.stop(TIMEOUT_S)


def strangers_of(server: ActionServer) -> Strangers:
    assert isinstance(server._listening, listening.Listening)
    return server._listening._strangers


def connected(server: ActionServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)


def is_hung_up(connection: socket.socket) -> bool:
    """gRPC says something first to whoever connects."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while connection.recv(1 << 16):
            continue
        return True
    return False


def test_who_has_made_a_call_stays_and_who_has_not_is_hung_up(server: ActionServer) -> None:
    client = NO_SECURITY.client(f"127.0.0.1:{server.port}")
    call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS)
    with socket.create_server(("127.0.0.1", 0)) as other, connected(server) as stranger:
        mine = socket.create_connection(other.getsockname())
        theirs, _ = other.accept()
        one, another = socket.socketpair()
        with mine, theirs, one, another:
            with few_descriptors():
                eventually(lambda: is_hung_up(stranger), "the stranger is hung up")
                (known,) = strangers_of(server).known.peers()
            assert not is_hung_up(mine)
            assert not is_hung_up(theirs)
    call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS)
    assert strangers_of(server).known.peers() == {known}, "over the same connection"


def test_who_becomes_known_during_a_look_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Strangers()
    found.known.let_in("ipv4:127.0.0.1:1")

    def looked() -> list[int]:
        found.known.let_in("ipv4:127.0.0.1:2")
        return []

    monkeypatch.setattr(strangers, "_descriptors", looked)
    with few_descriptors():
        found.look(1)
    assert found.known.peers() == {"ipv4:127.0.0.1:2"}, "and who is gone is not"
    found.close()


def test_while_there_are_enough_everybody_stays(server: ActionServer) -> None:
    with connected(server) as stranger, few_descriptors(more=200):
        assert not are_scarce()
        strangers_of(server).look(server.port)
        assert not is_hung_up(stranger)


def test_a_call_that_is_not_let_in_makes_nobody_known(server: ActionServer) -> None:
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client, pytest.raises(flight.FlightError):
        client.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    assert not strangers_of(server).known.peers()
