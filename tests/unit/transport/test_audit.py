"""What is told of requests that change something, and of clients that ask for what is not theirs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyarrow import flight

from spark_replication.errors import AuthenticationFailed, NotController
from spark_replication.messages.actions import ADMIN_REQUESTS, METADATA, RENEW_LEASE
from spark_replication.messages.descriptions import GetMetadata, Metadata
from spark_replication.messages.envelope import to_json
from spark_replication.messages.guarding import LeaseAnswer, RenewLease
from spark_replication.messages.records import Refusal
from spark_replication.messages.requests import DeleteTopic, RequestAnswer
from spark_replication.transport import audit
from spark_replication.transport.actions import ActionServer, handled
from spark_replication.transport.rights import Rights
from spark_replication.transport.security import Security
from spark_replication.transport.token import Token
from spark_replication.transport.tokens import Tokens
from tests.unit.transport.test_who_may_ask import Mode

DELETE = ADMIN_REQUESTS[DeleteTopic]


@pytest.fixture(params=["token", "tls"])
def mode(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mode:
    return Mode(tmp_path_factory.mktemp("audit"), request.param)


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)


@pytest.fixture
def told() -> Iterator[list[Any]]:
    before, handler = audit.log.level, Told()
    audit.log.setLevel(logging.INFO)  # as an attribute it would not count: loggers remember what they are to do
    audit.log.addHandler(handler)
    yield handler.lines
    audit.log.removeHandler(handler)
    audit.log.setLevel(before)


def delete(request: DeleteTopic) -> RequestAnswer:
    if request.topic == "elsewhere":
        raise NotController("another commands")
    refused = Refusal(error="UNKNOWN_TOPIC_OR_PARTITION", message="no such topic", retriable=False)
    return RequestAnswer(errors={} if request.topic == "orders" else {request.topic: refused})


@pytest.fixture
def server(mode: Mode) -> Iterator[ActionServer]:
    started = ActionServer(
        "127.0.0.1",
        [
            handled(DELETE, delete),
            handled(METADATA, lambda _asked: Metadata(cluster_id="", brokers={}, topics=())),
            handled(RENEW_LEASE, lambda _asked: LeaseAnswer(broker_id=1, broker_epoch=0, pid=1)),
        ],
        rights=Rights(mode.server),
    )
    yield started
    threading.Thread(target=started.shutdown, daemon=True).start()


def ask(server: ActionServer, security: Any, action: str, body: bytes) -> None:
    with security.client(f"127.0.0.1:{server.port}") as client, suppress(flight.FlightError):
        list(client.do_action((action, body), flight.FlightCallOptions(timeout=10)))


def test_a_change_is_told_with_who_asked_for_it_and_what_became_of_it(
    server: ActionServer, mode: Mode, told: list[Any]
) -> None:
    for topic in ("orders", "others", "elsewhere"):
        ask(server, mode.client, DELETE.name, to_json(DeleteTopic(topic=topic)))
    ask(server, mode.broker, DELETE.name, b"no request")
    assert [each.outcome for each in told] == [
        "done",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_CONTROLLER",
        "INVALID_REQUEST",
    ]
    assert [each.who.split()[0] for each in told] == ["client"] * 3 + ["broker"]
    assert {each.host for each in told} == {"127.0.0.1"}
    assert '"topic":"orders"' in told[0].asked
    assert "asked for delete_topic: done" in told[0].getMessage()


def test_a_client_that_orders_a_broker_is_told_and_whoever_only_looks_is_not(
    server: ActionServer, mode: Mode, told: list[Any]
) -> None:
    lease = to_json(RenewLease(controller_epoch=1, attempt=0, lease_ms=1))
    ask(server, mode.broker, RENEW_LEASE.name, lease)
    ask(server, mode.client, METADATA.name, to_json(GetMetadata()))
    assert told == []
    ask(server, mode.client, RENEW_LEASE.name, lease)
    (line,) = told
    assert (line.action, line.outcome) == ("renew_lease", "CLUSTER_AUTHORIZATION_FAILED")


def test_of_a_large_request_the_beginning_is_told(told: list[Any]) -> None:
    calls = audit.RefusedCalls()
    with audit.audited(DELETE.name, b"x" * 5_000, who="client", host="here", calls=calls) as answered:
        answered(RequestAnswer())
    assert told[0].asked == "x" * audit.BODY_MAX


def test_who_proves_nothing_is_told_of_once_a_minute(told: list[Any]) -> None:
    """Else a stranger could fill the log, or push everything else out of it."""
    times = iter((0, 1, 59_999, 60_000, 60_001, 60_002))
    calls = audit.RefusedCalls(now_ms=lambda: next(times))
    for _ in range(5):
        calls.refused(AuthenticationFailed("no token"), "do_get")
    calls.refused(AuthenticationFailed("no token"), "do_action", "10.0.0.1")
    assert [each.getMessage() for each in told] == [
        "do_get was refused: AUTHENTICATION_FAILED: no token",
        "do_get was refused: AUTHENTICATION_FAILED: no token (so were 2 more since the last such line)",
        "do_action from 10.0.0.1 was refused: AUTHENTICATION_FAILED: no token",
    ]
    assert [(each.action, each.outcome) for each in told[1:]] == [
        ("do_get", "AUTHENTICATION_FAILED"),
        ("do_action", "AUTHENTICATION_FAILED"),
    ]


@pytest.mark.parametrize("mode", ["token"], indirect=True)
def test_a_call_without_a_good_token_is_told(server: ActionServer, told: list[Any]) -> None:
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        for shown in (None, "Bearer another-than-this-clusters", "Ticket of-nobody"):
            headers = [] if shown is None else [(b"authorization", shown.encode())]
            options = flight.FlightCallOptions(timeout=10, headers=headers)
            for ask in (
                lambda: list(client.do_action((METADATA.name, b"{}"), options)),  # noqa: B023 (called at once)
                lambda: client.do_get(flight.Ticket(b"{}"), options).read_all(),  # noqa: B023
            ):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    ask()
    assert [(each.levelname, each.action, each.host) for each in told] == [
        ("WARNING", "do_action", "127.0.0.1"),
        ("WARNING", "do_get", ""),
    ]
    assert not any("another-than-this-clusters" in each.getMessage() for each in told)


@pytest.mark.parametrize("mode", ["token"], indirect=True)
def test_a_wrong_proof_is_told_once_a_minute_as_well(server: ActionServer, mode: Mode, told: list[Any]) -> None:
    guessing = Security(mode="token", tokens=Tokens.of(Token("guessed", "alice")))
    for _ in range(3):
        ask(server, guessing, METADATA.name, to_json(GetMetadata()))
    (line,) = told
    assert (line.action, line.host, line.outcome) == ("prove", "127.0.0.1", "AUTHENTICATION_FAILED")
