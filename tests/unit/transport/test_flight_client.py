"""Our Flight clients: whoever has a server's port learns no token, is not believed, and a server may start again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable, ClientClosed
from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.envelope import to_json
from spark_replication.messages.introducing import Admission, Challenge
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.transport.flight.actions import ActionServer, call, handled
from spark_replication.transport.proofs import flight_client, tickets
from spark_replication.transport.proofs.flight_client import Held, KnownClient, Purse
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.security.certificates import Certificate
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY, Security, read_security
from tests.unit.transport.test_security import SECRET, broker_settings, token_settings
from tests.waiting import eventually

TIMEOUT_MS = 10_000


class Server(ActionServer):
    """Notes what header each call came with."""

    def __init__(self, security: Security, port: int = 0) -> None:
        super().__init__("127.0.0.1", [handled(INIT_PRODUCER, self._answer)], rights=Rights(security), port=port)

    def _answer(self, _asked: InitProducer) -> ProducerId:
        return ProducerId(producer=7)


def ask(client: flight.FlightClient) -> int:
    return call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS).producer


@pytest.fixture(params=[False, True], ids=["of a client", "of a broker"])
def security(request: pytest.FixtureRequest, tmp_path: Path) -> Security:
    given = token_settings(tmp_path)
    return read_security(settings_from({**given, **broker_settings(tmp_path)} if request.param else given))


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for server in started:
        threading.Thread(target=server.shutdown, daemon=True).start()


class Waiting(ActionServer):
    """Answers once it may."""

    def __init__(self) -> None:
        self.came, self.may_answer = threading.Event(), threading.Event()
        super().__init__("127.0.0.1", [handled(INIT_PRODUCER, self._answer)], rights=Rights(NO_SECURITY), port=0)

    def _answer(self, _asked: InitProducer) -> ProducerId:
        self.came.set()
        assert self.may_answer.wait(TIMEOUT_MS / 1000)
        return ProducerId(producer=7)


class Dialled(flight.FlightClient):  # type: ignore[misc]  # pyarrow has no types
    """Notes that it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Overhears(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self) -> None:
        super().__init__()
        self.headers: list[Mapping[str, list[str]]] = []

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> None:
        self.headers.append(headers)


class Squatter(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Has the port of a server that has ended, and keeps all that it hears."""

    def __init__(
        self, answers: Mapping[str, bytes] | None = None, port: int = 0, certificate: Certificate | None = None
    ) -> None:
        self.overhears = Overhears()
        self.bodies: list[bytes] = []
        self.answers = answers or {}
        scheme, own = ("grpc", None) if certificate is None else ("grpc+tls", [(certificate.chain, certificate.key)])
        super().__init__(f"{scheme}://127.0.0.1:{port}", tls_certificates=own, middleware={"overhears": self.overhears})

    def do_action(self, context: object, action: flight.Action) -> list[bytes]:
        self.bodies.append(action.body.to_pybytes())
        if action.type not in self.answers:
            raise flight.FlightServerError("what is that?")
        return [self.answers[action.type]]

    @property
    def heard(self) -> str:
        return repr((self.overhears.headers, self.bodies))


CHALLENGE = to_json(Challenge(nonce=b"n" * 32, said_ms=1, stamp=b"s" * 32))
CLAIM = to_json(
    Admission(proof=Token("guessed").proof("server", None, b""), ticket="t", lasts_ms=1)  # type: ignore[arg-type]
)
YES = {"init_producer": b'{"producer":7}'}
SQUATTERS: dict[str, tuple[dict[str, bytes], type[Exception]]] = {
    "knows no such action": ({}, BrokerNotAvailable),
    "says yes to everything": (
        {"introduce": b"{}", "prove": b"{}", "init_producer": b'{"producer":7}'},
        BrokerNotAvailable,
    ),
    "claims to know": (
        {"introduce": CHALLENGE, "prove": CLAIM, "init_producer": b'{"producer":7}'},
        AuthenticationFailed,
    ),
}


@pytest.mark.parametrize("squatter", SQUATTERS)
def test_whoever_has_the_port_learns_no_token_and_is_not_believed(
    security: Security, servers: list[Any], squatter: str
) -> None:
    answers, error = SQUATTERS[squatter]
    servers.append(found := Squatter(answers))
    with security.client(f"127.0.0.1:{found.port}") as client, pytest.raises(error):
        ask(client)
    assert SECRET not in found.heard
    assert "of-brokers-alone" not in found.heard
    assert "init_producer" not in found.heard
    assert len(found.bodies) <= 2, "the introduction, and no call"


def test_a_client_that_was_known_gives_a_squatter_nothing_of_use(security: Security, servers: list[Any]) -> None:
    """The ticket was of the server that has ended."""
    first = Server(security)
    port = first.port
    with security.client(f"127.0.0.1:{port}") as client:
        assert ask(client) == 7
        first.stop(5)
        servers.append(squatter := Squatter({}, port))
        with pytest.raises(BrokerNotAvailable, match="what is that"):
            ask(client)
    assert "Ticket " in squatter.heard
    assert SECRET not in squatter.heard
    shown = squatter.overhears.headers[0]["authorization"][0]
    servers.append(other := Server(security))
    options = flight.FlightCallOptions(headers=[(b"authorization", shown.encode())], timeout=10)
    with flight.connect(f"grpc://127.0.0.1:{other.port}") as thief, pytest.raises(flight.FlightUnauthenticatedError):
        list(thief.do_action(("init_producer", b"{}"), options))


def test_a_server_that_starts_again_at_its_port_is_served_by_the_same_client(
    security: Security, servers: list[Any]
) -> None:
    first = Server(security)
    with security.client(f"127.0.0.1:{first.port}") as client:
        assert ask(client) == 7
        first.stop(5)
        servers.append(Server(security, first.port))
        assert ask(client) == 7


def test_one_introduction_serves_all_clients_of_a_process(
    security: Security, servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted = 0
    true = tickets.Tickets.admitted

    def counted(self: tickets.Tickets, prove: Any) -> Admission:
        nonlocal admitted
        admitted += 1
        return true(self, prove)

    monkeypatch.setattr(tickets.Tickets, "admitted", counted)
    servers.append(server := Server(security))
    for _ in range(3):
        with security.of_cluster(lambda: "").client(f"127.0.0.1:{server.port}") as client:
            ask(client)
            ask(client)
    assert admitted == 1


def test_a_ticket_is_renewed_before_it_runs_out(
    security: Security, servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_client, "RENEWED_AT", 0.0)
    servers.append(server := Server(security))
    with security.client(f"127.0.0.1:{server.port}") as client:
        assert [ask(client) for _ in range(3)] == [7, 7, 7]


def test_a_ticket_that_is_over_at_once_is_not_asked_for_again_and_again(
    security: Security, servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "TICKET_MS", 0)
    servers.append(server := Server(security))
    with security.client(f"127.0.0.1:{server.port}") as client, pytest.raises(AuthenticationFailed, match="not good"):
        ask(client)


def test_where_nothing_is_proven_nothing_is_asked_for(servers: list[Any]) -> None:
    servers.append(server := Server(NO_SECURITY))
    with NO_SECURITY.client(f"127.0.0.1:{server.port}") as client:
        assert ask(client) == 7


def test_a_client_with_a_token_and_a_server_without_one_say_so(security: Security, servers: list[Any]) -> None:
    servers.append(server := Server(NO_SECURITY))
    with (
        security.client(f"127.0.0.1:{server.port}") as client,
        pytest.raises(AuthenticationFailed, match=r"none is set here: compare security\.mode"),
    ):
        ask(client)


def test_a_server_that_does_not_answer_is_given_up_in_the_calls_own_time(security: Security) -> None:
    with security.client("127.0.0.1:1") as client, pytest.raises(BrokerNotAvailable):
        call(client, INIT_PRODUCER, InitProducer(), 500)


def test_a_purse_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Purse, "SERVERS_MAX", 2)
    purse, token = Purse(), Token(SECRET)
    held = {address: Held(f"of {address}", token.mark, float("inf")) for address in ("a:1", "b:1", "c:1")}
    for address, each in held.items():
        purse.put(address, each)
    assert [purse.of(address, token) for address in held] == [None, held["b:1"], held["c:1"]]
    purse.drop("b:1", "another")
    assert purse.of("b:1", token) == held["b:1"]
    purse.drop("b:1", "of b:1")
    assert purse.of("b:1", token) is None
    assert purse.of("c:1", Token("another")) is None, "it was given for another token"


def test_an_answer_of_several_messages_is_none(security: Security, servers: list[Any]) -> None:
    class Twice(Squatter):
        def do_action(self, context: object, action: flight.Action) -> list[bytes]:
            return [CHALLENGE, CHALLENGE]

    servers.append(found := Twice())
    with security.client(f"127.0.0.1:{found.port}") as client, pytest.raises(BrokerNotAvailable, match="2 messages"):
        ask(client)


def test_closing_leaves_a_call_alone_that_is_under_way_and_lets_no_other_begin(servers: list[Any]) -> None:
    """pyarrow frees what a call goes by, so a close on another thread ended the process in some of a thousand cases."""
    servers.append(server := Waiting())
    dialled: list[weakref.ref[Dialled]] = []

    def dial(middleware: Sequence[flight.ClientMiddlewareFactory]) -> Dialled:
        found = Dialled(f"grpc://127.0.0.1:{server.port}", middleware=[*middleware])
        dialled.append(weakref.ref(found))
        return found

    client = KnownClient(f"127.0.0.1:{server.port}", dial, identity=None, certificates=None)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(ask, client)
        assert server.came.wait(TIMEOUT_MS / 1000)
        client.close()
        (under_way,) = dialled
        found = under_way()
        assert found is not None
        assert not found.is_closed
        del found
        for call_again in (ask, lambda closed: closed.do_get(flight.Ticket(b""))):
            with pytest.raises(ClientClosed, match="open another"):
                call_again(client)
        server.may_answer.set()
        assert answer.result(TIMEOUT_MS / 1000) == 7
    eventually(lambda: under_way() is None, "the last call lets go of the connection")
    client.close()
