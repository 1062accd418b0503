"""The lane of brokers that want proof: a producer that has none is refused, and it believes no broker that has none."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable, Overloaded, ReplicationError
from spark_replication.messages.frames import Frame
from spark_replication.messages.lane import ClientFrame, PutAnswersFrame, WelcomeFrame
from spark_replication.messages.replication import PROVING_VERSION, ChallengeFrame, ErrorFrame, HelloFrame, ProofFrame
from spark_replication.transport.frames.client_connection import ClientConnection
from spark_replication.transport.proofs.handshake import introduce_client
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.transport.sockets.frames import HANDSHAKE_BYTES_MAX, FrameReceiver, encoded, send
from spark_replication.transport.sockets.tls_channel import RECORD_BYTES_MAX, TlsChannel
from tests.unit.storage.storage_stories import rows
from tests.unit.transport.replicas import CLUSTER, TIMEOUT_S, Broker, Brokers
from tests.unit.transport.test_lane import (
    ORDERS,
    Client,
    is_read_no_more_while_it_takes_no_answers,
    is_read_no_more_while_too_many_answers_are_owed,
    joined,
    producers,
    put,
    still_serves,
    stored,
    stream,
)
from tests.unit.transport.test_secured_replication import HELLO, NONCE, OTHER_SECRET, Modes, Stranger, dialled
from tests.unit.transport.test_security import SECRET
from tests.unit.transport.test_tls_channel import Corked
from tests.waiting import eventually

CLIENT = ClientFrame(v=PROVING_VERSION, cluster_id=CLUSTER, name="client", nonce=NONCE)
KNOWN = Tokens.of(Token(SECRET))


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> Modes:
    return Modes(tmp_path_factory.mktemp("modes"))


@pytest.mark.parametrize("mode", ["token", "mutual", "both"])
def test_what_a_known_client_sends_is_on_every_replica(brokers: Brokers, modes: Modes, mode: str) -> None:
    security = getattr(modes, mode)
    leader, follower = (brokers.start(number, security=security) for number in (1, 2))
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    client = Client(leader, security)
    client.say(stream(), *(put(number, rows(number, 1)) for number in range(1_000)))
    assert list(client.answers(1_000)) == list(range(1_000))
    assert stored(leader) == list(range(1_000))
    assert leader.files(ORDERS) == follower.files(ORDERS)


#: The modes of a broker and of its client, and why that is refused.
MISMATCHES = [
    ("token", "other_token", "a client does not know this cluster's token: compare"),
    ("token", "none", "a client has none: compare"),
    ("none", "token", "the client wants proof of a token, and none is set here"),
    ("mutual", "none", "its peer does not: set security.mode=tls"),
    ("mutual", "token", "its peer does not: set security.mode=tls"),
    ("none", "mutual", "TLS with the peer at 127.0.0.1 failed"),
    ("token", "mutual", "TLS with the peer at 127.0.0.1 failed"),
    ("both", "no_certificate", "a client has none: compare"),
]


@pytest.mark.parametrize(
    ("broker", "client", "why"),
    MISMATCHES,
)
def test_a_client_of_another_mode_is_told_why_it_is_refused(
    brokers: Brokers, modes: Modes, broker: str, client: str, why: str
) -> None:
    security = {"none": NO_SECURITY, **vars(modes)}
    leader = brokers.start(1, security=security[broker])
    with pytest.raises(ReplicationError) as refused:
        Client(leader, security[client])
    assert why in refused.value.message
    assert isinstance(refused.value, AuthenticationFailed)
    assert not any(secret in refused.value.message for secret in (SECRET, OTHER_SECRET))
    assert not producers(leader)
    still_serves(leader, security[broker])


@pytest.mark.parametrize("stranger", ["no_certificate", "other_ca"])
def test_a_client_without_a_good_certificate_is_not_let_in(brokers: Brokers, modes: Modes, stranger: str) -> None:
    leader = brokers.start(1, security=modes.mutual)
    with pytest.raises((AuthenticationFailed, BrokerNotAvailable, OSError)):
        Client(leader, getattr(modes, stranger))
    assert not producers(leader)
    still_serves(leader, modes.mutual)


# What a client that is not known may say in place of a proof.

Says = Callable[[HelloFrame | ClientFrame, bytes], bytes]  # of what it said, and the leader's nonce


def proof(side: str, hello: HelloFrame | ClientFrame, nonce: bytes, secret: str = SECRET) -> bytes:
    return joined(ProofFrame(proof=Token(secret).proof(side, hello, nonce)))  # type: ignore[arg-type]


STRANGERS: dict[str, tuple[HelloFrame | ClientFrame, Says]] = {
    "another secret": (CLIENT, lambda hello, nonce: proof("client", hello, nonce, OTHER_SECRET)),
    "another name": (replace(CLIENT, name="another"), partial(proof, "client")),
    "nothing": (CLIENT, lambda _hello, _nonce: joined(ProofFrame(proof=b""))),
    "a follower's proof": (CLIENT, lambda hello, nonce: proof("follower", replace(HELLO, port=hello.port), nonce)),
    "a follower's side": (CLIENT, partial(proof, "follower")),
    "the leader's side": (CLIENT, partial(proof, "server")),
    "a client's proof": (HELLO, lambda hello, nonce: proof("client", replace(CLIENT, port=hello.port), nonce)),
    "a client's side": (HELLO, partial(proof, "client")),
    "a proof for another cluster": (
        CLIENT,
        lambda hello, nonce: proof("client", replace(hello, cluster_id="another"), nonce),
    ),
    "a proof for another port": (
        CLIENT,
        lambda hello, nonce: proof("client", replace(hello, port=1), nonce),
    ),
    "a proof for another nonce": (CLIENT, lambda hello, _nonce: proof("client", hello, NONCE)),
    "a batch": (CLIENT, lambda _hello, _nonce: stream() + put(0)),
    "the same again": (CLIENT, lambda hello, _nonce: joined(hello)),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_told_why_and_nothing_of_it_is_stored(brokers: Brokers, modes: Modes, stranger: str) -> None:
    said, says = STRANGERS[stranger]
    leader = brokers.start(1, security=modes.token)
    hello = replace(said, port=leader.replication.port)
    leader.command(ORDERS, 1, (1,))
    peer = Stranger(leader)
    peer.say(hello)
    challenge = peer.hears()
    assert isinstance(challenge, ChallengeFrame)
    peer.connection.sendall(says(hello, challenge.nonce) + stream() + put(1))
    heard = peer.hears_error()
    assert heard.error == AuthenticationFailed.code
    assert "security.token.file of both sides" in heard.message
    assert SECRET not in heard.message
    eventually(lambda: not leader.replication._server._connections, "it is forgotten")
    assert not producers(leader)
    assert stored(leader) == []
    still_serves(leader, modes.token)


def admitted(leader: Broker) -> ProofFrame:
    """A client that knows the token, by hand. Returns its proof."""
    peer = Stranger(leader)
    hello = dialled(CLIENT, leader)
    peer.say(hello)
    challenge = peer.hears()
    assert isinstance(challenge, ChallengeFrame)
    own = ProofFrame(proof=Token(SECRET).proof("client", hello, challenge.nonce))
    peer.connection.sendall(joined(own) + stream() + put(0))  # what comes with the proof is served
    assert isinstance(peer.hears(), ProofFrame)
    assert isinstance(peer.hears(), WelcomeFrame)
    assert isinstance(peer.hears(), PutAnswersFrame)
    peer.connection.close()
    return own


def test_a_proof_serves_once(brokers: Brokers, modes: Modes) -> None:
    leader = brokers.start(1, security=modes.token)
    leader.command(ORDERS, 1, (1,))
    seen = admitted(leader)
    assert stored(leader) == [0, 1], "it was good then"
    peer = Stranger(leader)
    peer.say(dialled(CLIENT, leader))
    assert isinstance(peer.hears(), ChallengeFrame)
    peer.say(seen)
    assert peer.hears_error().error == AuthenticationFailed.code


# A client does not believe a broker that does not know the token.

Answer = Callable[[ClientFrame], tuple[Frame, Callable[[Frame], Frame]]]


def challenge_first(then: Callable[[ClientFrame, Frame], Frame]) -> Answer:
    return lambda hello: (ChallengeFrame(nonce=NONCE), lambda heard: then(hello, heard))


IMPOSTORS: dict[str, Answer] = {
    "it claims without knowing": challenge_first(
        lambda hello, _: ProofFrame(proof=Token(OTHER_SECRET).proof("server", hello, NONCE))
    ),
    "it repeats what it heard": challenge_first(lambda _, heard: heard),
    "it has a proof for a follower": challenge_first(
        lambda hello, _: ProofFrame(
            proof=Token(SECRET).proof(
                "server",
                HelloFrame(cluster_id=CLUSTER, broker_id=2, broker_epoch=0, nonce=hello.nonce),
                NONCE,
            )
        )
    ),
    "it welcomes without proof": challenge_first(lambda *_: WelcomeFrame(batch_bytes_max=1 << 20)),
    "it welcomes without asking": lambda _: (WelcomeFrame(batch_bytes_max=1 << 20), lambda heard: heard),
}


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_a_broker_that_does_not_know_the_token_is_not_believed(impostor: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = FrameReceiver(theirs, 1 << 20)

        def play() -> None:
            hello = receiver.receive_first(lambda: None)
            assert isinstance(hello, ClientFrame)
            first, then = IMPOSTORS[impostor](hello)
            send(theirs, encoded(first))
            if isinstance(first, ChallengeFrame):
                send(theirs, encoded(then(receiver.receive_first(lambda: None))))

        playing = threading.Thread(target=play, daemon=True)
        playing.start()
        with pytest.raises(AuthenticationFailed, match=r"the leader (does not know|did not ask)"):
            introduce_client(ours, FrameReceiver(ours, 1 << 20), ClientFrame(cluster_id=CLUSTER), KNOWN, TIMEOUT_S)
        playing.join(TIMEOUT_S)


def test_a_broker_that_says_nothing_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        introduce_client(ours, FrameReceiver(ours, 1 << 20), ClientFrame(), KNOWN, 0.05)


# TLS.


def test_a_client_that_does_not_speak_tls_is_told_so(brokers: Brokers, modes: Modes) -> None:
    leader = brokers.start(1, security=modes.mutual)
    peer = Stranger(leader)
    peer.say(ClientFrame(cluster_id=CLUSTER))
    heard = peer.hears()
    assert isinstance(heard, ErrorFrame)
    assert heard.error == AuthenticationFailed.code
    assert "set security.mode=tls" in heard.message
    still_serves(leader, modes.mutual)


def test_batches_that_come_with_the_end_of_the_tls_handshake_are_answered(brokers: Brokers, modes: Modes) -> None:
    """All of them: the handshake has read them from the socket, which tells of them no more."""
    leader = brokers.start(1, security=modes.mutual)
    leader.command(ORDERS, 1, (1,))
    connection = socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S)
    corked = Corked(connection)
    channel = modes.mutual.connected(cast("socket.socket", corked), "127.0.0.1", TIMEOUT_S)
    data = joined(ClientFrame(cluster_id=CLUSTER)) + stream() + b"".join(map(put, range(40)))
    assert 2 * HANDSHAKE_BYTES_MAX < len(data) < RECORD_BYTES_MAX - HANDSHAKE_BYTES_MAX
    send(channel, [data])
    corked.uncork()
    receiver = FrameReceiver(channel, 1 << 20)
    heard: list[Frame] = []
    while sum(len(frame.answers) for frame in heard if isinstance(frame, PutAnswersFrame)) < 40:
        heard += [frame for frame, _ in receiver.receive()]
    connection.close()
    assert isinstance(heard[0], WelcomeFrame)


def test_over_tls_a_client_is_read_no_more_while_too_many_answers_are_owed(brokers: Brokers, modes: Modes) -> None:
    is_read_no_more_while_too_many_answers_are_owed(brokers, modes.mutual)


def test_over_tls_a_client_is_read_no_more_while_it_takes_no_answers(brokers: Brokers, modes: Modes) -> None:
    is_read_no_more_while_it_takes_no_answers(brokers, modes.mutual)


@pytest.mark.parametrize("mode", ["token", "both"])
def test_one_too_many_is_told_so_once_it_is_known(brokers: Brokers, modes: Modes, mode: str) -> None:
    security = getattr(modes, mode)
    brokers.settings = Settings(flight_writes_max=1)
    leader = brokers.start(1, security=security)
    first = Client(leader, security)
    with pytest.raises(Overloaded, match=r"flight\.writes\.max"):
        Client(leader, security)
    first.leaves()
    eventually(lambda: not producers(leader), "its place is free")
    still_serves(leader, security)


@pytest.mark.parametrize("mode", ["token", "mutual"])
def test_a_mistake_is_told_to_a_known_client_too(brokers: Brokers, modes: Modes, mode: str) -> None:
    security = getattr(modes, mode)
    leader = brokers.start(1, security=security)
    client = Client(leader, security)
    client.say(stream(1), stream(1))
    heard = client.hears_error()
    assert "stream 1 is open" in heard.message
    still_serves(leader, security)


@pytest.mark.parametrize("reads", [False, True])
def test_a_connection_that_has_ended_leaves_no_tls_behind(brokers: Brokers, modes: Modes, *, reads: bool) -> None:
    """It was 90 KiB each, until Python's collector came by: within an hour."""
    leader = brokers.start(1, security=modes.mutual)
    connection = socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S)
    gc.disable()
    try:
        with connection:
            channel = modes.mutual.connected(connection, "127.0.0.1", TIMEOUT_S)
            hello = ClientFrame(cluster_id=CLUSTER, reads=reads)
            introduce_client(channel, FrameReceiver(channel, 1 << 20), hello, None, TIMEOUT_S)
            loop = leader.replication._server.loop
            (known,) = (each for each in loop._connections.values() if isinstance(each, ClientConnection))
            theirs = known._client.channel
            assert isinstance(theirs, TlsChannel)
            held = weakref.ref(theirs._tls)
        eventually(lambda: held() is None, "its memory is given back")
    finally:
        gc.enable()
