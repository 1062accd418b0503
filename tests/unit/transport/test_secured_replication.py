"""Replication between brokers that prove who they are; whoever cannot is refused and harms nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from spark_replication.config import settings_from
from spark_replication.decoding import error_of
from spark_replication.errors import AuthenticationFailed, ReplicationError
from spark_replication.messages.frames import Frame
from spark_replication.messages.lane import ClientFrame
from spark_replication.messages.replication import (
    PROVING_VERSION,
    ChallengeFrame,
    ErrorFrame,
    FetchedFrame,
    FetchFrame,
    FetchPartition,
    HelloFrame,
    ProofFrame,
)
from spark_replication.model import TopicPartition
from spark_replication.transport.frames import replication_client, replication_server
from spark_replication.transport.proofs.handshake import introduce
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.security import NO_SECURITY, Security, read_security
from spark_replication.transport.sockets.frames import (
    HANDSHAKE_BYTES_MAX,
    SENDFILE_BYTES_MIN,
    FrameReceiver,
    encoded,
    send,
)
from spark_replication.transport.sockets.tls_channel import RECORD_BYTES_MAX
from tests.unit.storage.storage_stories import prepared
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.replicas import CLUSTER, TIMEOUT_S, Broker, Brokers
from tests.unit.transport.test_security import SECRET, broker_settings, token_settings
from tests.unit.transport.test_tls_channel import Corked
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)
HUGE_EPOCH = (1 << 31) - 1
OTHER_SECRET = "not-the-secret-of-this-cluster"


class Modes:
    """The ways in which brokers may know each other."""

    def __init__(self, directory: Path) -> None:
        self.ours, self.theirs = Authority(directory), Authority(directory, "another CA")
        self.broker = self.ours.issue("broker")
        token = token_settings(directory)
        mutual = tls_settings(self.ours, self.broker, mutual=True)
        both = {**tls_settings(self.ours, self.broker), **token, "security.mode": "tls"}
        self.token, self.mutual, self.both = map(self._read, (token, mutual, both))
        self.token_and_own, self.mutual_and_own = (
            self._read({**each, **broker_settings(directory)}) for each in (token, mutual)
        )
        other = directory / "other"
        other.mkdir()
        self.other_token = self._read(token_settings(other, OTHER_SECRET))
        self.no_certificate = self._read(tls_settings(self.ours, None))
        self.other_ca = self._read(tls_settings(self.ours, self.theirs.issue("stranger"), mutual=True))

    def _read(self, settings: dict[str, Any]) -> Security:
        return read_security(settings_from(settings))


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> Modes:
    return Modes(tmp_path_factory.mktemp("modes"))


def started(brokers: Brokers, *security: Security) -> list[Broker]:
    """1 leads orders-0, the others follow."""
    found = [brokers.start(number, security=each) for number, each in enumerate(security, 1)]
    for broker in found:
        broker.command(ORDERS, 1, tuple(range(1, len(security) + 1)))
    return found


def all_answered(leader: Broker, count: int) -> None:
    answers = leader.produce(ORDERS, count)
    eventually(lambda: len(answers) == count, f"{count} acknowledgements")


@pytest.mark.parametrize("mode", ["token", "mutual", "both", "token_and_own", "mutual_and_own"])
def test_what_is_acknowledged_is_the_same_on_every_replica(brokers: Brokers, modes: Modes, mode: str) -> None:
    found = started(brokers, *[getattr(modes, mode)] * 3)
    all_answered(found[0], 2_000)
    answers = list[object]()
    with found[0].partitions[ORDERS] as replica:
        large = prepared(replica.log.log_end, SENDFILE_BYTES_MIN // 8)  # from its file, were it not encrypted
        replica.produce(large, acks="all", now_ms=0, acknowledge=answers.append)
    eventually(lambda: answers, "the large batch is acknowledged")
    files = [broker.files(ORDERS) for broker in found]
    assert len(files[0]) > 4, "several segments"
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("mode", ["token", "mutual"])
def test_who_has_what_clients_have_alone_does_not_follow(brokers: Brokers, modes: Modes, mode: str) -> None:
    with_own = getattr(modes, f"{mode}_and_own")
    leader, _ = started(brokers, with_own, with_own)
    all_answered(leader, 5)
    stranger = socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S)
    with stranger, pytest.raises(AuthenticationFailed, match=r"security\.broker\.token\.file"):
        hello_as_client(stranger, getattr(modes, mode))
    all_answered(leader, 5)


def hello_as_client(connection: socket.socket, security: Security) -> None:
    channel = security.connected(connection, "127.0.0.1", TIMEOUT_S)
    receiver = FrameReceiver(channel, 1 << 20)
    introduce(channel, receiver, PLAIN_HELLO, security.cluster_tokens, TIMEOUT_S)
    heard = receiver.receive_first(lambda: None)
    assert isinstance(heard, ErrorFrame)
    raise error_of(heard.error, heard.message)


@pytest.mark.parametrize("mode", ["token", "mutual"])
def test_a_follower_that_registers_again_is_heard_as_its_new_life(brokers: Brokers, modes: Modes, mode: str) -> None:
    leader, follower = started(brokers, *[getattr(modes, mode)] * 2)
    all_answered(leader, 10)
    with follower.partitions[ORDERS] as replica:
        replica.resign("its session expired")
    follower.replication.registered(7)
    follower.command(ORDERS, 1, (1, 2))
    all_answered(leader, 10)


def test_closing_ends_all_threads(brokers: Brokers, modes: Modes) -> None:
    before = set(threading.enumerate())
    found = started(brokers, modes.both, modes.both)
    all_answered(found[0], 10)
    for broker in found:
        broker.replication.close()
        broker.sockets.stop(TIMEOUT_S)
    eventually(lambda: before.issuperset(threading.enumerate()), "no thread is left")


# Strangers: each is refused, and the broker that it pretends to be goes on.


class Stranger:
    """A peer by hand, on a plain socket."""

    def __init__(self, broker: Broker) -> None:
        self.connection = socket.create_connection(("127.0.0.1", broker.replication.port), timeout=TIMEOUT_S)
        self._receiver = FrameReceiver(self.connection, 1 << 20)

    def say(self, frame: Frame) -> None:
        send(self.connection, encoded(frame))

    def hears(self) -> Frame:
        return self._receiver.receive_first(lambda: None)

    def hears_error(self) -> ErrorFrame:
        heard = self.hears()
        assert isinstance(heard, ErrorFrame), heard
        return heard


NONCE = b"n" * 32
HELLO = HelloFrame(
    v=PROVING_VERSION, cluster_id=CLUSTER, broker_id=2, broker_epoch=HUGE_EPOCH, name="client", nonce=NONCE
)
PLAIN_HELLO = HelloFrame(cluster_id=CLUSTER, broker_id=2, broker_epoch=HUGE_EPOCH)


Said = TypeVar("Said", HelloFrame, ClientFrame)


def dialled(hello: Said, broker: Broker) -> Said:
    return replace(hello, port=broker.replication.port)


def with_proof(
    broker: Broker, proof: Callable[[HelloFrame, bytes], bytes], change: Mapping[str, Any] | None = None
) -> ErrorFrame:
    """proof: of what the stranger says, and the leader's nonce. change: of what it says."""
    stranger = Stranger(broker)
    hello = replace(dialled(HELLO, broker), **(change or {}))
    stranger.say(hello)
    challenge = stranger.hears()
    assert isinstance(challenge, ChallengeFrame)
    stranger.say(ProofFrame(proof=proof(hello, challenge.nonce)))
    return stranger.hears_error()


def another_secret(broker: Broker) -> ErrorFrame:
    return with_proof(broker, partial(Token(OTHER_SECRET).proof, "follower"))


def nothing_to_show(broker: Broker) -> ErrorFrame:
    return with_proof(broker, lambda _hello, _nonce: b"")


def another_name(broker: Broker) -> ErrorFrame:
    return with_proof(broker, partial(Token(SECRET).proof, "follower"), {"name": "another"})


def passed_on(broker: Broker) -> ErrorFrame:
    """A proof that its owner made for whoever listens at another port."""
    return with_proof(broker, partial(Token(SECRET).proof, "follower"), {"port": broker.replication.port + 1})


def another_life(broker: Broker) -> ErrorFrame:
    """A proof that its owner made for an epoch of its own."""
    own = Token(SECRET)
    return with_proof(broker, lambda hello, nonce: own.proof("follower", replace(hello, broker_epoch=0), nonce))


def the_other_side(broker: Broker) -> ErrorFrame:
    return with_proof(broker, partial(Token(SECRET).proof, "server"))


def replayed(broker: Broker) -> ErrorFrame:
    """What a true follower said once, seen on the way, said again."""
    seen: list[Frame] = []
    true = Stranger(broker)
    hello = replace(dialled(HELLO, broker), broker_epoch=0)
    true.say(hello)
    challenge = true.hears()
    assert isinstance(challenge, ChallengeFrame)
    seen.append(ProofFrame(proof=Token(SECRET).proof("follower", hello, challenge.nonce)))
    true.say(seen[0])
    assert isinstance(true.hears(), ProofFrame), "it was good then"
    true.connection.close()
    stranger = Stranger(broker)
    stranger.say(hello)
    assert isinstance(stranger.hears(), ChallengeFrame)
    stranger.say(seen[0])
    return stranger.hears_error()


def no_proof_at_all(broker: Broker) -> ErrorFrame:
    """What a broker without security says, or one of an older version."""
    stranger = Stranger(broker)
    stranger.say(PLAIN_HELLO)
    return stranger.hears_error()


def fetches_instead(broker: Broker) -> ErrorFrame:
    stranger = Stranger(broker)
    stranger.say(HELLO)
    stranger.hears()
    stranger.say(FetchFrame(number=1, partitions=(fetch(),)))
    return stranger.hears_error()


def fetch() -> FetchPartition:
    return FetchPartition(
        topic="orders", partition=0, topic_id="id", leader_epoch=0, offset=0, last_epoch=-1, clean_since=0
    )


STRANGERS = [
    another_secret,
    another_name,
    nothing_to_show,
    another_life,
    the_other_side,
    replayed,
    no_proof_at_all,
    fetches_instead,
]


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: stranger.__name__)
def test_a_stranger_is_told_why_and_shuts_nobody_out(
    brokers: Brokers, modes: Modes, stranger: Callable[[Broker], ErrorFrame]
) -> None:
    leader, _ = started(brokers, modes.token, modes.token)
    all_answered(leader, 5)
    heard = stranger(leader)
    assert heard.error == AuthenticationFailed.code
    assert "security.token.file of both sides" in heard.message
    assert SECRET not in heard.message
    all_answered(leader, 5)


def test_a_connection_that_was_passed_on_is_refused(brokers: Brokers, modes: Modes) -> None:
    leader, _ = started(brokers, modes.token, modes.token)
    heard = passed_on(leader)
    assert heard.error == AuthenticationFailed.code
    assert f"port {leader.replication.port + 1} was dialled, and this is port" in heard.message
    all_answered(leader, 5)


def _epoch_of(leader: Broker, follower: int) -> int | None:
    """Of the follower's connection that counts."""
    connection = leader.replication._server.followers.of(follower)
    return None if connection is None else connection.end.broker_epoch


def test_without_security_a_huge_epoch_does_shut_out(brokers: Brokers) -> None:
    """What the proof is there against: so the tests above would notice."""
    leader, follower = started(brokers, NO_SECURITY, NO_SECURITY)
    all_answered(leader, 5)
    stranger = Stranger(leader)
    stranger.say(PLAIN_HELLO)
    eventually(lambda: _epoch_of(leader, 2) == HUGE_EPOCH, "it took the place")
    answers = leader.produce(ORDERS, 1)
    eventually(lambda: follower.replication._client._links.to(1)._end._attempts > 2, "the follower is refused")
    assert answers == []


def test_fetches_that_come_with_the_end_of_the_tls_handshake_are_answered(brokers: Brokers, modes: Modes) -> None:
    """All of them: the handshake has read them from the socket, which tells of them no more."""
    leader = brokers.start(1, security=modes.mutual)
    connection = socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S)
    corked = Corked(connection)
    channel = modes.mutual.connected(cast("socket.socket", corked), "127.0.0.1", TIMEOUT_S)
    asked = tuple(replace(fetch(), partition=number) for number in range(80))
    frame = encoded(FetchFrame(number=1, partitions=asked))
    assert HANDSHAKE_BYTES_MAX < sum(map(len, frame)) < RECORD_BYTES_MAX - HANDSHAKE_BYTES_MAX
    send(channel, [*encoded(PLAIN_HELLO), *frame])
    corked.uncork()
    receiver = FrameReceiver(channel, 1 << 26)
    heard: set[int] = set()
    while len(heard) < len(asked):
        answers = [found.frame for found in receiver.receive()]
        heard |= {each.partition.partition for each in answers if isinstance(each, FetchedFrame) and each.number == 1}
    connection.close()


@pytest.mark.parametrize("stranger", ["no_certificate", "other_ca"])
def test_a_huge_epoch_without_a_good_certificate_shuts_nobody_out(
    brokers: Brokers, modes: Modes, stranger: str
) -> None:
    leader, _ = started(brokers, modes.mutual, modes.mutual)
    all_answered(leader, 5)
    connection = socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S)
    with connection, pytest.raises((ReplicationError, OSError)):
        hello_over_tls(connection, getattr(modes, stranger))
    all_answered(leader, 5)


def hello_over_tls(connection: socket.socket, security: Security) -> None:
    """Until the leader hangs up."""
    channel = security.connected(connection, "127.0.0.1", TIMEOUT_S)
    send(channel, encoded(PLAIN_HELLO))
    connection.settimeout(TIMEOUT_S)
    receiver = FrameReceiver(channel, 1 << 20)
    while True:
        receiver.receive()


def test_a_plain_hello_to_a_tls_port_is_told_so(brokers: Brokers, modes: Modes) -> None:
    leader, _ = started(brokers, modes.mutual, modes.mutual)
    heard = no_proof_at_all(leader)
    assert heard.error == AuthenticationFailed.code
    assert "set security.mode=tls" in heard.message
    all_answered(leader, 5)


@pytest.mark.parametrize("mode", ["token", "mutual", "both"])
@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        b"\x16\x03\x01\x02\x00" + b"\xee" * 600,
        b"\x00\x00\x00\x04\x00\x00\x00\x00\xc1\xc1\xc1\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00",
    ],
)
def test_garbage_in_the_handshake_harms_nobody(brokers: Brokers, modes: Modes, mode: str, garbage: bytes) -> None:
    leader, _ = started(brokers, *[getattr(modes, mode)] * 2)
    connection = socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S)
    with connection, suppress(OSError):  # a leader that has had enough hangs up at once
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    all_answered(leader, 5)
    eventually(lambda: len(leader.replication._server._connections) == 1, "the stranger's connection is gone")


def test_of_a_peer_that_is_not_known_little_is_read(brokers: Brokers, modes: Modes) -> None:
    leader, _ = started(brokers, modes.token, modes.token)
    stranger = Stranger(leader)
    stranger.say(replace(HELLO, cluster_id="c" * HANDSHAKE_BYTES_MAX))
    assert f"{HANDSHAKE_BYTES_MAX} at most" in stranger.hears_error().message
    all_answered(leader, 5)


@pytest.mark.parametrize("mode", ["token", "both"])
def test_a_handshake_that_does_not_end_is_given_up(
    brokers: Brokers, modes: Modes, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it has one timeout, however often the peer sends another byte."""
    monkeypatch.setattr(replication_server, "HELLO_TIMEOUT_S", 0.3)
    leader = brokers.start(1, security=getattr(modes, mode))
    data = b"\x16\x03\x01\x7f\xff" if mode == "both" else b"\x00\x00\x0f\x00"
    with socket.create_connection(("127.0.0.1", leader.replication.port), timeout=0.02) as connection:
        connection.sendall(data)
        eventually(lambda: _dripped(connection), "the leader hangs up")
    eventually(lambda: not leader.replication._server._connections, "it is forgotten")


def _dripped(connection: socket.socket) -> bool:
    """True: the peer is gone."""
    try:
        connection.sendall(b"\0")
        return connection.recv(1 << 10) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


# The follower's side: it does not believe a leader that does not know the token.


@pytest.mark.parametrize(("leader", "follower"), [("token", "other_token"), ("other_token", "token")])
def test_brokers_with_two_tokens_do_not_replicate(
    brokers: Brokers, modes: Modes, leader: str, follower: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = started(brokers, getattr(modes, leader), getattr(modes, follower))
    answers = found[0].produce(ORDERS, 1)
    eventually(lambda: "a follower does not know this cluster's token" in caplog.text, "both logs say why")
    assert answers == []
    assert SECRET not in caplog.text
    assert OTHER_SECRET not in caplog.text


@pytest.mark.parametrize(
    ("leader", "follower", "why"),
    [
        ("none", "token", "none is set here"),
        ("token", "none", "a follower has none"),
        ("mutual", "none", "its peer does not: set security.mode=tls"),
        ("none", "mutual", "TLS with the peer at 127.0.0.1 failed"),
        ("token", "mutual", "TLS with the peer at 127.0.0.1 failed"),
        ("mutual", "token", "its peer does not: set security.mode=tls"),
    ],
)
def test_brokers_of_two_modes_say_why_they_do_not_replicate(
    brokers: Brokers, modes: Modes, leader: str, follower: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    security = {"none": NO_SECURITY, "token": modes.token, "mutual": modes.mutual}
    found = started(brokers, security[leader], security[follower])
    answers = found[0].produce(ORDERS, 1)
    heard = "replication from broker 1 at"
    eventually(
        lambda: any(heard in message and why in message for message in caplog.messages),
        "the follower's log says why",
    )
    assert answers == []


Answer = Callable[[socket.socket, FrameReceiver, HelloFrame], None]


def claims_without_knowing(connection: socket.socket, receiver: FrameReceiver, hello: HelloFrame) -> None:
    send(connection, encoded(ChallengeFrame(nonce=NONCE)))
    receiver.receive_first(lambda: None)
    send(connection, encoded(ProofFrame(proof=Token(OTHER_SECRET).proof("server", hello, NONCE))))


def repeats_what_it_heard(connection: socket.socket, receiver: FrameReceiver, hello: HelloFrame) -> None:
    send(connection, encoded(ChallengeFrame(nonce=NONCE)))
    heard = receiver.receive_first(lambda: None)
    send(connection, encoded(heard))


def goes_on_without_asking(connection: socket.socket, receiver: FrameReceiver, hello: HelloFrame) -> None:
    send(connection, encoded(ProofFrame(proof=b"")))


def goes_on_without_proof(connection: socket.socket, receiver: FrameReceiver, hello: HelloFrame) -> None:
    send(connection, encoded(ChallengeFrame(nonce=NONCE)))
    receiver.receive_first(lambda: None)
    send(connection, encoded(FetchFrame(number=1, partitions=())))


@pytest.mark.parametrize(
    "leader",
    [claims_without_knowing, repeats_what_it_heard, goes_on_without_asking, goes_on_without_proof],
    ids=lambda leader: leader.__name__,
)
def test_a_leader_that_does_not_know_the_token_is_not_believed(leader: Answer) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = FrameReceiver(theirs, 1 << 20)

        def play() -> None:
            hello = receiver.receive_first(lambda: None)
            assert isinstance(hello, HelloFrame)
            leader(theirs, receiver, hello)

        playing = threading.Thread(target=play, daemon=True)
        playing.start()
        with pytest.raises(AuthenticationFailed, match=r"the leader (does not know|did not ask)"):
            introduce(ours, FrameReceiver(ours, 1 << 20), PLAIN_HELLO, Tokens.of(Token(SECRET)), TIMEOUT_S)
        playing.join()


def test_a_leader_that_says_nothing_is_given_up(
    brokers: Brokers, modes: Modes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication_client, "HELLO_TIMEOUT_S", 0.1)
    caplog.set_level("INFO")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        brokers.addresses[1] = silent.getsockname()[:2]
        brokers.start(2, security=modes.token).command(ORDERS, 1, (1, 2))
        eventually(lambda: caplog.text.count("timed out") > 1, "it tries again, and says so")
