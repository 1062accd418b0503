"""How a caller of a Flight server becomes known: two proofs, and a ticket that is good here, and for a while."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.errors import AuthenticationFailed
from spark_replication.messages.introducing import Introduce, Prove
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.proofs.tickets import ANSWER_MS, TICKET_MS, Tickets
from spark_replication.transport.proofs.token import Token, session_of
from spark_replication.transport.proofs.tokens import Tokens

ALICE, BROKER = Token("of-alice", "alice"), Token("of-brokers", "broker")
PORT = 9_000
HELLO = Introduce(name="alice", port=PORT, nonce=b"n" * 32)


class Server:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.clients: Tokens | None = Tokens.of(Token("of-bob", "bob"), ALICE)
        self.tickets = Tickets(self._tokens_of, port=lambda: PORT, now_ms=lambda: self.now_ms)

    def _tokens_of(self, *, is_of_cluster: bool) -> Tokens | None:
        return Tokens.of(BROKER) if is_of_cluster else self.clients

    def prove(self, hello: Introduce = HELLO, token: Token = ALICE) -> Prove:
        challenge = self.tickets.challenge(hello)
        return Prove(introduced=hello, challenge=challenge, proof=token.proof("caller", hello, challenge.nonce))


@pytest.fixture
def server() -> Server:
    return Server()


def test_both_sides_prove_that_they_know_the_token(server: Server) -> None:
    asked = server.prove()
    admission = server.tickets.admitted(asked)
    assert ALICE.proven(admission.proof, "server", HELLO, asked.challenge.nonce)
    assert admission.proof != asked.proof
    session = session_of(HELLO, asked.challenge.nonce)
    alice = Caller("alice", is_of_cluster=False, mark=ALICE.mark, session=session)
    assert server.tickets.caller(admission.ticket) == alice
    assert "of-alice" not in admission.ticket


def test_brokers_have_a_secret_of_their_own(server: Server) -> None:
    hello = replace(HELLO, name="broker", is_of_cluster=True)
    asked = server.prove(hello, BROKER)
    admission = server.tickets.admitted(asked)
    found = server.tickets.caller(admission.ticket)
    assert found is not None
    assert found._replace(session=b"") == Caller("broker", is_of_cluster=True, mark=BROKER.mark)
    assert found.session == session_of(hello, asked.challenge.nonce)
    for claimed, token in ((replace(HELLO, is_of_cluster=True), ALICE), (replace(HELLO, name="broker"), BROKER)):
        with pytest.raises(AuthenticationFailed, match="does not know a token of this cluster"):
            server.tickets.admitted(server.prove(claimed, token))


OTHER = b"o" * 32
CHANGES: dict[str, tuple[Callable[[Prove], Any], str]] = {
    "another secret": (lambda asked: replace(asked, proof=_proof(asked, Token("guessed", "alice"))), "does not know"),
    "another's secret": (lambda asked: replace(asked, proof=_proof(asked, Token("of-bob", "bob"))), "does not know"),
    "the answer's side": (
        lambda asked: replace(asked, proof=ALICE.proof("server", asked.introduced, asked.challenge.nonce)),
        "does not know",
    ),
    "another name": (lambda asked: _said(asked, name="bob"), "no challenge of this process"),
    "another nonce": (lambda asked: _said(asked, nonce=OTHER), "no challenge of this process"),
    "brokers' name": (lambda asked: _said(asked, is_of_cluster=True), "no challenge of this process"),
    "another port": (lambda asked: _said(asked, port=PORT + 1), "no challenge of this process"),
    "a challenge of nobody": (
        lambda asked: replace(asked, challenge=replace(asked.challenge, nonce=OTHER)),
        "no challenge of this process",
    ),
    "a challenge of another time": (
        lambda asked: replace(asked, challenge=replace(asked.challenge, said_ms=asked.challenge.said_ms + 1)),
        "no challenge of this process",
    ),
}


def _proof(asked: Prove, token: Token) -> bytes:
    return token.proof("caller", asked.introduced, asked.challenge.nonce)


def _said(asked: Prove, **changes: Any) -> Prove:
    """With a good proof of what it says now."""
    said = replace(asked, introduced=replace(asked.introduced, **changes))
    return replace(said, proof=_proof(said, ALICE))


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_of_an_introduction_can_be_changed(server: Server, change: str) -> None:
    changed, why = CHANGES[change]
    asked = server.prove()
    with pytest.raises(AuthenticationFailed, match=why):
        server.tickets.admitted(changed(asked))
    server.tickets.admitted(asked)


def test_who_dialled_another_port_is_told_that_something_passes_calls_on(server: Server) -> None:
    with pytest.raises(AuthenticationFailed, match=r"port 9001 was dialled, and this is port 9000"):
        server.tickets.admitted(server.prove(replace(HELLO, port=PORT + 1)))


def test_a_challenge_is_to_be_answered_in_time(server: Server) -> None:
    asked = server.prove()
    server.now_ms += ANSWER_MS
    server.tickets.admitted(asked)
    for late_ms in (1, -2 * ANSWER_MS):  # the clock may be set back, too
        server.now_ms += late_ms
        with pytest.raises(AuthenticationFailed, match="or too late: introduce again"):
            server.tickets.admitted(asked)


def test_a_challenge_of_a_server_of_before_is_of_no_use(server: Server) -> None:
    with pytest.raises(AuthenticationFailed, match="no challenge of this process"):
        Server().tickets.admitted(server.prove())


def test_where_no_token_is_set_that_is_said(server: Server) -> None:
    server.clients = None
    with pytest.raises(AuthenticationFailed, match=r"and none is set here: compare security\.mode"):
        server.tickets.admitted(server.prove())


def test_a_ticket_is_good_for_a_while_and_at_its_own_server(server: Server) -> None:
    ticket = server.tickets.admitted(server.prove()).ticket
    assert Server().tickets.caller(ticket) is None
    server.now_ms += TICKET_MS - 1
    assert server.tickets.caller(ticket) is not None
    server.now_ms += 1
    assert server.tickets.caller(ticket) is None


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_what_is_no_ticket_is_nobodys(text: str) -> None:
    assert Server().tickets.caller(text) is None


@given(st.data())
def test_a_ticket_that_was_changed_is_nobodys(data: st.DataObject) -> None:
    server = Server()
    raw = bytearray(base64.urlsafe_b64decode(server.tickets.admitted(server.prove()).ticket))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    assert server.tickets.caller(base64.urlsafe_b64encode(raw).decode()) is None
    assert server.tickets.caller("A" * 100_000) is None
