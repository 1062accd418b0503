"""Both ends of the channel between the process that takes calls and the one that answers them, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.errors import InvalidRequest, Overloaded
from spark_replication.messages.actions import Action
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.records import ProducerId
from spark_replication.transport.flight import forwarding
from spark_replication.transport.flight.actions import ActionServer, handled
from spark_replication.transport.flight.forwarding import (
    Answerer,
    Body,
    ForwardedCall,
    ForwardedContext,
    Forwarder,
    LocalChannel,
)
from spark_replication.transport.proofs.token import AUTHORIZATION
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import read_security
from tests.unit.transport.test_security import SECRET, token_settings

CALL = ForwardedCall("DO_ACTION", {"name": ["value"]}, "ipv4:127.0.0.1:9", b"alice", "CAs x", "double")
DOUBLE = Action("double", ProducerId, ProducerId, lambda _asked: ())
LARGE = b"x" * (forwarding.STRANGER_BYTES_MAX + 1)


class Ends:
    """Channels whose calls are answered on threads of their own, as a driver does."""

    def __init__(self, answered: Callable[[ForwardedContext, ForwardedCall, Body], list[bytes]]) -> None:
        self.answered = answered
        self.theirs: list[socket.socket] = []

    def opened(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.theirs.append(theirs)
        threading.Thread(target=self._serve, args=(LocalChannel(theirs),), daemon=True).start()
        return ours

    def _serve(self, channel: LocalChannel) -> None:
        try:
            Answerer(self.answered).serve(channel)
        except OSError:
            channel.close()

    def close(self) -> None:
        for each in self.theirs:
            each.close()


def echo(context: ForwardedContext, call: ForwardedCall, body: Body) -> list[bytes]:
    context.is_known = call.action == "known"
    identity = context.peer_identity()
    return [body.read(), f"{call.action} of {identity.decode()} at {context.peer()} {call.ca} {call.headers}".encode()]


def test_an_answer_comes_whole_over_a_channel_that_is_used_again() -> None:
    ends = Ends(echo)
    forwarder = Forwarder(ends.opened)
    for body in (b"", b"small", LARGE * 20):
        (same, told), is_known = forwarder.asked(CALL, memoryview(body))
        assert same == body
        assert told == b"double of alice at ipv4:127.0.0.1:9 CAs x {'name': ['value']}"
        assert not is_known
    assert forwarder.asked(ForwardedCall("DO_ACTION", {}, action="known"))[1]
    assert len(ends.theirs) == 1
    ends.close()


@pytest.mark.parametrize("kind", [flight.FlightUnauthenticatedError, flight.FlightServerError])
def test_an_error_keeps_its_kind_and_its_text_and_what_was_not_read_is_skipped(kind: type[Exception]) -> None:
    def refuses(_context: ForwardedContext, call: ForwardedCall, body: Body) -> list[bytes]:
        if call.action == "fine":
            return [body.read()]
        raise kind("CODE: why")

    ends = Ends(refuses)
    forwarder = Forwarder(ends.opened)
    with pytest.raises(kind, match=r"^CODE: why$"):
        forwarder.asked(CALL, LARGE * 3)
    assert forwarder.asked(ForwardedCall("DO_ACTION", {}, action="fine"), b"body") == ([b"body"], False)
    assert len(ends.theirs) == 1
    ends.close()


def test_a_request_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "BODY_BYTES_MAX", 100)
    ends = Ends(echo)
    forwarder = Forwarder(ends.opened)
    for action, body in (("", b"x" * 101), ("x" * 101, b"")):
        with pytest.raises(flight.FlightServerError, match=InvalidRequest.code):
            forwarder.asked(ForwardedCall("DO_ACTION", {}, action=action), body)
    assert not ends.theirs
    assert forwarder.asked(ForwardedCall("DO_ACTION", {}), b"x" * 100)[0][0] == b"x" * 100
    ends.close()


def test_so_many_calls_are_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "CHANNELS_MAX", 1)
    monkeypatch.setattr(forwarding, "CHANNEL_WAIT_S", 0.05)
    entered, may_go_on = threading.Event(), threading.Event()

    def waits(_context: ForwardedContext, _call: ForwardedCall, _body: Body) -> list[bytes]:
        entered.set()
        may_go_on.wait(10)
        return []

    ends = Ends(waits)
    forwarder = Forwarder(ends.opened)
    first = threading.Thread(target=forwarder.asked, args=(CALL,))
    first.start()
    assert entered.wait(10)
    with pytest.raises(flight.FlightServerError, match=Overloaded.code):
        forwarder.asked(CALL)
    may_go_on.set()
    first.join(10)
    assert forwarder.asked(CALL) == ([], False)
    ends.close()


def test_a_channel_that_is_gone_fails_one_call_and_the_next_has_another() -> None:
    ends = Ends(echo)
    forwarder = Forwarder(ends.opened)
    forwarder.asked(CALL)
    ends.theirs[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(flight.FlightUnavailableError):
        forwarder.asked(CALL)
    forwarder.asked(CALL)
    assert len(ends.theirs) == 2
    ends.close()


@pytest.mark.parametrize("said", [b"\xff" * 16, b"\0\0\0\3\0\0\0\0\x01\x02\x03"])
def test_what_is_no_call_ends_its_channel(said: bytes) -> None:
    ends = Ends(echo)
    with ends.opened() as ours:
        ours.sendall(said)
        ours.settimeout(10)
        assert ours.recv(1) == b""


class Served(NamedTuple):
    server: ActionServer
    forwarder: Forwarder
    #: How many bytes of each body the server has held.
    held: list[int]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server that wants a token, whose calls come over channels."""
    security = read_security(settings_from(token_settings(tmp_path)))
    double = handled(DOUBLE, lambda asked: ProducerId(producer=2 * asked.producer))
    server = ActionServer("127.0.0.1", [double], rights=Rights(security))
    held: list[int] = []

    def answered(context: ForwardedContext, call: ForwardedCall, body: Body) -> list[bytes]:
        try:
            return server._forwarded(context, call, body)
        finally:
            held.append(body.held_bytes)

    ends = Ends(answered)
    yield Served(server, Forwarder(ends.opened), held)
    ends.close()
    server.stop(5)


def test_large_calls_are_carried_out_one_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread, whoever asks: each thread has a heap, which keeps what such a call took."""
    monkeypatch.setattr(forwarding, "LARGE_WAIT_S", 0.05)
    asked = to_json(ProducerId(producer=4)) + b" " * len(LARGE)
    entered, may_go_on = threading.Event(), threading.Event()

    def waits() -> list[bytes]:
        entered.set()
        may_go_on.wait(10)
        return [threading.current_thread().name.encode()]

    names: list[bytes] = []
    first = threading.Thread(target=lambda: names.extend(served.server._large.answered(waits)))
    first.start()
    assert entered.wait(10)
    with pytest.raises(flight.FlightServerError, match=Overloaded.code):
        served.forwarder.asked(of(SECRET), asked)
    assert served.held == [0]
    served.forwarder.asked(of(SECRET), to_json(ProducerId(producer=4)))
    may_go_on.set()
    first.join(10)
    served.forwarder.asked(of(SECRET), asked)
    assert names == served.server._large.answered(waits) == [b"door-large_0"]


def of(token: str, method: str = "DO_ACTION") -> ForwardedCall:
    headers = {AUTHORIZATION: [f"Bearer {token}"]} if token else {}
    return ForwardedCall(method, headers, "ipv4:127.0.0.1:9", action="double")


@pytest.mark.parametrize("token", ["", "another"])
def test_the_large_body_of_a_stranger_is_never_held(served: Served, token: str) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError):
        served.forwarder.asked(of(token), LARGE)
    assert served.held == [0]


def test_that_of_a_client_is_and_of_an_introduction_as_much_as_it_may_need(served: Served) -> None:
    """JSON may end in spaces."""
    asked = to_json(ProducerId(producer=4)) + b" " * len(LARGE)
    (answer,), _ = served.forwarder.asked(of(SECRET), asked)
    assert from_json(answer, ProducerId).producer == 8
    with pytest.raises(flight.FlightUnauthenticatedError):
        served.forwarder.asked(of(""), LARGE[1:])
    assert served.held == [len(asked), len(LARGE) - 1]


def test_actions_are_listed_and_other_calls_refused_as_by_a_server_of_its_own(served: Served) -> None:
    told = [text.decode() for text in served.forwarder.asked(of(SECRET, "LIST_ACTIONS"))[0]]
    assert "double" in told[::2]
    for method in ("DO_GET", "GET_SCHEMA"):
        with pytest.raises(flight.FlightServerError, match=rf"^INVALID_REQUEST: {method.lower()} is not served here"):
            served.forwarder.asked(of(SECRET, method))
        with pytest.raises(flight.FlightUnauthenticatedError):
            served.forwarder.asked(of("", method))
