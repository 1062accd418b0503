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
from tests.unit.transport.replicas import TIMEOUT_S, eventually

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
                (known,) = strangers_of(server)._known
            assert not is_hung_up(mine)
            assert not is_hung_up(theirs)
    call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS)
    assert [*strangers_of(server)._known] == [known], "over the same connection"


def test_who_becomes_known_during_a_look_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Strangers()
    found.known("ipv4:127.0.0.1:1")

    def looked() -> list[int]:
        found.known("ipv4:127.0.0.1:2")
        return []

    monkeypatch.setattr(strangers, "_descriptors", looked)
    with few_descriptors():
        found.look(1)
    assert [*found._known] == ["ipv4:127.0.0.1:2"], "and who is gone is not"
    found.close()


def test_while_there_are_enough_everybody_stays(server: ActionServer) -> None:
    with connected(server) as stranger, few_descriptors(more=200):
        assert not are_scarce()
        strangers_of(server).look(server.port)
        assert not is_hung_up(stranger)


def test_a_call_that_is_not_let_in_makes_nobody_known(server: ActionServer) -> None:
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client, pytest.raises(flight.FlightError):
        client.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    assert not strangers_of(server)._known


def test_those_who_are_known_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "KNOWN_MAX", 3)
    found = Strangers()
    for number in range(10):
        found.known(f"ipv4:127.0.0.1:{number}")
    assert [*found._known] == [f"ipv4:127.0.0.1:{number}" for number in (7, 8, 9)]
    found.close()


@pytest.mark.parametrize(
    ("host", "name"),
    [("127.0.0.1", "ipv4:127.0.0.1:7"), ("::ffff:127.0.0.1", "ipv4:127.0.0.1:7"), ("::1", "ipv6:%5B::1%5D:7")],
)
def test_peers_have_grpcs_names(host: str, name: str) -> None:
    assert strangers._named(host, 7) == name


# How many connections of a principal stay


@pytest.fixture
def peers(server: ActionServer) -> Iterator[list[socket.socket]]:
    found = [connected(server) for _ in range(3)]
    eventually(lambda: len([*strangers._connections(server.port)]) == 3, "they are taken")
    yield found
    for connection in found:
        connection.close()


def named(connection: socket.socket) -> str:
    return f"ipv4:127.0.0.1:{connection.getsockname()[1]}"


def test_a_principal_has_so_many_connections_that_stay(
    server: ActionServer, peers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "LOOK_AGAIN_S", 0.0)
    found = Strangers()

    def known(peer: int, principal: str = "alice", at_most: int | None = 2) -> bool:
        return found.known(named(peers[peer]), principal, port=server.port, at_most=at_most)

    assert [known(0), known(1), known(2), known(0), known(2)] == [True, True, False, True, False]
    assert known(2, "bob"), "each has its own"
    assert not known(2, "alice"), "and bob's is not hers, were it at his port"
    peers[0].close()
    eventually(lambda: known(2), "what has ended counts no longer")
    assert found._counts == {"alice": 2}
    assert not found.known("ipv4:127.0.0.1:1", "alice", port=server.port, at_most=2)
    assert found.known("ipv4:127.0.0.1:1", "alice", port=server.port, at_most=None), "the quota was taken back"
    found.close()


def test_what_has_ended_is_looked_for_once_in_a_while_and_not_without_descriptors(
    server: ActionServer, peers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    really = strangers._descriptors

    def looked() -> list[int]:
        looks.append(1)
        return really()

    monkeypatch.setattr(strangers, "_descriptors", looked)
    monkeypatch.setattr(strangers, "LOOK_AGAIN_S", 3_600.0)
    found = Strangers()
    for _ in range(3):
        assert not found.known(named(peers[0]), "alice", port=server.port, at_most=0)
    assert len(looks) == 1
    found.close()
    monkeypatch.setattr(strangers, "LOOK_AGAIN_S", 0.0)
    another = Strangers()
    assert another.known(named(peers[0]), "alice", port=server.port, at_most=1)
    with few_descriptors():
        assert not another.known(named(peers[1]), "alice", port=server.port, at_most=1)
    assert another._known == {named(peers[0]): "alice"}, "none is taken for gone since it could not be looked at"
    another.close()
