"""Whom a Flight server hears: every kind of call is asked for the token before its handler runs; TLS on both ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable, InvalidConfig, ReplicationError
from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.transport.flight.actions import ActionServer, call, error_of_flight, handled
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY, Security, read_security
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.test_security import SECRET, token_settings

TIMEOUT_MS = 5_000
SCHEMA = pa.schema([("x", pa.int64())])
BATCH = pa.record_batch([pa.array([1])], schema=SCHEMA)
DESCRIPTOR = flight.FlightDescriptor.for_path("orders", "0")


class Recording(ActionServer):
    """Notes whatever handler runs."""

    def __init__(self, security: Security, host: str = "127.0.0.1") -> None:
        self.heard: list[str] = []
        super().__init__(host, [handled(INIT_PRODUCER, self._answer)], rights=Rights(security))

    def _answer(self, _request: InitProducer) -> ProducerId:
        self.heard.append("do_action")
        return ProducerId(producer=7)

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        self.heard.append("list_actions")
        return [("a", "b")]

    def do_put(self, context: object, descriptor: object, reader: Any, writer: Any) -> None:
        self.heard.append("do_put")
        reader.read_all()

    def do_get(self, context: object, ticket: object) -> flight.RecordBatchStream:
        self.heard.append("do_get")
        return flight.RecordBatchStream(pa.Table.from_batches([BATCH]))

    def do_exchange(self, context: object, descriptor: object, reader: Any, writer: Any) -> None:
        self.heard.append("do_exchange")
        writer.begin(SCHEMA)

    def list_flights(self, context: object, criteria: object) -> Iterator[flight.FlightInfo]:
        self.heard.append("list_flights")
        yield flight.FlightInfo(SCHEMA, DESCRIPTOR, [], -1, -1)

    def get_flight_info(self, context: object, descriptor: object) -> flight.FlightInfo:
        self.heard.append("get_flight_info")
        return flight.FlightInfo(SCHEMA, DESCRIPTOR, [], -1, -1)

    def get_schema(self, context: object, descriptor: object) -> flight.SchemaResult:
        self.heard.append("get_schema")
        return flight.SchemaResult(SCHEMA)


def put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, _ = client.do_put(DESCRIPTOR, SCHEMA, options)
    writer.write_batch(BATCH)
    writer.close()


def exchange(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, reader = client.do_exchange(DESCRIPTOR, options)
    writer.done_writing()
    reader.read_all()


def refusal(ask: Callable[[], object]) -> ReplicationError:
    """As our own clients understand it. pyarrow's get_schema knows no Flight errors."""
    with pytest.raises((flight.FlightError, OSError, ReplicationError)) as refused:
        ask()
    error = refused.value
    return error if isinstance(error, ReplicationError) else error_of_flight(error)


Call = Callable[[flight.FlightClient, flight.FlightCallOptions], object]
CALLS: dict[str, Call] = {
    "do_action": lambda client, options: list(client.do_action(("init_producer", b"{}"), options)),
    "list_actions": lambda client, options: client.list_actions(options),
    "do_put": put,
    "do_get": lambda client, options: client.do_get(flight.Ticket(b"t"), options).read_all(),
    "do_exchange": exchange,
    "list_flights": lambda client, options: list(client.list_flights(b"", options)),
    "get_flight_info": lambda client, options: client.get_flight_info(DESCRIPTOR, options),
    "get_schema": lambda client, options: client.get_schema(DESCRIPTOR, options),
}


@pytest.fixture
def secured(tmp_path: Path) -> Security:
    """Of each test its own: it keeps tickets by address, and the next server may have the port of the one before."""
    return read_security(settings_from(token_settings(tmp_path)))


@pytest.fixture
def server(secured: Security) -> Iterator[Recording]:
    started = Recording(secured)
    yield started
    started.stop(5)


def test_every_call_of_flight_is_tried_below() -> None:
    calls = {name for name in vars(flight.FlightServerBase) if name.startswith(("do_", "list_", "get_"))}
    assert calls == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shown", [None, "Bearer another", f"Basic {SECRET}", f"Bearer {SECRET}x"])
def test_no_call_is_heard_without_the_token(server: Recording, name: str, shown: str | None) -> None:
    headers = [] if shown is None else [(b"authorization", shown.encode())]
    options = flight.FlightCallOptions(timeout=TIMEOUT_MS / 1000, headers=headers)
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        error = refusal(lambda: CALLS[name](client, options))
    assert isinstance(error, AuthenticationFailed)
    assert not error.retriable
    assert ("no token" if shown is None else "another token") in error.message
    assert server.heard == []
    assert SECRET not in str(error)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"get_schema"}))
def test_any_flight_client_that_sends_the_header_is_served(server: Recording, name: str) -> None:
    options = flight.FlightCallOptions(
        timeout=TIMEOUT_MS / 1000, headers=[(b"authorization", f"Bearer {SECRET}".encode())]
    )
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        CALLS[name](client, options)
    assert server.heard == [name]


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"get_schema"}))
def test_our_own_clients_send_it_with_every_call(server: Recording, secured: Security, name: str) -> None:
    with secured.client(f"127.0.0.1:{server.port}") as client:
        CALLS[name](client, flight.FlightCallOptions(timeout=TIMEOUT_MS / 1000))
    assert server.heard == [name]


def test_a_server_elsewhere_needs_clients_that_prove_who_they_are(secured: Security) -> None:
    with pytest.raises(InvalidConfig, match=r"0\.0\.0\.0.*without security"):
        Recording(NO_SECURITY, "0.0.0.0")
    started = Recording(replace(secured, token_in_clear=True), "0.0.0.0")
    try:
        with secured.client(f"127.0.0.1:{started.port}") as client:
            assert answered(client)
    finally:
        started.stop(5)


def answered(client: flight.FlightClient) -> bool:
    return call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS).producer == 7


class Parties:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ours, self.theirs = Authority(directory), Authority(directory, "another CA")
        self.broker, self.client = self.ours.issue("broker"), self.ours.issue("client")
        self.stranger = self.theirs.issue("stranger")

    def security(self, **more: object) -> Security:
        settings = {**tls_settings(self.ours, self.broker, mutual=True)}
        settings |= {name.replace("__", "."): value for name, value in more.items()}  # type: ignore[misc]
        return read_security(settings_from(settings))


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties(tmp_path_factory.mktemp("parties"))


@pytest.fixture
def tls_server(parties: Parties) -> Iterator[Recording]:
    started = Recording(parties.security())
    yield started
    started.stop(5)


def test_both_sides_show_certificates(parties: Parties, tls_server: Recording) -> None:
    client = read_security(settings_from(tls_settings(parties.ours, parties.client, mutual=True)))
    with client.client(f"127.0.0.1:{tls_server.port}") as connected:
        assert answered(connected)


def refusals(parties: Parties) -> dict[str, tuple[Security, type[ReplicationError], str]]:
    """A peer that hangs up may also be a broker that ends: that one stays retriable."""
    return {
        "no certificate": (
            read_security(settings_from(tls_settings(parties.ours, None))),
            BrokerNotAvailable,
            "it wants TLS, or another certificate",
        ),
        "a certificate of another CA": (
            read_security(settings_from(tls_settings(parties.ours, parties.stranger, mutual=True))),
            BrokerNotAvailable,
            "it wants TLS, or another certificate",
        ),
        "trust in another CA": (
            read_security(settings_from(tls_settings(parties.theirs, parties.client, mutual=True))),
            AuthenticationFailed,
            "certificate verify failed",
        ),
        "plain text": (NO_SECURITY, BrokerNotAvailable, "it wants TLS"),
    }


@pytest.mark.parametrize("case", ["no certificate", "a certificate of another CA", "trust in another CA", "plain text"])
def test_who_is_not_known_gets_a_clear_error_and_the_next_is_served(
    parties: Parties, tls_server: Recording, case: str
) -> None:
    stranger, kind, why = refusals(parties)[case]
    address = f"127.0.0.1:{tls_server.port}"
    with stranger.client(address) as client:
        error = refusal(lambda: answered(client))
    assert isinstance(error, kind), error
    assert why in str(error)
    assert not error.maybe_written
    assert tls_server.heard == []
    with parties.security().client(address) as client:
        assert answered(client)


def test_tls_to_a_plain_port_is_a_clear_error(parties: Parties) -> None:
    started = Recording(NO_SECURITY)
    try:
        with parties.security().client(f"127.0.0.1:{started.port}") as client:
            error = refusal(lambda: answered(client))
        assert isinstance(error, AuthenticationFailed)
        assert "Is security.mode the same on both sides" in error.message
        with NO_SECURITY.client(f"127.0.0.1:{started.port}") as client:
            assert answered(client)
    finally:
        started.stop(5)


def test_a_certificate_for_another_host_is_refused(parties: Parties) -> None:
    files = parties.ours.issue("elsewhere", "10.9.9.9")
    started = Recording(read_security(settings_from(tls_settings(parties.ours, files))))
    try:
        with parties.security().client(f"127.0.0.1:{started.port}") as client:
            error = refusal(lambda: answered(client))
        assert isinstance(error, AuthenticationFailed)
        assert "is not in peer certificate" in error.message
    finally:
        started.stop(5)


def test_a_token_goes_over_tls_as_well(parties: Parties) -> None:
    """Then no client needs a certificate."""
    token = token_settings(parties.directory)
    serving = {**tls_settings(parties.ours, parties.broker), **token, "security.mode": "tls"}
    started = Recording(read_security(settings_from(serving)), "0.0.0.0")
    asking = {**tls_settings(parties.ours, None), **token, "security.mode": "tls"}
    try:
        address = f"127.0.0.1:{started.port}"
        with read_security(settings_from(asking)).client(address) as client:
            assert answered(client)
        with read_security(settings_from(tls_settings(parties.ours, None))).client(address) as client:
            error = refusal(lambda: answered(client))
        assert isinstance(error, AuthenticationFailed)
        assert "no token" in error.message
    finally:
        started.stop(5)


def test_a_connection_that_is_refused_is_no_matter_of_security(parties: Parties) -> None:
    with parties.security().client("127.0.0.1:1") as client:
        error = refusal(lambda: answered(client))
    assert isinstance(error, BrokerNotAvailable)
    assert "Connection refused" in error.message
