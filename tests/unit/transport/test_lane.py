"""The lane: producers' batches over real sockets, as frames that a client sends by hand."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_replication.config import Settings
from spark_replication.engine.ends.put_end import PutEnd
from spark_replication.engine.ends.slow_disks import SLOW_MS
from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    MisroutedCall,
    Overloaded,
    ReplicationError,
)
from spark_replication.messages.frames import Frame
from spark_replication.messages.lane import (
    STREAMS_MAX,
    ClientFrame,
    PutAnswer,
    PutAnswersFrame,
    PutFrame,
    StreamFrame,
    WelcomeFrame,
)
from spark_replication.messages.records import BatchMetadata
from spark_replication.messages.replication import ErrorFrame, FetchFrame, HelloFrame
from spark_replication.model import TopicPartition
from spark_replication.ports import BatchPlace
from spark_replication.storage.format.batches import schema_to_bytes, serialized
from spark_replication.storage.log.partition_log import PartitionLog
from spark_replication.transport.frames import producer_connection
from spark_replication.transport.frames.producer_connection import ProducerConnection
from spark_replication.transport.frames.replication_server import PRODUCERS
from spark_replication.transport.proofs.handshake import introduce_client
from spark_replication.transport.security.security import NO_SECURITY, Security
from spark_replication.transport.sockets.frames import FrameReceiver, Outbox, encoded, send
from tests.unit.storage.every_type import SAMPLES
from tests.unit.storage.storage_stories import SCHEMA, read, read_batches, read_rows, rows
from tests.unit.transport.replicas import CLUSTER, TIMEOUT_S, Broker, Brokers
from tests.waiting import eventually

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
BATCH = rows(0, 2)
Told = TypeVar("Told")


def stream(
    number: int = 0, *, topic: str = "orders", topic_id: str = "id", schema: pa.Schema | bytes = SCHEMA
) -> bytes:
    head = schema if isinstance(schema, bytes) else schema_to_bytes(schema)
    return joined(StreamFrame(stream=number, topic=topic, topic_id=topic_id), head)


def put(
    number: int,
    batch: pa.RecordBatch | bytes = BATCH,
    *,
    to: int = 0,
    of_stream: int = 0,
    crc: int | None = None,
    **asked: object,
) -> bytes:
    """to: the partition. asked: the rest of the batch's metadata."""
    message = bytes(serialized(batch)[0]) if isinstance(batch, pa.RecordBatch) else batch
    metadata = BatchMetadata(partition=to, **asked)  # type: ignore[arg-type]
    frame = PutFrame(stream=of_stream, number=number, crc=crc32c(message) if crc is None else crc, batch=metadata)
    return joined(frame, message)


def joined(frame: Frame, payload: bytes | memoryview = b"") -> bytes:
    return b"".join(map(bytes, encoded(frame, payload)))


class Client:
    """A producer by hand. It has been welcomed."""

    def __init__(self, broker: Broker, security: Security = NO_SECURITY, *, cluster_id: str = CLUSTER) -> None:
        connection = socket.create_connection(("127.0.0.1", broker.replication.port), timeout=TIMEOUT_S)
        try:
            self.channel = security.connected(connection, "127.0.0.1", TIMEOUT_S)
            self._receiver = FrameReceiver(self.channel, 1 << 26)
            hello = ClientFrame(cluster_id=cluster_id, port=broker.replication.port)
            self.welcome = introduce_client(self.channel, self._receiver, hello, security.tokens, TIMEOUT_S)
        except BaseException:
            connection.close()
            raise
        self.channel.settimeout(TIMEOUT_S)
        self._frames: list[Frame] = [frame for frame, _ in self._receiver.whole()]

    def say(self, *frames: bytes) -> None:
        send(self.channel, frames)

    def hears(self) -> Frame:
        while not self._frames:
            self._frames += [frame for frame, _ in self._receiver.receive()]
        return self._frames.pop(0)

    def answers(self, count: int) -> dict[int, PutAnswer]:
        """So many answers, by number, in the order in which they came."""
        found: dict[int, PutAnswer] = {}
        while len(found) < count:
            heard = self.hears()
            assert isinstance(heard, PutAnswersFrame), heard
            for answer in heard.answers:
                assert answer.number not in found, "each is answered once"
                found[answer.number] = answer
        return found

    def is_told(self, number: int) -> PutAnswer:
        (answer,) = self.answers(1).values()
        assert answer.number == number
        return answer

    def hears_error(self) -> ErrorFrame:
        """And the broker has hung up then."""
        heard = self.hears()
        assert isinstance(heard, ErrorFrame), heard
        with pytest.raises((BrokerNotAvailable, ConnectionResetError)):
            self._receiver.receive()
        return heard

    def leaves(self) -> None:
        self.channel.close()


def leads(brokers: Brokers, *partitions: TopicPartition, replicas: tuple[int, ...] = (1,)) -> Broker:
    """Broker 1, which leads these."""
    leader = brokers.start(1)
    for partition in partitions or (ORDERS,):
        leader.command(partition, 1, replicas)
    return leader


def stored(broker: Broker, partition: TopicPartition = ORDERS) -> list[int]:
    return read_rows(log_of(broker, partition))


def log_of(broker: Broker, partition: TopicPartition = ORDERS) -> PartitionLog:
    log = broker.replica(partition).log
    assert isinstance(log, PartitionLog)
    return log


def producers(broker: Broker) -> Collection[socket.socket]:
    return broker.replication._server._clients[PRODUCERS]


def still_serves(broker: Broker, security: Security = NO_SECURITY) -> None:
    """Another client's batch of its own partition."""
    other = TopicPartition("other", 0)
    broker.command(other, broker.me.broker, (broker.me.broker,))
    end = broker.replica(other).log.log_end
    client = Client(broker, security)
    client.say(stream(topic="other"), put(0))
    assert client.is_told(0) == PutAnswer(number=0, base_offset=end, last_offset=end + 1)
    client.leaves()


# What is stored and answered.


def test_a_client_is_welcomed_before_it_sends_anything(brokers: Brokers) -> None:
    brokers.settings = Settings(batch_bytes_max=12_345)
    assert Client(leads(brokers)).welcome == WelcomeFrame(batch_bytes_max=12_345)


def test_batches_of_several_streams_and_partitions_are_answered_by_number(brokers: Brokers) -> None:
    bills = TopicPartition("bills", 0)
    leader = leads(brokers, ORDERS, OTHER, bills)
    client = Client(leader)
    client.say(
        stream(3),
        stream(8, topic="bills"),
        put(10, rows(0, 2), of_stream=3),
        put(7, rows(0, 5), of_stream=8),
        put(99, rows(0, 1), of_stream=3, to=1),
        put(0, rows(2, 3), of_stream=3),
    )
    assert client.answers(4) == {
        10: PutAnswer(number=10, base_offset=0, last_offset=1),
        7: PutAnswer(number=7, base_offset=0, last_offset=4),
        99: PutAnswer(number=99, base_offset=0, last_offset=0),
        0: PutAnswer(number=0, base_offset=2, last_offset=4),
    }
    client.say(put(10, rows(1, 1), of_stream=3, to=1))
    assert client.is_told(10).base_offset == 1, "a number that was answered names another batch"
    assert [stored(leader, each) for each in (ORDERS, OTHER, bills)] == [
        [0, 1, 2, 3, 4],
        [0, 1],
        [0, 1, 2, 3, 4],
    ]


def test_only_acks_all_waits_for_the_followers(brokers: Brokers) -> None:
    leader = leads(brokers, replicas=(1, 2))
    client = Client(leader)
    client.say(stream(), put(0, acks="all"), put(1, acks=1), put(2, acks=0), put(3, acks="all"), put(4, acks=1))
    told = client.answers(3)
    assert [(number, answer.error, answer.base_offset) for number, answer in told.items()] == [
        (1, "NONE", 2),
        (2, "NONE", 4),
        (4, "NONE", 8),
    ]
    follower = brokers.start(2)
    follower.command(ORDERS, 1, (1, 2))
    assert [answer.base_offset for answer in client.answers(2).values()] == [0, 6]
    assert follower.replica(ORDERS).log.log_end == 10


def test_acks_all_that_no_follower_confirms_is_given_up_in_time(brokers: Brokers) -> None:
    brokers.settings = Settings(request_timeout_ms=200)
    leader = leads(brokers, ORDERS, replicas=(1, 2))
    client = Client(leader)
    client.say(stream(), put(0))
    told = client.is_told(0)
    assert (told.error, told.retriable, told.maybe_written) == ("REQUEST_TIMED_OUT", True, True)
    client.say(put(0, acks=1))
    assert client.is_told(0).base_offset == 2, "its number is free, and the connection goes on"


@pytest.mark.parametrize("aside", [False, True])
def test_what_is_stored_is_byte_for_byte_what_was_sent(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, *, aside: bool
) -> None:
    """aside: another thread than the loop appends, as it does with large batches."""
    if aside:
        monkeypatch.setattr(PutEnd, "large_bytes_min", 1)
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    batches = [rows(10 * number, 1 + number) for number in range(10)]
    client = Client(leader)
    client.say(stream(), *(put(number, batch) for number, batch in enumerate(batches)))
    assert list(client.answers(10)) == list(range(10))
    sent = b"".join(bytes(serialized(batch)[0]) for batch in batches)
    for broker in (leader, follower):
        log = log_of(broker)
        found = read(log, 0, bytes_max=1 << 20, end=log.log_end)
        assert found is not None
        assert bytes(found.data) == sent
    assert leader.files(ORDERS) == follower.files(ORDERS)


def test_many_small_batches_come_in_one_send(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    client = Client(leader)
    client.say(stream(), *(put(number, rows(number, 1), to=number % 2) for number in range(3_000)))
    told = client.answers(3_000)
    assert [told[number].base_offset for number in range(3_000)] == [number // 2 for number in range(3_000)]
    assert stored(leader) == list(range(0, 3_000, 2))


def test_a_frame_comes_in_many_sends(brokers: Brokers) -> None:
    client = Client(leads(brokers))
    data = stream() + put(0)
    for place in range(len(data)):
        client.say(data[place : place + 1])
    assert client.is_told(0).last_offset == 1


def test_a_frame_larger_than_the_receive_buffer_is_served(brokers: Brokers) -> None:
    leader = leads(brokers)
    client = Client(leader)
    large = pa.record_batch([pa.array([1]), pa.array(["x" * (5 << 20)])], schema=SCHEMA)
    client.say(stream(), put(0, large), put(1))
    assert [answer.base_offset for answer in client.answers(2).values()] == [0, 1]
    assert next(read_batches(log_of(leader))).equals(large)


def test_frames_that_come_with_the_last_bytes_of_the_handshake_are_served(brokers: Brokers) -> None:
    leader = leads(brokers)
    with socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(joined(ClientFrame(cluster_id=CLUSTER)) + stream() + put(0) + put(1))
        receiver = FrameReceiver(connection, 1 << 20)
        assert isinstance(receiver.receive_first(lambda: None), WelcomeFrame)
        heard = [frame for frame, _ in receiver.whole()]
        while sum(len(frame.answers) for frame in heard if isinstance(frame, PutAnswersFrame)) < 2:
            heard += [frame for frame, _ in receiver.receive()]
    assert stored(leader) == [0, 1, 0, 1]


# What is refused, and what goes on.


def test_a_refused_batch_takes_the_later_ones_with_it_until_it_comes_again(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)

    def mine(number: int, sequence: int, **asked: object) -> bytes:
        return put(number, rows(sequence, 1), producer=7, sequence=sequence, **asked)  # type: ignore[arg-type]

    client = Client(leader)
    client.say(
        stream(),
        mine(0, 0),
        mine(1, 1, crc=1),
        mine(2, 2),
        put(3, rows(0, 1), producer=8, sequence=0),
        put(4, rows(0, 1), producer=7, sequence=0, to=1),
        mine(5, 2),
        mine(6, 1),
        mine(7, 2),
        mine(8, 1),
    )
    told = client.answers(9)
    assert {number: answer.error for number, answer in told.items() if answer.error != "NONE"} == {
        1: "BROKER_NOT_AVAILABLE",
        2: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        5: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    }
    assert not any(answer.maybe_written for answer in told.values())
    assert told[8].base_offset == told[6].base_offset, "what is stored has its place"
    assert stored(leader) == [0, 0, 1, 2]


WRONG_BATCHES: dict[str, tuple[bytes, str, str]] = {
    "the crc is another": (put(0, crc=7), "BROKER_NOT_AVAILABLE", "CRC-32C"),
    "it is no message": (put(0, b""), "INVALID_REQUEST", "not one IPC message"),
    "two messages": (
        put(0, b"".join(bytes(serialized(BATCH)[0]) for _ in "12")),
        "INVALID_REQUEST",
        "not one IPC message",
    ),
    "no rows": (put(0, rows(0, 0)), "INVALID_REQUEST", "without rows"),
    "too large": (put(0, rows(0, 2_000)), "MESSAGE_TOO_LARGE", "batch.bytes.max"),
    "unknown partition": (put(0, to=9), "UNKNOWN_TOPIC_OR_PARTITION", "orders-9"),
    "led by another": (put(0, to=1), "NOT_LEADER_OR_FOLLOWER", "lead"),
    "unknown producer": (put(0, producer=1, sequence=3), "OUT_OF_ORDER_SEQUENCE_NUMBER", "3"),
    "which partition": (
        joined(PutFrame(stream=0, number=0, crc=0, batch=BatchMetadata())),
        "INVALID_REQUEST",
        "which partition",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_BATCHES)
def test_a_wrong_batch_is_refused_alone(brokers: Brokers, wrong: str) -> None:
    brokers.settings = Settings(batch_bytes_max=2_000)
    leader = leads(brokers)
    leader.command(OTHER, 2, (1, 2))
    frame, code, why = WRONG_BATCHES[wrong]
    client = Client(leader)
    client.say(stream(), frame, put(1))
    told = client.answers(2)
    assert (told[0].error, told[0].maybe_written) == (code, False)
    assert why in told[0].message
    assert told[1] == PutAnswer(number=1, base_offset=0, last_offset=1)
    assert leader.replication.lane.produced.so_far.batches == 1


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        (pa.schema([pa.field("row", pa.int64())]), "SCHEMA_MISMATCH"),
        (SCHEMA.append(pa.field("new", pa.int8())), "UNKNOWN_SCHEMA_VERSION"),
    ],
)
def test_batches_of_another_schema_than_the_topics_are_refused(brokers: Brokers, schema: pa.Schema, code: str) -> None:
    leader = leads(brokers)
    client = Client(leader)
    columns = [pa.nulls(1, field.type) for field in schema]
    client.say(stream(1, schema=schema), stream(), put(0, pa.record_batch(columns, schema=schema), of_stream=1), put(1))
    told = client.answers(2)
    assert (told[0].error, told[1].error) == (code, "NONE")


@pytest.mark.parametrize("aside", [False, True])
def test_a_batch_for_a_topic_that_was_made_again_is_refused(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, *, aside: bool
) -> None:
    if aside:
        monkeypatch.setattr(PutEnd, "large_bytes_min", 1)
    leader = brokers.start(1)
    leader.open(ORDERS, "new")
    leader.command(ORDERS, 1, (1,))
    client = Client(leader)
    client.say(stream(0, topic_id="old"), stream(1, topic_id="new"), put(0), put(1, of_stream=1))
    told = client.answers(2)
    assert (told[0].error, told[0].retriable, told[0].maybe_written) == ("NOT_LEADER_OR_FOLLOWER", True, False)
    assert told[1] == PutAnswer(number=1, base_offset=0, last_offset=1)


# A client that does not read, and a partition that is not free.


def fill(client: Client, frame: Callable[[int], bytes], stops: Callable[[], bool]) -> tuple[int, Outbox]:
    """Sends such frames until the broker reads no more, and the socket takes no more. Returns how many, and what is
    left of the last."""
    client.channel.setblocking(False)
    outbox = Outbox(client.channel)
    sent = 0

    def is_stuck() -> bool:
        nonlocal sent
        outbox.flush()
        while not outbox:
            outbox.put([frame(sent)])
            outbox.flush()
            sent += 1
        return stops()

    eventually(is_stuck, "the broker reads no more")
    client.channel.setblocking(True)
    client.channel.settimeout(TIMEOUT_S)
    return sent, outbox


@contextmanager
def sending(rest: Outbox) -> Iterator[None]:
    thread = threading.Thread(target=rest.flush, daemon=True)
    thread.start()
    yield
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def reads(broker: Broker) -> bool:
    """Whether the only producer is read from, as the loop sees it."""
    return of_only_producer(broker, lambda connection: connection.reads)


def owed(broker: Broker) -> int:
    """How many batches of the only producer have come, and have no answer yet."""
    return of_only_producer(broker, lambda connection: len(connection._end.owed))


def of_only_producer(broker: Broker, told: Callable[[ProducerConnection], Told]) -> Told:
    found: list[Told] = []

    def look() -> None:
        found.extend(
            told(each) for each in broker.sockets._connections.values() if isinstance(each, ProducerConnection)
        )

    assert broker.sockets.call(look, TIMEOUT_S)
    (only,) = found
    return only


def is_read_no_more_while_too_many_answers_are_owed(brokers: Brokers, security: Security = NO_SECURITY) -> None:
    unanswered_max, large = 10, rows(0, 5_000)
    brokers.settings = Settings(stream_unanswered_max=unanswered_max)
    leader = brokers.start(1, security=security)
    leader.command(ORDERS, 1, (1, 2))
    client = Client(leader, security)
    client.say(stream())
    sent, rest = fill(client, lambda number: put(number, large), lambda: not reads(leader))
    taken = owed(leader)
    of_one_receive = (2 << 20) // large.nbytes
    assert unanswered_max <= taken <= unanswered_max + of_one_receive < sent
    log = leader.replica(ORDERS).log
    eventually(lambda: log.log_end == taken * large.num_rows, "what has come is appended, aside if it is slow")
    assert not reads(leader)
    assert log.log_end == taken * large.num_rows, "it stays so"
    brokers.start(2, security=security).command(ORDERS, 1, (1, 2))
    with sending(rest):
        assert list(client.answers(sent)) == list(range(sent))
    eventually(lambda: reads(leader), "it is read from again")


def test_a_client_is_read_no_more_while_too_many_answers_are_owed(brokers: Brokers) -> None:
    is_read_no_more_while_too_many_answers_are_owed(brokers)


def is_read_no_more_while_it_takes_no_answers(brokers: Brokers, security: Security = NO_SECURITY) -> None:
    """Its answers are long, so that few of them fill the sockets between."""
    leader = brokers.start(1, security=security)
    leader.command(ORDERS, 1, (1,))
    client = Client(leader, security)
    nowhere = "x" * 100_000
    client.say(stream(0, topic=nowhere), stream(1))
    sent, rest = fill(client, lambda number: put(number, rows(0, 5_000)), lambda: not reads(leader))
    assert not reads(leader)
    with sending(rest):
        told = client.answers(sent)
    assert list(told) == list(range(sent))
    assert all(nowhere in answer.message for answer in told.values())
    client.say(put(0, of_stream=1))
    assert client.is_told(0).base_offset == 0


def test_a_client_is_read_no_more_while_it_takes_no_answers(brokers: Brokers) -> None:
    is_read_no_more_while_it_takes_no_answers(brokers)


def test_a_client_that_takes_no_answers_holds_up_nobody_else(brokers: Brokers) -> None:
    leader = leads(brokers)
    client = Client(leader)
    client.say(stream(topic="x" * 100_000))
    fill(client, lambda number: put(number, rows(0, 5_000)), lambda: not reads(leader))
    still_serves(leader)
    client.leaves()
    eventually(lambda: not producers(leader), "it is noticed that it has left")


def test_a_partition_that_another_thread_has_delays_its_own_batches_alone(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    client = Client(leader)
    client.say(stream())
    with leader.partitions[ORDERS]:
        client.say(*(put(number, rows(number, 1)) for number in range(3)), put(9, to=1))
        assert client.is_told(9).base_offset == 0
        assert leader.replica(ORDERS).log.log_end == 0
        still_serves(leader)
    assert [answer.base_offset for answer in client.answers(3).values()] == [0, 1, 2]
    assert stored(leader) == [0, 1, 2]


def test_many_batches_for_a_somewhat_slow_disk_let_others_have_their_turn(brokers: Brokers) -> None:
    """No write is so slow that the next one waits aside."""
    partitions = [TopicPartition("orders", number) for number in range(20)]
    leader = leads(brokers, *partitions)
    written: list[TopicPartition] = []
    second = threading.Event()

    def slowly(partition: TopicPartition, append: Callable[..., BatchPlace], *batch: Any, **numbers: Any) -> BatchPlace:
        if written:
            second.set()
        time.sleep(0.8 * SLOW_MS / 1000)
        written.append(partition)
        return append(*batch, **numbers)

    for partition in partitions:
        log = log_of(leader, partition)
        log.append = partial(slowly, partition, log.append)  # type: ignore[method-assign]
    client = Client(leader)
    client.say(stream() + b"".join(put(number, to=number) for number in range(len(partitions))))
    assert second.wait(TIMEOUT_S)
    meanwhile: list[int] = []
    assert leader.sockets.call(lambda: meanwhile.append(len(written)), TIMEOUT_S)
    assert meanwhile[0] < len(partitions)
    assert {answer.base_offset for answer in client.answers(len(partitions)).values()} == {0}
    assert written == partitions


def test_copies_that_wait_take_no_more_than_their_room(brokers: Brokers) -> None:
    """flight.write.bytes.max, for all clients. Whoever has no copies is read from."""
    large = rows(0, 5_000)
    brokers.settings = Settings(flight_write_bytes_max=12 * large.nbytes)
    leader = leads(brokers, ORDERS)
    client = Client(leader)
    client.say(stream())
    with leader.partitions[ORDERS]:
        sent, rest = fill(client, lambda number: put(number, large), lambda: not reads(leader))
        kept = leader.replication.lane.kept
        assert kept.bytes_max <= kept.bytes < kept.bytes_max + (2 << 20)
        still_serves(leader)
    with sending(rest):
        assert list(client.answers(sent)) == list(range(sent))
    # Where the disk was slow meanwhile, another thread has appended, and an answer may be there before its room is.
    eventually(lambda: kept.bytes == 0, "all the room is given back")


def test_a_client_whose_copies_are_appended_is_read_again_before_followers_confirm(brokers: Brokers) -> None:
    large = rows(0, 5_000)
    brokers.settings = Settings(flight_write_bytes_max=4 * large.nbytes, request_timeout_ms=600_000)
    leader = leads(brokers, ORDERS, replicas=(1, 2))
    leader.command(OTHER, 1, (1,))
    client = Client(leader)
    client.say(stream())
    with leader.partitions[ORDERS]:
        client.say(put(0, large), put(1, large), put(2, large))
        eventually(lambda: not reads(leader), "copies take all the room")
    eventually(lambda: leader.replication.lane.kept.bytes == 0, "they are appended")
    client.say(put(9, to=1))
    assert client.is_told(9).base_offset == 0


# The end of a connection.


def test_whole_batches_of_a_client_that_leaves_are_stored_and_the_rest_is_not(brokers: Brokers) -> None:
    leader = leads(brokers, replicas=(1, 2))
    client = Client(leader)
    client.say(stream(), *(put(number, rows(number, 1)) for number in range(50)), put(50)[:-1])
    client.leaves()
    eventually(lambda: not producers(leader), "it is forgotten")
    assert stored(leader) == list(range(50))
    follower = brokers.start(2)
    follower.command(ORDERS, 1, (1, 2))
    eventually(lambda: follower.replica(ORDERS).log.log_end == 50, "its answers are nobody's")
    still_serves(leader)


def test_what_waits_for_a_partition_is_dropped_when_its_client_leaves(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    client = Client(leader)
    with leader.partitions[ORDERS]:
        client.say(stream(), *(put(number, rows(number, 1)) for number in range(5)), put(9, to=1))
        client.is_told(9)
        assert leader.replication.lane.kept.bytes > 0
        client.leaves()
        eventually(lambda: leader.replication.lane.kept.bytes == 0, "its copies are dropped")
    eventually(lambda: stored(leader), "the first one was prepared already")
    still_serves(leader)
    assert stored(leader) == [0]


MISTAKES: dict[str, tuple[list[bytes], str, str]] = {
    "a fetch": ([joined(FetchFrame(number=1, partitions=()))], "INVALID_REQUEST", "not FetchFrame"),
    "another first frame": ([joined(ClientFrame())], "INVALID_REQUEST", "not ClientFrame"),
    "a follower's hello": (
        [joined(HelloFrame(cluster_id=CLUSTER, broker_id=2, broker_epoch=0))],
        "INVALID_REQUEST",
        "not HelloFrame",
    ),
    "an answer": ([joined(PutAnswersFrame(answers=()))], "INVALID_REQUEST", "not PutAnswersFrame"),
    "a stream that is not open": ([put(0, of_stream=5)], "INVALID_REQUEST", "stream 5, which is not open"),
    "a stream twice": ([stream(1), stream(1)], "INVALID_REQUEST", "stream 1 is open"),
    "too many streams": (
        [stream(number) for number in range(1, STREAMS_MAX + 1)],
        "INVALID_REQUEST",
        f"{STREAMS_MAX} others",
    ),
    "a schema that is none": ([stream(1, schema=b"no schema")], "INVALID_REQUEST", "a stream begins with one"),
    "no schema": ([stream(1, schema=b"")], "INVALID_REQUEST", "a stream begins with one"),
    "half a schema": ([stream(1, schema=schema_to_bytes(SCHEMA)[:60])], "INVALID_REQUEST", "a stream begins with one"),
    "a batch as a schema": (
        [stream(1, schema=bytes(serialized(BATCH)[0]))],
        "INVALID_REQUEST",
        "a stream begins with one",
    ),
    "a number that is owed": ([put(4), put(4)], "INVALID_REQUEST", "batch 4 is of stream 0"),
    "no frame": ([struct.pack("!II", 2, 0) + b"\xc1\xc1"], "INVALID_REQUEST", "not a replication frame"),
    "a frame over the limit": ([b"\xff" * 8], "INVALID_REQUEST", "replication.frame.bytes.max"),
    "another version": (
        [joined(PutFrame(v=2, stream=0, number=0, crc=0, batch=BatchMetadata()))],
        "UNSUPPORTED_VERSION",
        "2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_its_own_connection_and_is_told(brokers: Brokers, mistake: str) -> None:
    leader = leads(brokers, replicas=(1, 2))  # no follower confirms: what is sent is owed
    leader.command(OTHER, 1, (1,))
    frames, code, why = MISTAKES[mistake]
    good = Client(leader)
    client = Client(leader)
    client.say(stream(), put(1_000, to=1))
    assert client.is_told(1_000).error == "NONE"
    client.say(*frames)
    heard = client.hears_error()
    assert heard.error == code
    assert why in heard.message
    eventually(lambda: len(producers(leader)) == 1, "its place is free")
    good.say(stream(), put(0, to=1))
    assert good.is_told(0).base_offset == 2, "a client that is there already goes on"
    still_serves(leader)


# Who is let in.


def test_a_client_of_another_cluster_is_to_look_for_its_own(brokers: Brokers) -> None:
    leader = leads(brokers)
    with pytest.raises(MisroutedCall, match="cluster, not of another: reload routes") as refused:
        Client(leader, cluster_id="another")
    assert refused.value.retriable
    assert not producers(leader)


def test_a_client_that_does_not_know_its_cluster_is_served(brokers: Brokers) -> None:
    client = Client(leads(brokers), cluster_id="")
    client.say(stream(), put(0))
    assert client.is_told(0).error == "NONE"


@pytest.mark.parametrize("first", [stream(), put(0), joined(WelcomeFrame(batch_bytes_max=1))])
def test_a_client_says_first_that_it_is_one(brokers: Brokers, first: bytes) -> None:
    leader = leads(brokers)
    with socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(first)
        heard = FrameReceiver(connection, 1 << 20).receive_first(lambda: None)
    assert isinstance(heard, ErrorFrame)
    assert "begins with Hello or Client" in heard.message
    still_serves(leader)


@pytest.mark.parametrize("answer", [ErrorFrame(error="NOT_READY", message="later"), PutAnswersFrame(answers=())])
def test_a_client_takes_nothing_but_a_welcome(answer: Frame) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(joined(answer))
        with pytest.raises(ReplicationError) as refused:
            introduce_client(ours, FrameReceiver(ours, 1 << 20), ClientFrame(), None, TIMEOUT_S)
    assert refused.value.code == (answer.error if isinstance(answer, ErrorFrame) else InvalidRequest.code)


def test_producers_have_so_many_places_and_followers_always_find_one(brokers: Brokers) -> None:
    brokers.settings = Settings(flight_writes_max=2)
    leader = leads(brokers, replicas=(1, 2))
    first, second = Client(leader), Client(leader)
    with pytest.raises(Overloaded, match=r"2 producers \(flight.writes.max\) are connected") as refused:
        Client(leader)
    assert refused.value.retriable
    first.say(stream(), put(0))
    brokers.start(2).command(ORDERS, 1, (1, 2))
    assert first.is_told(0).base_offset == 0, "a follower has connected"
    second.leaves()
    eventually(lambda: len(producers(leader)) == 1, "its place is free")
    third = Client(leader)
    third.say(stream(), put(0))
    assert third.is_told(0).base_offset == 2


def test_producers_take_no_place_of_a_follower(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.transport.frames.replication_server.CONNECTIONS_MAX", 2)
    leader = leads(brokers, replicas=(1, 2))
    clients = [Client(leader) for _ in range(4)]
    brokers.start(2).command(ORDERS, 1, (1, 2))
    clients[-1].say(stream(), put(0))
    assert clients[-1].is_told(0).error == "NONE"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_broker_that_closes_leaves_nothing_of_its_producers(brokers: Brokers) -> None:
    files, threads = open_files(), set(threading.enumerate())
    leader = leads(brokers, replicas=(1, 2))
    client = Client(leader)
    client.say(stream(), put(0))
    eventually(lambda: leader.replica(ORDERS).log.log_end == 2, "it is appended")
    brokers.close()
    brokers.brokers.clear()
    with pytest.raises((BrokerNotAvailable, ConnectionResetError)):
        client.hears()
    client.leaves()
    assert threads.issuperset(threading.enumerate())
    assert open_files() <= files


def test_whole_frames_behind_the_handshake_are_served_though_the_client_sends_no_more(brokers: Brokers) -> None:
    broker = leads(brokers)
    with socket.create_connection(("127.0.0.1", broker.replication.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(joined(ClientFrame(cluster_id=CLUSTER)) + stream() + put(0, acks=0))
        connection.shutdown(socket.SHUT_WR)
        eventually(lambda: stored(broker) == [0, 1], "it is stored")


def test_a_client_that_closes_while_it_is_not_read_loses_its_place(brokers: Brokers) -> None:
    """Long before its batches are out of time."""
    brokers.settings = Settings(stream_unanswered_max=1)
    broker = leads(brokers, replicas=(1, 2))
    client = Client(broker)
    client.say(stream(), put(0))
    eventually(lambda: not reads(broker), "it owes as many answers as it may")
    client.leaves()
    eventually(lambda: not producers(broker), "its place is free")


def test_what_is_known_is_told_before_the_end_of_the_connection(brokers: Brokers) -> None:
    broker = leads(brokers)
    client = Client(broker)
    client.say(stream() + put(0) + put(1, of_stream=7))
    assert client.is_told(0).base_offset == 0
    assert client.hears_error().error == InvalidRequest.code


def test_a_schema_that_is_refused_keeps_nothing_of_the_buffer_that_it_came_in() -> None:
    (unshown, *_) = (sample for sample in SAMPLES if not sample.is_shown)
    received = bytearray(unshown.head)
    refused = producer_connection._schema(memoryview(received))
    received.clear()  # BufferError, as long as there is a view of it
    assert isinstance(refused, InvalidRequest)


@pytest.mark.parametrize("frames", [1, 3])
def test_a_connection_may_hold_so_many_schemas(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, frames: int) -> None:
    head = schema_to_bytes(SCHEMA)
    monkeypatch.setattr(producer_connection, "SCHEMA_BYTES_MAX", 3 * len(head) - 1)
    broker = leads(brokers)
    client = Client(broker)
    client.say(*(stream(number) for number in range(frames)), put(0))
    if frames == 1:
        assert client.is_told(0).base_offset == 0
    else:
        assert "schemas of a connection take over" in client.hears_error().message
        still_serves(broker)


def test_a_frame_longer_than_any_batch_ends_the_connection(brokers: Brokers) -> None:
    broker = leads(brokers)
    limit = broker.replication.lane.frame_bytes_max
    assert limit < broker.settings.replication_frame_bytes_max, "of a broker's frames"
    client = Client(broker)
    client.say(struct.pack("!II", 1 << 10, limit))
    assert f"is over {limit}" in client.hears_error().message
