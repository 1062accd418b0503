"""The lane of readers at brokers that want proof, and what a reader that is broken, foreign or ill-willed may send."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from msgspec.structs import replace

from spark_replication.client.reading.read_connections import ReadAnswer, ReadConnections
from spark_replication.config import Settings
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable, Overloaded, ReplicationError
from spark_replication.messages.frames import Frame, from_frame
from spark_replication.messages.lane import ClientFrame, ReadAnswerFrame, ReadFrame, WelcomeFrame
from spark_replication.messages.records import ReadTicket
from spark_replication.messages.replication import PROVING_VERSION, ChallengeFrame, ErrorFrame, ProofFrame
from spark_replication.transport.flight import read_stream
from spark_replication.transport.frames import reader_connection
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.security.security import NO_SECURITY, Security
from spark_replication.transport.sockets.frames import LastingReceiver
from spark_replication.transport.sockets.tls_channel import ENCRYPTED_BYTES_MAX
from tests.unit.storage.storage_stories import prepared
from tests.unit.transport.hostile import any_of
from tests.unit.transport.replicas import CLUSTER, TIMEOUT_S, Broker, Brokers
from tests.unit.transport.test_lane import joined, still_serves
from tests.unit.transport.test_reader_lane import (
    LARGE_BYTES,
    ORDERS,
    OTHER,
    WAIT_MS,
    Peer,
    is_stuck,
    large,
    outbox_bytes,
    place_of,
    produce,
    question,
    read_all,
    readers,
    room_bytes,
    still_reads,
    waiters,
)
from tests.unit.transport.test_secured_lane import MISMATCHES
from tests.unit.transport.test_secured_replication import HELLO, NONCE, OTHER_SECRET, Modes, Stranger, dialled
from tests.unit.transport.test_security import SECRET
from tests.waiting import eventually

SECURE = ["token", "mutual", "both"]
CLIENT = ClientFrame(v=PROVING_VERSION, cluster_id=CLUSTER, reads=True, name="client", nonce=NONCE)
ROUNDS = 2_000
SOON_MS = 3
SEED = 20_251


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> Modes:
    return Modes(tmp_path_factory.mktemp("modes"))


def led(brokers: Brokers, security: Security) -> Broker:
    leader = brokers.start(1, security=security)
    for partition in (ORDERS, OTHER):
        leader.command(partition, 1, (1,))
    return leader


# What a known reader gets


@pytest.mark.slow
@pytest.mark.parametrize("mode", SECURE)
@pytest.mark.parametrize("asked", [{}, {"checked": True}], ids=str)
def test_a_known_reader_gets_large_records_and_many_small_ones(
    brokers: Brokers, modes: Modes, mode: str, asked: dict[str, bool]
) -> None:
    security: Security = getattr(modes, mode)
    leader = led(brokers, security)
    small = [prepared(first, 1) for first in range(500)]
    data = produce(leader, *small, large(size=3 << 20), prepared(501, 20_000), *small, large(size=LARGE_BYTES))
    assert read_all(Peer(leader, security), **asked) == data


@pytest.mark.slow
@pytest.mark.parametrize("mode", SECURE)
def test_many_answers_go_over_one_connection_of_a_client(brokers: Brokers, modes: Modes, mode: str) -> None:
    """Each asked for before the one before is taken, so that frames lie side by side."""
    security: Security = getattr(modes, mode)
    leader = led(brokers, security)
    batches = [prepared(first, 1) for first in range(300)]
    produce(leader, *batches)
    connections = ReadConnections(security)
    found: list[bytes] = []
    for _ in range(2):
        with connections.one(place_of(leader)) as connection:
            for offset in range(0, 300, 50):
                for each in range(offset, offset + 50):
                    ticket = ReadTicket(topic="orders", partition=0, from_offset=each, to=each + 1, columns=("row",))
                    connection.ask(ticket, checked=False)
                for _ in range(50):
                    told = connection.told()
                    records = ReadAnswer(told, connection.payload()).records()
                    assert records is not None
                    assert records.first_offset == told.offset
                    found.append(bytes(records.data))
    assert len(found) == 600
    assert len(readers(leader)) == 1, "it was used again"
    assert found[:300] == found[300:]
    connections.close()


@pytest.mark.parametrize("mode", SECURE)
def test_a_known_reader_waits_for_records(brokers: Brokers, modes: Modes, mode: str) -> None:
    security: Security = getattr(modes, mode)
    leader, follower = (brokers.start(number, security=security) for number in (1, 2))
    leader.command(ORDERS, 1, (1, 2))
    produce(leader, prepared(0))
    peer = Peer(leader, security)
    peer.ask(max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 1, "it waits")
    follower.command(ORDERS, 1, (1, 2))
    assert peer.answer().rows() == [0, 1]


def test_over_tls_a_reader_that_takes_nothing_has_one_answer_waiting(brokers: Brokers, modes: Modes) -> None:
    leader = led(brokers, modes.mutual)
    data = produce(leader, large())
    produce(leader, prepared(0), partition=OTHER)
    stuck, other = Peer(leader, modes.mutual, receive_bytes=1 << 14), Peer(leader, modes.mutual)
    stuck.say(*map(question, range(10)))
    eventually(lambda: is_stuck(leader), "it takes nothing")
    for number in range(20):
        other.ask(number, partition=1)
        assert other.answer(number).rows() == [0, 1]
    assert sum(outbox_bytes(leader)) <= len(data) + ENCRYPTED_BYTES_MAX
    assert room_bytes(leader) == 0, "it is read and encrypted as the reader takes it"
    for number in range(10):
        assert bytes(stuck.answer(number).records().data) == data


# Who is not known


@pytest.mark.parametrize(
    ("broker", "reader", "why"),
    MISMATCHES,
)
def test_a_reader_of_another_mode_is_told_why_it_is_refused(
    brokers: Brokers, modes: Modes, broker: str, reader: str, why: str
) -> None:
    security = {"none": NO_SECURITY, **vars(modes)}
    leader = led(brokers, security[broker])
    produce(leader, prepared(0))
    connections = ReadConnections(security[reader])
    with pytest.raises(ReplicationError) as refused, connections.one(place_of(leader)):
        pass
    assert why in refused.value.message
    assert isinstance(refused.value, AuthenticationFailed)
    assert not any(secret in refused.value.message for secret in (SECRET, OTHER_SECRET))
    eventually(lambda: not readers(leader), "it has no place")
    still_reads(leader, security[broker])


@pytest.mark.parametrize("stranger", ["no_certificate", "other_ca"])
def test_a_reader_without_a_good_certificate_is_not_let_in(brokers: Brokers, modes: Modes, stranger: str) -> None:
    leader = led(brokers, modes.mutual)
    connections = ReadConnections(getattr(modes, stranger))
    with pytest.raises((AuthenticationFailed, BrokerNotAvailable)), connections.one(place_of(leader)):
        pass
    eventually(lambda: not readers(leader), "it has no place")
    still_reads(leader, modes.mutual)


STRANGERS: dict[str, Callable[[ClientFrame, bytes], bytes]] = {
    "another secret": lambda hello, nonce: joined(ProofFrame(proof=Token(OTHER_SECRET).proof("client", hello, nonce))),
    "a follower's proof": lambda hello, nonce: joined(
        ProofFrame(proof=Token(SECRET).proof("follower", replace(HELLO, port=hello.port), nonce))
    ),
    "a question": lambda _hello, _nonce: question(),
    "the same again": lambda hello, _nonce: joined(hello),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_told_why_and_reads_nothing(brokers: Brokers, modes: Modes, stranger: str) -> None:
    leader = led(brokers, modes.token)
    produce(leader, prepared(0))
    peer = Stranger(leader)
    hello = dialled(CLIENT, leader)
    peer.say(hello)
    challenge = peer.hears()
    assert isinstance(challenge, ChallengeFrame)
    peer.connection.sendall(STRANGERS[stranger](hello, challenge.nonce) + question())
    heard = peer.hears_error()
    assert heard.error == AuthenticationFailed.code
    assert SECRET not in heard.message
    assert not readers(leader)
    assert leader.replication.reads.consumed.so_far.batches == 0
    still_reads(leader, modes.token)


def test_a_question_that_comes_with_the_proof_is_answered(brokers: Brokers, modes: Modes) -> None:
    leader = led(brokers, modes.token)
    produce(leader, prepared(0))
    peer = Stranger(leader)
    hello = dialled(CLIENT, leader)
    peer.say(hello)
    challenge = peer.hears()
    assert isinstance(challenge, ChallengeFrame)
    own = ProofFrame(proof=Token(SECRET).proof("client", hello, challenge.nonce))
    peer.connection.sendall(joined(own) + question())
    assert isinstance(peer.hears(), ProofFrame)
    assert isinstance(peer.hears(), WelcomeFrame)
    told = peer.hears()
    assert isinstance(told, ReadAnswerFrame)
    assert told.next_offset == 2


@pytest.mark.parametrize("mode", ["token", "both"])
def test_one_too_many_is_told_so_once_it_is_known(brokers: Brokers, modes: Modes, mode: str) -> None:
    security: Security = getattr(modes, mode)
    brokers.settings = Settings(flight_reads_max=1)
    leader = led(brokers, security)
    first = Peer(leader, security)
    with pytest.raises(Overloaded, match=r"flight\.reads\.max"):
        Peer(leader, security)
    still_serves(leader, security)
    first.leaves()
    eventually(lambda: not readers(leader), "its place is free")
    still_reads(leader, security)


@pytest.mark.parametrize("mode", ["token", "mutual"])
def test_a_mistake_is_told_to_a_known_reader_too(brokers: Brokers, modes: Modes, mode: str) -> None:
    security: Security = getattr(modes, mode)
    leader = led(brokers, security)
    peer = Peer(leader, security)
    peer.say(question(1, max_wait_ms=WAIT_MS), question(1))
    assert "question 1 is not answered yet" in peer.hears_error().message
    eventually(lambda: waiters(leader) == 0, "nobody waits")
    still_reads(leader, security)


# Hostile bytes

TICKETS = (
    ReadTicket(topic="orders", partition=0),
    ReadTicket(topic="orders", partition=1, from_offset=3, to=5, max_wait_ms=SOON_MS, topic_id="id"),
    ReadTicket(topic="orders", partition=0, from_offset="latest", max_wait_ms=SOON_MS),
    ReadTicket(topic="orders", partition=0, from_time=7, columns=("text", "row"), any_replica=True),
    ReadTicket(topic="orders", partition=0, columns=("late",)),
)
QUESTIONS = tuple(
    joined(ReadFrame(number=number, ticket=ticket, checked=bool(number % 2))) for number, ticket in enumerate(TICKETS)
)
SAYS_HELLO = joined(ClientFrame(cluster_id=CLUSTER, reads=True))


def conversations(seed: int) -> Iterator[list[bytes]]:
    """Of sound questions with a bad one among them. Some are bad from their first frame on."""
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        frames = [rng.choice(QUESTIONS) for _ in range(rng.randrange(3))]
        frames.insert(rng.randrange(len(frames) + 1), any_of(rng, QUESTIONS))
        yield [any_of(rng, [SAYS_HELLO]) if rng.random() < 0.1 else SAYS_HELLO, *frames]


def answered_soon(said: bytes) -> int:
    """How many frames the broker answers soon, if it is sent this: a hello, and questions."""
    count = start = 0
    while start + 8 <= len(said):
        header, payload = struct.unpack_from("!II", said, start)
        if start + 8 + header + payload > len(said):
            break
        try:
            frame = from_frame(said[start + 8 : start + 8 + header])
        except ReplicationError:
            return count + 1  # it is refused
        count += not isinstance(frame, ReadFrame) or frame.ticket.max_wait_ms <= SOON_MS
        start += 8 + header + payload
    return count


def heard_by(leader: Broker, conversation: list[bytes]) -> list[Frame]:
    """Whatever the broker says to such a reader, until it hangs up. It says the next thing once it was answered."""
    heard: list[Frame] = []
    with socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S) as connection:
        receiver = LastingReceiver(connection, 1 << 24)
        said = b""
        with suppress(ConnectionError, BrokerNotAvailable):
            for frame in conversation:
                connection.sendall(frame)
                said += frame
                while len(heard) < answered_soon(said):
                    heard.append(receiver.frame())
                    receiver.payload()
            with suppress(OSError):  # the broker has hung up
                connection.shutdown(socket.SHUT_WR)
            while True:
                heard.append(receiver.frame())
                receiver.payload()
    return heard


@pytest.mark.slow
def test_hostile_bytes_of_readers_harm_nobody(brokers: Brokers) -> None:
    leader = led(brokers, NO_SECURITY)
    data = produce(leader, *(prepared(first, 2) for first in range(0, 40, 2)), prepared(40, 3_000))
    produce(leader, prepared(0), prepared(2), partition=OTHER)
    good = Peer(leader)
    told: list[Frame] = []
    for round_, conversation in enumerate(conversations(SEED)):
        told += heard_by(leader, conversation)
        if round_ % 20 == 0:
            assert good.read(partition=1, from_offset=3, columns=("row",)).rows() == [2, 3], f"seed={SEED} {round_=}"
    refused = [frame for frame in told if isinstance(frame, ErrorFrame)]
    answered = [frame for frame in told if isinstance(frame, ReadAnswerFrame)]
    assert len(refused) > ROUNDS // 4, "many were no questions"
    assert {frame.error for frame in refused} <= {"INVALID_REQUEST", "UNSUPPORTED_VERSION", "MISROUTED_CALL"}
    assert len(answered) > ROUNDS // 4, "many were sound, or nearly so"
    eventually(lambda: len(readers(leader)) == 1, "all others are forgotten")
    eventually(lambda: waiters(leader) == waiters(leader, OTHER) == 0, "nobody waits")
    assert read_all(good) == data
    assert read_all(Peer(leader), checked=True) == data
    assert room_bytes(leader) == 0
    still_reads(leader)
    still_serves(leader)


def test_both_ways_to_read_have_answers_of_the_same_size() -> None:
    assert reader_connection.READ_BYTES == read_stream.READ_BYTES
