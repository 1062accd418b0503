"""Who is known at a Flight port, and how many connections of a principal are: as the process that has the port finds
them, and as another one does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Set

import pytest

from spark_replication.transport.flight import known_peers, strangers
from spark_replication.transport.flight.known_peers import KnownPeers, as_grpc_names, peers_by_kernel
from tests.unit.transport.replicas import TIMEOUT_S
from tests.unit.transport.test_strangers import few_descriptors
from tests.waiting import eventually

There = Callable[[int], Set[str] | None]
HOSTS = ["127.0.0.1", "::1"]


class Port:
    """A port that takes connections, and three that it has taken."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family)
        self.number: int = self._server.getsockname()[1]
        self.peers = [socket.create_connection((host, self.number), timeout=TIMEOUT_S) for _ in range(3)]
        self.taken = [self._server.accept()[0] for _ in self.peers]
        self.names = [as_grpc_names(*each.getsockname()[:2]) for each in self.peers]

    def close(self, place: int) -> None:
        self.peers[place].close()
        self.taken[place].close()

    def close_all(self) -> None:
        for place in range(len(self.peers)):
            self.close(place)
        self._server.close()


@pytest.fixture(params=HOSTS)
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    try:
        found = Port(request.param)
    except OSError:
        pytest.skip(f"this host has no {request.param}")
    yield found
    found.close_all()


@pytest.fixture(params=[strangers._peers, peers_by_kernel], ids=["its own", "by the kernel"])
def there(request: pytest.FixtureRequest) -> There:
    found: There = request.param
    return found


def test_the_peers_of_a_port_are_found(port: Port, there: There) -> None:
    assert there(port.number) == set(port.names)
    port.close(0)
    eventually(lambda: there(port.number) == set(port.names[1:]), "one has gone")
    assert there(1) == set(), "nobody is at another port"


def test_a_principal_has_so_many_connections(port: Port, there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_peers, "LOOK_AGAIN_S", 0.0)
    found, names = KnownPeers(there), port.names

    def known(peer: int, principal: str = "alice", at_most: int | None = 2) -> bool:
        return found.let_in(names[peer], principal, port=port.number, at_most=at_most)

    assert [known(0), known(1), known(2), known(0), known(2)] == [True, True, False, True, False]
    assert known(2, "bob"), "each has its own"
    assert not known(2, "alice"), "and bob's is not hers, were it at his port"
    port.close(0)
    eventually(lambda: known(2), "what has ended counts no longer")
    assert found.peers() == set(names[1:])
    assert not found.let_in("ipv4:127.0.0.1:1", "alice", port=port.number, at_most=2)
    assert found.let_in("ipv4:127.0.0.1:1", "alice", port=port.number, at_most=None), "the quota was taken back"


def test_what_has_ended_is_looked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def looked(port: int) -> set[str]:
        looks.append(port)
        return set()

    monkeypatch.setattr(known_peers, "LOOK_AGAIN_S", 3_600.0)
    found = KnownPeers(looked)
    for _ in range(3):
        assert not found.let_in("ipv4:127.0.0.1:1", "alice", port=7, at_most=0)
    assert looks == [7]


@pytest.mark.parametrize("why", ["no descriptors", "no kernel"])
def test_none_is_taken_for_gone_while_nobody_can_tell(port: Port, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(known_peers, "LOOK_AGAIN_S", 0.0)
    found = KnownPeers(strangers._peers if why == "no descriptors" else lambda _port: None)
    assert found.let_in(port.names[0], "alice", port=port.number, at_most=1)
    with few_descriptors():
        assert not found.let_in(port.names[1], "alice", port=port.number, at_most=1)
    assert found.peers() == {port.names[0]}


def test_those_who_are_known_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_peers, "KNOWN_MAX", 3)
    found = KnownPeers(lambda _port: None)
    for number in range(10):
        found.let_in(f"ipv4:127.0.0.1:{number}")
    assert found.peers() == {f"ipv4:127.0.0.1:{number}" for number in (7, 8, 9)}


@pytest.mark.parametrize(
    ("host", "name"),
    [("127.0.0.1", "ipv4:127.0.0.1:7"), ("::ffff:127.0.0.1", "ipv4:127.0.0.1:7"), ("::1", "ipv6:%5B::1%5D:7")],
)
def test_peers_have_grpcs_names(host: str, name: str) -> None:
    assert as_grpc_names(host, 7) == name
