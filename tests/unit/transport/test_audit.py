"""What is told of requests that change something, and of clients that ask for what is not theirs."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
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
from spark_replication.transport.flight.actions import ActionServer, handled
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security import audit
from spark_replication.transport.security.audit import AuditLog
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import Security
from tests.unit.transport.test_who_may_ask import Mode

DELETE = ADMIN_REQUESTS[DeleteTopic]


@pytest.fixture(params=["token", "tls"])
def mode(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mode:
    return Mode(tmp_path_factory.mktemp("audit"), request.param)


class Told:
    """What stands in an audit log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.audit = AuditLog(path)

    @property
    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / audit.AUDIT_FILE)


def delete(request: DeleteTopic) -> RequestAnswer:
    if request.topic == "elsewhere":
        raise NotController("another commands")
    refused = Refusal(error="UNKNOWN_TOPIC_OR_PARTITION", message="no such topic", retriable=False)
    return RequestAnswer(errors={} if request.topic == "orders" else {request.topic: refused})


@pytest.fixture
def server(mode: Mode, told: Told) -> Iterator[ActionServer]:
    started = ActionServer(
        "127.0.0.1",
        [
            handled(DELETE, delete),
            handled(METADATA, lambda _asked: Metadata(cluster_id="", brokers={}, topics=())),
            handled(RENEW_LEASE, lambda _asked: LeaseAnswer(broker_id=1, broker_epoch=0, pid=1)),
        ],
        rights=Rights(mode.server, audit=told.audit),
    )
    yield started
    threading.Thread(target=started.shutdown, daemon=True).start()


def ask(server: ActionServer, security: Any, action: str, body: bytes) -> None:
    with security.client(f"127.0.0.1:{server.port}") as client, suppress(flight.FlightError, AuthenticationFailed):
        list(client.do_action((action, body), flight.FlightCallOptions(timeout=10)))


def test_a_change_is_told_with_who_asked_for_it_and_what_became_of_it(
    server: ActionServer, mode: Mode, told: Told
) -> None:
    for topic in ("orders", "others", "elsewhere"):
        ask(server, mode.client, DELETE.name, to_json(DeleteTopic(topic=topic)))
    ask(server, mode.broker, DELETE.name, b"no request")
    assert [each["outcome"] for each in told.lines] == [
        "done",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_CONTROLLER",
        "INVALID_REQUEST",
    ]
    assert [each["who"].split()[0] for each in told.lines] == ["client"] * 3 + ["broker"]
    assert {(each["host"], each["action"]) for each in told.lines} == {("127.0.0.1", "delete_topic")}
    assert '"topic":"orders"' in told.lines[0]["asked"]
    assert stat.S_IMODE(told.path.stat().st_mode) == 0o600


def test_a_change_that_fails_by_a_mistake_is_told(told: Told) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        audit.audited(DELETE.name, b"{}", who="client a", host="here", audit=told.audit),
    ):
        raise ZeroDivisionError
    assert told.lines[0]["outcome"] == "UNKNOWN_SERVER_ERROR"


def test_a_client_that_orders_a_broker_is_told_and_whoever_only_looks_is_not(
    server: ActionServer, mode: Mode, told: Told
) -> None:
    lease = to_json(RenewLease(controller_epoch=1, attempt=0, lease_ms=1))
    ask(server, mode.broker, RENEW_LEASE.name, lease)
    ask(server, mode.client, METADATA.name, to_json(GetMetadata()))
    assert told.lines == []
    for _ in range(3):
        ask(server, mode.client, RENEW_LEASE.name, lease)
    (line,) = told.lines
    assert (line["action"], line["outcome"]) == ("renew_lease", "CLUSTER_AUTHORIZATION_FAILED")


def test_of_a_large_request_the_beginning_is_told(told: Told) -> None:
    with audit.audited(DELETE.name, b"x" * 5_000, who="client", host="here", audit=told.audit) as answered:
        answered(RequestAnswer())
    assert told.lines[0]["asked"] == "x" * audit.BODY_MAX


def test_who_has_no_right_is_told_once_a_minute_of_each_action_with_a_count(tmp_path: Path) -> None:
    times = iter((0, 1, 59_999, 60_000, 60_000, 60_000))
    told = Told(tmp_path / "audit.log")
    told.audit = AuditLog(told.path, lambda: next(times))

    def refuse(who: str, action: str) -> None:
        told.audit.refused(who=who, host="10.0.0.1", action=action, asked="orders", outcome="REFUSED")

    for _ in range(4):
        refuse("client eve", "write")
    refuse("client eve", "read")
    refuse("client bob", "write")
    assert [(each["who"], each["action"], each["count"]) for each in told.lines] == [
        ("client eve", "write", "1"),
        ("client eve", "write", "3"),
        ("client eve", "read", "1"),
        ("client bob", "write", "1"),
    ]


def test_strangers_are_one_line_a_minute_that_counts_those_of_each_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = 0
    told = Told(tmp_path / "audit.log")
    told.audit = AuditLog(told.path, lambda: now_ms)
    no_token = AuthenticationFailed("no token")
    told.audit.stranger(no_token, "do_get", "10.0.0.1")
    for number in range(2 * audit.HOSTS_COUNTED_MAX):
        told.audit.stranger(no_token, "do_get", f"10.1.{number >> 8}.{number & 255}")
        told.audit.stranger(no_token, "do_get", "10.0.0.2")
    now_ms = 60_000
    told.audit.stranger(no_token, "do_action", "")
    first, second = told.lines
    assert (first["who"], first["host"], first["count"]) == ("strangers", "10.0.0.1: 1", "1")
    assert second["count"] == str(4 * audit.HOSTS_COUNTED_MAX + 1)
    counted = dict(each.rsplit(": ", 1) for each in second["host"].split(", "))
    assert counted["10.0.0.2"] == str(2 * audit.HOSTS_COUNTED_MAX)
    assert sum(map(int, counted.values())) == int(second["count"]), "each is counted somewhere"
    assert len(counted) <= audit.HOSTS_TOLD_MAX + 1
    assert caplog.messages == [
        "do_get from 10.0.0.1 was refused: AUTHENTICATION_FAILED: no token",
        "do_action was refused: AUTHENTICATION_FAILED: no token",
    ], "why, in the process's own log"
    told.audit.stranger(no_token, "do_get", "10.0.0.1")
    assert caplog.messages[-1].endswith(f"(so were {4 * audit.HOSTS_COUNTED_MAX} more since the last such line)")


def test_no_flood_of_strangers_pushes_out_what_a_client_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: refused connections were a line each, and the log was begun anew after a minute of them."""
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 20_000)
    now_ms = 0
    told = Told(tmp_path / "audit.log")
    told.audit = AuditLog(told.path, lambda: now_ms)
    told.audit.asked(who="client eve", host="here", action="delete_topic", asked="orders", outcome="done")
    for number in range(20_000):
        now_ms = number  # 20 s
        told.audit.stranger(AuthenticationFailed("no token"), f"kind {number % 7}", f"10.0.{number % 250}.1")
        told.audit.refused(who="client bob", host="here", action="write", asked="x" * 900, outcome="REFUSED")
    assert told.lines[0]["who"] == "client eve"
    assert len(told.lines) == 3


def test_the_file_is_kept_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 2_000)
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    for number in range(200):
        log.asked(who="client a", host="here", action="configure", asked=f"{number}", outcome="done")
    found = sorted(tmp_path.iterdir())
    assert [each.name for each in found] == ["audit.log", *(f"audit.log.{n}" for n in range(1, audit.FILES_KEPT + 1))]
    assert max(each.stat().st_size for each in found) <= 2_000
    assert json.loads(path.read_text().splitlines()[-1])["asked"] == "199"


def test_a_disk_that_takes_no_line_is_told_of_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(tmp_path / "gone" / "audit.log")
    for _ in range(3):
        log.asked(who="client a", host="here", action="configure", asked="", outcome="done")
    assert len(caplog.messages) == 1
    assert "could not be written" in caplog.messages[0]


@pytest.mark.parametrize("mode", ["token"], indirect=True)
def test_a_call_without_a_good_token_is_told(
    server: ActionServer, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
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
    (line,) = told.lines
    assert (line["who"], line["host"], line["outcome"]) == ("strangers", "127.0.0.1: 1", "AUTHENTICATION_FAILED")
    assert [message.partition(" was refused")[0] for message in caplog.messages] == [
        "do_action from 127.0.0.1",
        "do_get",
    ]
    assert not any("another-than-this-clusters" in message for message in caplog.messages)


@pytest.mark.parametrize("mode", ["token"], indirect=True)
def test_a_wrong_proof_is_told_once_a_minute_as_well(
    server: ActionServer, mode: Mode, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    guessing = Security(mode="token", tokens=Tokens.of(Token("guessed", "alice")))
    for _ in range(3):
        ask(server, guessing, METADATA.name, to_json(GetMetadata()))
    (line,) = told.lines
    assert (line["action"], line["host"], line["outcome"]) == ("prove", "127.0.0.1: 1", "AUTHENTICATION_FAILED")
    assert [message.partition(" was refused")[0] for message in caplog.messages] == ["prove from 127.0.0.1"]
