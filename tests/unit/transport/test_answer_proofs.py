"""An answer is believed if it proves whose it is: nothing that whoever has the port of a dead server says is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyarrow import flight

from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    MisroutedCall,
    NotController,
    OffsetOutOfRange,
    Overloaded,
    ReplicationError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.envelope import to_json
from spark_replication.messages.introducing import AnswerProof
from spark_replication.messages.lane import ClientFrame
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.messages.replication import ChallengeFrame, ErrorFrame
from spark_replication.transport.flight.actions import ActionServer, call, handled
from spark_replication.transport.proofs.answer_proofs import NONCE_HEADER, Question, nonce_of
from spark_replication.transport.proofs.handshake import introduce_client
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import Security
from spark_replication.transport.sockets.frames import FrameReceiver, encoded, send
from tests.unit.transport.test_flight_client import Squatter

TIMEOUT_MS, TIMEOUT_S = 10_000, 10.0
TOKEN = Token("the-secret-of-all-clients")
SECURITY = Security(mode="token", tokens=Tokens.of(TOKEN))
FORGED = b'{"v":1,"producer":666,"epoch":0}'
QUESTION = Question(key=b"k" * 32, nonce=b"n" * 32, action="metadata", body=b"{}")


class Server(ActionServer):
    def __init__(self, port: int = 0, security: Security = SECURITY) -> None:
        self.answer: ReplicationError | None = None
        super().__init__("127.0.0.1", [handled(INIT_PRODUCER, self._told)], rights=Rights(security), port=port)

    def _told(self, _asked: InitProducer) -> ProducerId:
        if self.answer is not None:
            raise self.answer
        return ProducerId(producer=7)


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for server in started:
        threading.Thread(target=server.shutdown, daemon=True).start()


def ask(client: flight.FlightClient) -> int:
    return call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS).producer


def proven(key: bytes, squatter: Liar, body: bytes, answer: bytes, *, is_error: bool = False) -> list[bytes]:
    """As far as somebody can who does not have the key."""
    shown = {name.lower(): values for name, values in squatter.overhears.headers[-1].items()}
    nonce = nonce_of(shown.get(NONCE_HEADER, []))
    assert nonce is not None, "a proof is wanted"
    return Question(key, nonce, "init_producer", body).answered(answer, is_error=is_error)


class Liar(Squatter):
    """Has the port of a server that has ended, and the tickets of its clients."""

    def __init__(self, lie: Lie, heard: list[bytes], port: int) -> None:
        self.lie = lie
        #: A true answer to the same question, with its proof.
        self.overheard = heard
        super().__init__(port=port)

    def do_action(self, context: object, action: flight.Action) -> list[bytes]:
        body = action.body.to_pybytes()
        self.bodies.append(body)
        return self.lie(self, body)


Lie = Callable[[Liar, bytes], list[bytes]]


def raises(kind: type[Exception], text: str) -> Lie:
    def lie(_liar: Liar, _body: bytes) -> list[bytes]:
        raise kind(text)

    return lie


GONE = "UNKNOWN_TOPIC_OR_PARTITION: there is no topic orders"
LIES: dict[str, Lie] = {
    "a bare answer": lambda _liar, _body: [FORGED],
    "nothing": lambda _liar, _body: [],
    "no proof": lambda _liar, _body: [FORGED, b"{}"],
    "a proof of nothing": lambda _liar, _body: [FORGED, to_json(AnswerProof(proof=b"p" * 32))],
    "a proof by another key": lambda liar, body: proven(b"k" * 32, liar, body, FORGED),
    "a proof by the token of another": lambda liar, body: proven(
        Token("the-secret-of-another").session_key(b"s" * 32), liar, body, FORGED
    ),
    "what was true before": lambda liar, _body: liar.overheard,
    "its own answer with a true proof": lambda liar, _body: [FORGED, liar.overheard[1]],
    "an error that is proven by another key": lambda liar, body: proven(
        b"k" * 32, liar, body, GONE.encode(), is_error=True
    ),
    "an error": raises(flight.FlightServerError, GONE),
    "an error that seems to be of gRPC": raises(flight.FlightUnavailableError, GONE),
    "an error out of time": raises(flight.FlightTimedOutError, GONE),
    "an error within": raises(flight.FlightInternalError, GONE),
    "an error of Arrow": raises(KeyError, GONE),
}


@pytest.mark.parametrize("lie", LIES)
def test_whoever_has_the_port_of_a_dead_server_is_not_believed(
    servers: list[Any], lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[bytes]] = []
    true = Question.believed

    def overheard(self: Question, messages: list[bytes], address: str) -> tuple[bytes, bool]:
        heard.append([*messages])
        return true(self, messages, address)

    monkeypatch.setattr(Question, "believed", overheard)
    first = Server()
    with SECURITY.client(f"127.0.0.1:{first.port}") as client:
        assert ask(client) == 7
        first.stop(5)
        liar = Liar(LIES[lie], heard[0], first.port)
        with pytest.raises(BrokerNotAvailable) as refused:
            ask(client)
        assert refused.value.retriable
        assert len(liar.bodies) == 1, "the call came with the ticket of before"
        with pytest.raises((BrokerNotAvailable, AuthenticationFailed)):
            ask(client)
        liar.shutdown()
        servers.append(Server(first.port))
        assert ask(client) == 7, "and who is the server again is believed"


def test_errors_of_the_true_server_are_proven_too(servers: list[Any]) -> None:
    servers.append(server := Server())
    with SECURITY.client(f"127.0.0.1:{server.port}") as client:
        for error in (NotController("ask another"), OffsetOutOfRange("it is gone")):
            server.answer = error
            with pytest.raises(type(error), match=error.message):
                ask(client)
        server.answer = None
        assert ask(client) == 7


def test_a_server_of_another_cluster_says_so(servers: list[Any]) -> None:
    """With the same token, or nobody would be told."""
    servers.append(server := Server(security=SECURITY.of_cluster(lambda: "ours")))
    address = f"127.0.0.1:{server.port}"
    with SECURITY.of_cluster(lambda: "theirs").client(address) as client, pytest.raises(MisroutedCall, match="ours"):
        ask(client)
    with SECURITY.of_cluster(lambda: "ours").client(address) as client:
        assert ask(client) == 7


def test_who_wants_no_proof_gets_none(servers: list[Any]) -> None:
    """Somebody else's Flight client."""
    servers.append(server := Server())
    shown = flight.FlightCallOptions(headers=[(b"authorization", TOKEN.bearer.encode())], timeout=TIMEOUT_S)
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        (answer,) = client.do_action(("init_producer", b"{}"), shown)
    assert answer.body.to_pybytes() == to_json(ProducerId(producer=7))


CHANGES: dict[str, Callable[[Question], Question]] = {
    "another session": lambda asked: asked._replace(key=b"l" * 32),
    "another call": lambda asked: asked._replace(nonce=b"m" * 32),
    "another action": lambda asked: asked._replace(action="metadat"),
    "another question": lambda asked: asked._replace(body=b'{"topics":["orders"]}'),
    "what was split elsewhere": lambda asked: asked._replace(action="metadata{", body=b"}"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_proof_is_of_one_answer_to_one_question(change: str) -> None:
    assert QUESTION.believed(QUESTION.answered(b"yes"), "a:1") == (b"yes", False)
    assert QUESTION.believed(QUESTION.answered(b"no", is_error=True), "a:1") == (b"no", True)
    with pytest.raises(BrokerNotAvailable, match=r"an answer from a:1 did not prove.*its proof is wrong"):
        QUESTION.believed(CHANGES[change](QUESTION).answered(b"yes"), "a:1")


def test_nothing_of_an_answer_can_be_changed() -> None:
    answer, last = QUESTION.answered(b"yes")
    for changed in ([b"no", last], [answer, last.replace(b'"is_error":false', b'"is_error":true')]):
        with pytest.raises(BrokerNotAvailable, match="its proof is wrong"):
            QUESTION.believed(changed, "a:1")


@pytest.mark.parametrize("values", [[], [""], ["zz"], ["00" * 31], ["00" * 33], ["00" * 32, "00" * 32]])
def test_what_is_no_nonce_asks_for_no_proof(values: list[str]) -> None:
    assert nonce_of(values) is None
    assert nonce_of(["0f" * 32]) == b"\x0f" * 32


# Frames


@pytest.mark.parametrize("after_challenge", [False, True])
@pytest.mark.parametrize(
    ("told", "believed"),
    [
        (UnknownTopicOrPartition, BrokerNotAvailable),
        (MisroutedCall, BrokerNotAvailable),
        (OffsetOutOfRange, BrokerNotAvailable),
        (AuthenticationFailed, AuthenticationFailed),
        (Overloaded, Overloaded),
        (UnsupportedVersion, UnsupportedVersion),
    ],
)
def test_of_a_peer_that_has_proven_nothing_few_errors_are_believed(
    told: type[ReplicationError], believed: type[ReplicationError], *, after_challenge: bool
) -> None:
    ours, theirs = socket.socketpair()

    def lie() -> None:
        with suppress(OSError, ReplicationError):
            receiver = FrameReceiver(theirs, 1 << 20)
            receiver.receive_first(lambda: None)
            if after_challenge:
                send(theirs, encoded(ChallengeFrame(nonce=b"n" * 32)))
                receiver.receive_first(lambda: None)
            send(theirs, encoded(ErrorFrame(error=told.code, message="it is so")))

    liar = threading.Thread(target=lie, daemon=True)
    liar.start()
    hello = ClientFrame(cluster_id="", reads=True, port=1)
    with ours, theirs, pytest.raises(believed) as refused:
        introduce_client(ours, FrameReceiver(ours, 1 << 20), hello, SECURITY.tokens, TIMEOUT_S)
    assert type(refused.value) is believed
    assert "it is so" in refused.value.message
    liar.join(TIMEOUT_S)
