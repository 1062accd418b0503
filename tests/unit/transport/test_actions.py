"""Requests over Flight, with a real server in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    StartFailed,
)
from spark_replication.messages.actions import Action
from spark_replication.messages.descriptions import GetMetadata, Metadata
from spark_replication.messages.envelope import Done
from spark_replication.messages.guarding import RenewLease
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.transport.flight.actions import ActionServer, call, handled, handled_of, host_of
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY

TIMEOUT_MS = 10_000
DOUBLE = Action("double", ProducerId, ProducerId, lambda _asked: ())
REFUSE = Action("refuse", GetMetadata, Done, lambda _asked: ())
HANG = Action("hang", InitProducer, Done, lambda _asked: ())
WHO = Action("who", GetMetadata, Metadata, lambda _asked: ())
BREAK = Action("break", GetMetadata, Done, lambda _asked: ())
DESCRIPTOR = flight.FlightDescriptor.for_path("orders", "0")
ROWS = pa.record_batch({"number": [1]})


def refuse(_request: GetMetadata) -> Done:
    raise NotController("the controller is at 127.0.0.1:9. Detail: none. ask there")


def breaks(_request: GetMetadata) -> Done:
    raise ValueError("in /a/path of ours")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def server(release: threading.Event) -> Iterator[ActionServer]:
    def hang(_request: InitProducer) -> Done:
        release.wait(10)
        return Done()

    started = ActionServer(
        "127.0.0.1",
        [
            handled(DOUBLE, lambda request: ProducerId(producer=request.producer * 2)),
            handled(REFUSE, refuse),
            handled(HANG, hang),
            handled(BREAK, breaks),
            handled_of(WHO, lambda _asked, caller: Metadata(cluster_id=caller, brokers={}, topics=())),
        ],
        rights=Rights(NO_SECURITY),
    )
    yield started
    release.set()
    started.stop(5)


@pytest.fixture
def client(server: ActionServer) -> Iterator[flight.FlightClient]:
    with NO_SECURITY.client(f"127.0.0.1:{server.port}") as found:
        yield found


def test_a_request_is_answered(client: flight.FlightClient) -> None:
    assert call(client, DOUBLE, ProducerId(producer=21), TIMEOUT_MS) == ProducerId(producer=42)
    assert {action.type for action in client.list_actions()} == {
        *("double", "refuse", "hang", "who", "break"),
        *("describe_tokens", "introduce", "prove"),
    }


def test_a_handler_may_know_who_asks(client: flight.FlightClient) -> None:
    assert call(client, WHO, GetMetadata(), TIMEOUT_MS).cluster_id == "127.0.0.1"


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:53210", "127.0.0.1"),
        ("ipv6:%5B::1%5D:42012", "[::1]"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_a_caller_is_named_by_its_host(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_a_refusal_is_the_same_error_on_both_sides(client: flight.FlightClient) -> None:
    with pytest.raises(NotController) as caught:
        call(client, REFUSE, GetMetadata(), TIMEOUT_MS)
    assert caught.value.message.startswith("the controller is at 127.0.0.1:9")
    assert caught.value.stale_routes


@pytest.mark.parametrize(
    ("action", "body"),
    [("dubble", b"{}"), ("double", b"{}"), ("double", b'{"producer":1,"ephoc":2}'), ("double", b"\xff")],
)
def test_a_wrong_request_is_refused(client: flight.FlightClient, action: str, body: bytes) -> None:
    with pytest.raises(flight.FlightError, match=r"^INVALID_REQUEST: "):
        list(client.do_action((action, body)))


def test_a_version_that_is_not_known_is_refused(client: flight.FlightClient) -> None:
    with pytest.raises(flight.FlightError, match=r"^UNSUPPORTED_VERSION: "):
        list(client.do_action(("double", b'{"v":2,"producer":1}')))


def test_an_answer_of_another_kind_is_refused(client: flight.FlightClient) -> None:
    with pytest.raises(InvalidRequest):
        call(client, Action(DOUBLE.name, ProducerId, RenewLease, lambda _asked: ()), ProducerId(producer=1), TIMEOUT_MS)


def test_no_answer_in_time(client: flight.FlightClient) -> None:
    with pytest.raises(RequestTimedOut) as caught:
        call(client, HANG, InitProducer(), 50)
    assert caught.value.maybe_written


def test_a_question_without_an_answer_has_changed_nothing(client: flight.FlightClient) -> None:
    """So it does not hide why the calls before it failed (FailedTries)."""
    with pytest.raises(RequestTimedOut) as caught:
        call(client, HANG._replace(only_asks=True), InitProducer(), 50)
    assert not caught.value.maybe_written


def test_nobody_there() -> None:
    with NO_SECURITY.client("127.0.0.1:1") as client, pytest.raises(BrokerNotAvailable) as caught:
        call(client, HANG, InitProducer(), TIMEOUT_MS)
    assert not caught.value.maybe_written


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8"])
def test_nothing_listens_beyond_loopback(host: str) -> None:
    with pytest.raises(InvalidConfig, match=host):
        ActionServer(host, [], rights=Rights(NO_SECURITY))


def test_a_port_that_is_taken(server: ActionServer) -> None:
    with pytest.raises(StartFailed, match=str(server.port)):
        ActionServer("127.0.0.1", [], rights=Rights(NO_SECURITY), port=server.port)


def written(client: flight.FlightClient) -> None:
    writer, _ = client.do_put(DESCRIPTOR, ROWS.schema)
    with writer:
        writer.write_batch(ROWS)


def exchanged(client: flight.FlightClient) -> None:
    writer, reader = client.do_exchange(DESCRIPTOR)
    with writer:
        reader.read_chunk()


CALLS: dict[str, Callable[[flight.FlightClient], object]] = {
    "do_put": written,
    "do_exchange": exchanged,
    "do_get": lambda client: client.do_get(flight.Ticket(b"x")).read_all(),
    "get_flight_info": lambda client: client.get_flight_info(DESCRIPTOR),
    "get_schema": lambda client: client.get_schema(DESCRIPTOR),
    "list_flights": lambda client: list(client.list_flights()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_not_served_is_refused_by_name(client: flight.FlightClient, name: str) -> None:
    with pytest.raises((flight.FlightError, OSError), match=rf"^INVALID_REQUEST: {name} is not served") as refused:
        CALLS[name](client)
    assert "Traceback" not in str(refused.value)


def test_an_error_that_nobody_expected_is_logged_and_not_told(
    client: flight.FlightClient, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(flight.FlightError, match=r"^UNKNOWN_SERVER_ERROR: ") as refused:
        list(client.do_action(("break", b"{}")))
    assert "Traceback" not in str(refused.value)
    assert "/a/path" not in str(refused.value)
    (logged,) = [each for each in caplog.records if each.exc_info]
    assert "ValueError: in /a/path of ours" in str(logged.exc_text or caplog.text)
