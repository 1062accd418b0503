"""The lane of readers: questions and records over real sockets, by hand and by the client's connections."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.client.reading import read_connections
from spark_replication.client.reading.read_connections import WAITING_MAX, ReadAnswer, ReadConnection, ReadConnections
from spark_replication.client.reading.read_connections import Broker as Place
from spark_replication.config import Compression, Settings
from spark_replication.engine.ends import read_end
from spark_replication.errors import (
    BrokerNotAvailable,
    ClientClosed,
    CorruptLog,
    InvalidRequest,
    MisroutedCall,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    ReplicationError,
    StorageFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.envelope import NONE
from spark_replication.messages.frames import Frame
from spark_replication.messages.lane import (
    READS_MAX,
    ClientFrame,
    PutAnswersFrame,
    PutFrame,
    ReadAnswerFrame,
    ReadFrame,
    WelcomeFrame,
)
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.messages.replication import ErrorFrame, FetchFrame, HelloFrame
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import LogSlice, PreparedBatch
from spark_replication.storage.disk.files import StoredRange
from spark_replication.storage.format.batches import TopicSchema, batches_of, prepare
from spark_replication.transport.frames import reader_connection
from spark_replication.transport.frames.loaded_reads import RUN_BYTES
from spark_replication.transport.frames.reader_connection import QUESTION_BYTES_MAX, READ_BYTES, ReaderConnection
from spark_replication.transport.frames.replication_server import READERS
from spark_replication.transport.meter import GET, Moved
from spark_replication.transport.proofs.handshake import introduce_client
from spark_replication.transport.security.security import NO_SECURITY, Security
from spark_replication.transport.sockets.frames import (
    HEAD_BYTES,
    SENDFILE_BYTES_MIN,
    FrameReceiver,
    LastingReceiver,
    encoded,
    send,
)
from tests.unit.storage.storage_stories import SCHEMA, TOPIC, WIDENED, WIDER, prepared, rows
from tests.unit.transport.replicas import CLUSTER, TIMEOUT_S, Broker, Brokers
from tests.unit.transport.test_lane import Client, joined, leads, log_of, open_files, producers, put, stream
from tests.unit.transport.test_lane import still_serves as still_takes
from tests.waiting import eventually

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
WAIT_MS = 60_000
LARGE_BYTES = 8 << 20  # more than the sockets between a broker and a reader that takes nothing hold
SMALL_ROOM = 1 << 20


class Heard(NamedTuple):
    told: ReadAnswerFrame
    payload: bytes

    def records(self) -> LogSlice:
        found = ReadAnswer(self.told, memoryview(self.payload)).records()
        assert found is not None
        return found

    def rows(self) -> list[int]:
        return [row for batch in self.batches() for row in batch.column("row").to_pylist()]

    def batches(self) -> list[pa.RecordBatch]:
        return [batch for _, batch in batches_of(self.records())]


class Peer:
    """A reader by hand. It has been welcomed."""

    def __init__(
        self,
        broker: Broker,
        security: Security = NO_SECURITY,
        *,
        cluster_id: str = CLUSTER,
        receive_bytes: int | None = None,
    ) -> None:
        """receive_bytes: how much its socket takes before it reads."""
        connection = socket.socket()
        connection.settimeout(TIMEOUT_S)
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            connection.connect(("127.0.0.1", broker.replication.port))
            self.channel = security.connected(connection, "127.0.0.1", TIMEOUT_S)
            self._receiver = FrameReceiver(self.channel, 1 << 26)
            hello = ClientFrame(cluster_id=cluster_id, reads=True, port=broker.replication.port)
            self.welcome = introduce_client(self.channel, self._receiver, hello, security.tokens, TIMEOUT_S)
        except BaseException:
            connection.close()
            raise
        self.channel.settimeout(TIMEOUT_S)
        self._heard: list[tuple[Frame, bytes]] = []

    def say(self, *frames: bytes) -> None:
        send(self.channel, frames)

    def ask(self, number: int = 0, **asked: Any) -> None:
        self.say(question(number, **asked))

    def hears(self) -> tuple[Frame, bytes]:
        while not self._heard:
            self._heard += [(frame, bytes(payload)) for frame, payload in self._receiver.receive()]
        return self._heard.pop(0)

    def answer(self, number: int = 0) -> Heard:
        """The next answer, which has no error."""
        told, payload = self.hears()
        assert isinstance(told, ReadAnswerFrame), told
        assert (told.number, told.error) == (number, NONE), told
        return Heard(told, payload)

    def refusal(self, number: int = 0) -> str:
        told, payload = self.hears()
        assert isinstance(told, ReadAnswerFrame), told
        assert (told.number, payload) == (number, b"")
        return told.error

    def read(self, **asked: Any) -> Heard:
        self.ask(**asked)
        return self.answer()

    def hears_error(self) -> ErrorFrame:
        """And the broker has hung up then."""
        heard, _ = self.hears()
        assert isinstance(heard, ErrorFrame), heard
        with pytest.raises((BrokerNotAvailable, ConnectionResetError)):
            self._receiver.receive()
        return heard

    @property
    def is_silent(self) -> bool:
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        return not self._heard and not poll.poll(0)

    def leaves(self) -> None:
        self.channel.close()


def question(
    number: int = 0, *, partition: int = 0, topic: str = "orders", checked: bool = False, **asked: Any
) -> bytes:
    ticket = ReadTicket(topic=topic, partition=partition, **asked)
    return joined(ReadFrame(number=number, ticket=ticket, checked=checked))


def produce(broker: Broker, *batches: PreparedBatch, partition: TopicPartition = ORDERS) -> bytes:
    """Appends them, whether or not followers confirm. Returns their bytes."""
    for batch in batches:
        with broker.partitions[partition] as replica:
            replica.produce(batch, acks=1, now_ms=0, acknowledge=lambda _outcome: None)
    return b"".join(bytes(batch.message) for batch in batches)


def batch_of(batch: pa.RecordBatch, *, topic: TopicSchema = TOPIC, compression: Compression = "none") -> PreparedBatch:
    return prepare(batch, topic, batch_bytes_max=1 << 26, compression=compression)


def large(row: int = 0, size: int = LARGE_BYTES) -> PreparedBatch:
    return batch_of(pa.record_batch([pa.array([row]), pa.array(["x" * size])], schema=SCHEMA))


def wide(first: int) -> PreparedBatch:
    columns = [*rows(first, 2).columns, pa.array([7, 8], pa.int8())]
    return batch_of(pa.record_batch(columns, schema=WIDER), topic=WIDENED)


def read_all(peer: Peer, start: Offset = 0, **asked: Any) -> bytes:
    """The data of all answers from there on, each of which continues the one before."""
    data = b""
    while True:
        heard = peer.read(from_offset=start, **asked)
        assert heard.told.offset == start
        if not heard.payload:
            assert heard.told.next_offset == start
            return data
        records = heard.records()
        assert (records.first_offset, records.next_offset) == (start, heard.told.next_offset)
        data += bytes(records.data)
        start = records.next_offset


def place_of(broker: Broker) -> Place:
    return Place("127.0.0.1", broker.replication.port)


def ticket(**asked: Any) -> ReadTicket:
    return ReadTicket(topic="orders", partition=0, **asked)


def answer_of(connection: ReadConnection) -> ReadAnswer:
    told = connection.told()
    return ReadAnswer(told, connection.payload())


def received(receiver: LastingReceiver) -> tuple[Frame, memoryview]:
    frame = receiver.frame()
    return frame, receiver.payload()


def readers(broker: Broker) -> Collection[socket.socket]:
    return broker.replication._server._clients[READERS]


def still_reads(broker: Broker, security: Security = NO_SECURITY) -> None:
    """Another reader of its own partition."""
    other = TopicPartition("read", 0)
    broker.command(other, broker.me.broker, (broker.me.broker,))
    data = produce(broker, prepared(0), prepared(2), partition=other)
    start = broker.replica(other).log.log_end - 4
    peer = Peer(broker, security)
    assert bytes(peer.read(topic="read", from_offset=start).records().data) == data
    peer.leaves()


def waiters(broker: Broker, partition: TopicPartition = ORDERS) -> int:
    return len(broker.replica(partition).progress._waiting)


def on_the_loop(broker: Broker, look: Callable[[list[ReaderConnection]], Any]) -> Any:
    """What the broker's loop finds in its readers' connections."""
    found: list[Any] = []

    def call() -> None:
        connections = broker.sockets._connections.values()
        found.append(look([each for each in connections if isinstance(each, ReaderConnection)]))

    assert broker.sockets.call(call, TIMEOUT_S)
    return found[0]


def outbox_bytes(broker: Broker) -> list[int]:
    """What each reader has not taken yet."""
    return on_the_loop(broker, lambda found: [sum(map(len, each.outbox._parts)) for each in found])  # type: ignore[no-any-return]


def waits_for_room(broker: Broker) -> int:
    return on_the_loop(broker, lambda _: len(broker.replication.reads.room._waiting))  # type: ignore[no-any-return]


def room_bytes(broker: Broker) -> int:
    return on_the_loop(broker, lambda _: broker.replication.reads.room._bytes)  # type: ignore[no-any-return]


def is_stuck(broker: Broker) -> bool:
    return any(outbox_bytes(broker))


# What is read


class Carried(NamedTuple):
    """How often the bytes of files were sent by the kernel, and how often they were read first."""

    sent: list[int]
    read: list[int]


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Carried:
    counted = Carried([], [])
    send_to, read = StoredRange.send_to, StoredRange.read

    def counting_send(found: StoredRange, connection: int, position: int) -> int:
        counted.sent.append(len(found))
        return send_to(found, connection, position)

    def counting_read(found: StoredRange) -> bytes:
        counted.read.append(len(found))
        return read(found)

    monkeypatch.setattr(StoredRange, "send_to", counting_send)
    monkeypatch.setattr(StoredRange, "read", counting_read)
    return counted


def test_a_reader_is_welcomed_before_it_asks_anything(brokers: Brokers) -> None:
    brokers.settings = Settings(batch_bytes_max=12_345)
    assert Peer(leads(brokers)).welcome == WelcomeFrame(batch_bytes_max=12_345)


def test_large_records_go_from_their_file(brokers: Brokers, carried: Carried) -> None:
    leader = leads(brokers)
    data = produce(leader, *(prepared(first, 2_000) for first in range(0, 8_000, 2_000)))
    assert len(data) // 4 > SENDFILE_BYTES_MIN
    assert read_all(Peer(leader)) == data
    assert sum(set(carried.sent)) >= len(data) // 4
    assert carried.read == []


def test_a_little_is_read_and_sent_along_with_what_is_around_it(brokers: Brokers, carried: Carried) -> None:
    leader = leads(brokers)
    data = produce(leader, *(prepared(first) for first in range(0, 20, 2)))
    assert len(data) < SENDFILE_BYTES_MIN
    assert read_all(Peer(leader)) == data
    assert (carried.sent, carried.read) == ([], [len(data)])


def test_the_newest_batch_comes_from_memory(brokers: Brokers, carried: Carried) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    data = produce(leader, prepared(2, 3_000))
    assert len(data) > SENDFILE_BYTES_MIN
    assert read_all(Peer(leader), start=2) == data
    assert carried == Carried([], [])


@pytest.mark.parametrize("checked", [False, True])
def test_records_of_any_size_are_read_byte_for_byte(brokers: Brokers, *, checked: bool) -> None:
    """Over several segments, by the client's connection."""
    leader = leads(brokers)
    sizes = [1, 700, 3, 2_500, 9_000, 1, 1, 40_000, 2, 800] * 3
    data = produce(leader, *(prepared(place, size) for place, size in enumerate(sizes)))
    assert len(data) > 3 * READ_BYTES
    found, offset = bytearray(), 0
    with ReadConnections(NO_SECURITY).one(place_of(leader)) as connection:
        while True:
            connection.ask(ticket(from_offset=offset), checked=checked)
            answer = answer_of(connection)
            records = answer.records()
            if records is None:
                break
            assert len(records.data) <= READ_BYTES or len(records.entries) == 80
            found += records.data
            offset = answer.told.next_offset
        connection.close()
    assert bytes(found) == data
    assert offset == sum(sizes)


def test_an_answer_says_where_the_read_is_and_what_the_broker_knows(brokers: Brokers) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0), prepared(2), prepared(4))
    peer = Peer(leader)
    heard = peer.read(from_offset=3, to=5)
    assert (heard.records().first_offset, heard.records().next_offset) == (2, 6)
    told = heard.told
    assert (told.offset, told.next_offset, told.high_watermark, told.width) == (3, 5, 6, len(SCHEMA))
    assert told.last_epoch == 0
    assert told.schema_bytes + told.entry_bytes + told.data_bytes == len(heard.payload)
    nothing = ReadAnswerFrame(number=0, offset=6, next_offset=6, last_epoch=0, high_watermark=6, width=len(SCHEMA))
    assert peer.read(from_offset=6) == (nothing, b"")
    assert peer.read(from_offset="latest") == (nothing, b"")
    assert peer.read(from_offset="earliest").rows() == list(range(6))
    assert peer.read(from_time=0, to=2).told.next_offset == 2


def test_what_is_read_is_counted(brokers: Brokers) -> None:
    leader = leads(brokers)
    data = produce(leader, prepared(0), prepared(2))
    peer = Peer(leader)
    peer.read()
    peer.read(from_offset=4)
    peer.ask(partition=7)
    assert peer.refusal() == UnknownTopicOrPartition.code
    reads = leader.replication.reads
    assert reads.consumed.so_far == Moved(batches=2, records=4, bytes=len(data))
    assert sum(reads.meter.durations()[GET].counts) == 3
    assert reads.meter.refusals() == {(GET, UnknownTopicOrPartition.code): 1}


REFUSALS: dict[str, tuple[dict[str, Any], type[ReplicationError]]] = {
    "an unknown partition": ({"partition": 7}, UnknownTopicOrPartition),
    "an unknown topic": ({"topic": "bills"}, UnknownTopicOrPartition),
    "a topic that was made again": ({"topic_id": "another"}, UnknownTopicOrPartition),
    "beyond the log": ({"from_offset": 99}, OffsetOutOfRange),
    "led by another": ({"partition": 1}, NotLeader),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_question_is_refused_alone(brokers: Brokers, refusal: str) -> None:
    leader = leads(brokers)
    leader.command(OTHER, 2, (1, 2))
    produce(leader, prepared(0))
    asked, error = REFUSALS[refusal]
    peer = Peer(leader)
    peer.say(question(0, max_wait_ms=WAIT_MS, **asked), question(1))
    assert peer.refusal(0) == error.code
    assert peer.answer(1).rows() == [0, 1]
    with ReadConnections(NO_SECURITY).one(place_of(leader)) as connection:
        connection.ask(ReadTicket(**{"topic": "orders", "partition": 0, **asked}), checked=False)
        with pytest.raises(error):
            answer_of(connection)
        assert connection.owed == 0
        connection.close()


# What is committed, and what waits


def test_a_read_that_waits_is_answered_once_the_followers_have_the_records(brokers: Brokers) -> None:
    leader = leads(brokers, replicas=(1, 2))
    data = produce(leader, prepared(0), prepared(2))
    peer = Peer(leader)
    peer.ask(max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 1, "it waits")
    assert peer.is_silent
    brokers.start(2).command(ORDERS, 1, (1, 2))
    heard = [peer.answer()]
    while heard[-1].told.next_offset < 4:
        heard.append(peer.read(from_offset=heard[-1].told.next_offset, max_wait_ms=WAIT_MS))
    assert b"".join(bytes(each.records().data) for each in heard) == data
    assert waiters(leader) == 0


def test_nothing_at_or_above_the_high_watermark_is_sent(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    answers = leader.produce(ORDERS, 3)
    eventually(lambda: len(answers) == 3, "three batches are committed")
    peer = Peer(leader)
    with follower.partitions[ORDERS]:
        produce(leader, prepared(6), prepared(8, 2_000))
        heard = peer.read()
        assert (heard.rows(), heard.told.high_watermark) == (list(range(6)), 6)
        peer.ask(from_offset=6, max_wait_ms=WAIT_MS)
        peer.ask(1, from_offset=6)
        assert peer.answer(1).payload == b""
        assert waiters(leader) == 1
    assert peer.answer().rows()[:2] == [6, 7]


def test_a_wait_for_one_partition_holds_up_no_read_of_another(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    produce(leader, prepared(0), partition=OTHER)
    peer = Peer(leader)
    peer.ask(0, max_wait_ms=WAIT_MS)
    for number in range(1, 20):
        peer.ask(number, partition=1)
        assert peer.answer(number).rows() == [0, 1]
    produce(leader, prepared(0, 3))
    assert peer.answer(0).rows() == [0, 1, 2]


def test_a_read_that_waits_in_vain_is_answered_at_its_deadline(brokers: Brokers) -> None:
    leader = leads(brokers)
    peer = Peer(leader)
    peer.ask(max_wait_ms=30)
    heard = peer.answer()
    assert (heard.payload, heard.told.next_offset) == (b"", 0)
    assert waiters(leader) == 0


def test_a_reader_that_leaves_waits_for_nothing_any_longer(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    peer = Peer(leader)
    peer.say(question(0, max_wait_ms=WAIT_MS), question(1, partition=1, max_wait_ms=WAIT_MS))
    eventually(lambda: (waiters(leader), waiters(leader, OTHER)) == (1, 1), "both wait")
    peer.leaves()
    eventually(lambda: (waiters(leader), waiters(leader, OTHER)) == (0, 0), "nobody waits")
    eventually(lambda: not readers(leader), "its place is free")


def test_a_partition_that_another_thread_has_is_answered_for_later_and_holds_up_no_other_reader(
    brokers: Brokers,
) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    produce(leader, prepared(0))
    produce(leader, prepared(0), partition=OTHER)
    peer, other = Peer(leader), Peer(leader)
    with leader.partitions[ORDERS]:
        peer.ask()
        assert other.read(partition=1).rows() == [0, 1]
        assert peer.is_silent
    assert peer.answer().rows() == [0, 1]


def test_a_leader_that_steps_aside_refuses_those_that_wait(brokers: Brokers) -> None:
    leader = leads(brokers)
    peer = Peer(leader)
    peer.ask(max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 1, "it waits")
    leader.command(ORDERS, 2, (1, 2), epoch=1)
    assert peer.refusal() == NotLeader.code


def test_a_follower_serves_what_it_knows_to_be_committed(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    answers = leader.produce(ORDERS, 3)
    eventually(lambda: len(answers) == 3, "three batches are committed")
    with leader.partitions[ORDERS] as replica:
        replica.tell_high_watermark()
    peer = Peer(follower)
    peer.ask()
    assert peer.refusal() == NotLeader.code
    found: list[int] = []
    while len(found) < 6:
        peer.ask(from_offset=len(found), any_replica=True, max_wait_ms=WAIT_MS)
        found += peer.answer().rows()
    assert found == list(range(6))


# Some columns


def test_columns_come_in_the_order_in_which_they_are_named(brokers: Brokers) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0), prepared(2, 3))
    heard = Peer(leader).read(columns=("text", "row"))
    expected = [batch.select(["text", "row"]) for batch in (rows(0, 2), rows(2, 3))]
    assert heard.batches() == expected
    assert [batch.schema.names for batch in heard.batches()] == [["text", "row"]] * 2
    first, second = (entry for entry, _ in batches_of(heard.records()))
    assert (first.base_offset, first.last_offset, first.position) == (0, 1, 0)
    assert (second.base_offset, second.last_offset, second.position) == (2, 4, first.bytes)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_all_columns_are_sent_as_they_are_stored(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    leader = leads(brokers)
    data = produce(leader, *(batch_of(rows(first, 3_000), compression=compression) for first in (0, 3_000)))
    monkeypatch.setattr(reader_connection, "with_columns", lambda *_asked: pytest.fail("they are made again"))
    assert read_all(Peer(leader), columns=tuple(SCHEMA.names)) == data


@pytest.mark.parametrize("columns", [("late", "row"), ("late",), ("row", "late"), ()], ids=",".join)
def test_columns_that_batches_lack_are_left_out_and_rows_are_kept(brokers: Brokers, columns: tuple[str, ...]) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0, 3), wide(3))
    peer = Peer(leader)
    before = peer.read(columns=columns)
    assert before.told.next_offset == 3
    (batch,) = before.batches()
    assert batch.schema.names == [name for name in columns if name != "late"]
    assert batch.num_rows == 3
    after = peer.read(columns=columns, from_offset=3)
    (batch,) = after.batches()
    assert (batch.schema.names, batch.num_rows) == ([*columns], 2)
    if "late" in columns:
        assert batch.column("late").to_pylist() == [7, 8]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_columns_of_compressed_batches_come_whole(brokers: Brokers, compression: Compression) -> None:
    leader = leads(brokers)
    batches = [rows(0, 3_000), rows(3_000, 10)]
    data = produce(leader, *(batch_of(batch, compression=compression) for batch in batches))
    peer = Peer(leader)
    assert read_all(peer) == data
    heard = peer.read(columns=("text",))
    assert heard.batches() == [batch.select(["text"]) for batch in batches]


def test_columns_of_compressed_batches_take_no_more_than_an_answer_may(brokers: Brokers) -> None:
    """The room counts what is stored. Without its compression that may be a thousand times as much: more than a broker
    has, and more than a frame can be."""
    leader = leads(brokers)
    size, count = 1 << 20, 20
    each = pa.record_batch([pa.array([0]), pa.array(["x" * size])], schema=SCHEMA)
    stored = produce(leader, *[batch_of(each, compression="zstd")] * count)
    assert len(stored) < READ_BYTES // 2
    peer = Peer(leader)
    heard = [peer.read(columns=("text",))]
    while heard[-1].told.next_offset < count:
        heard.append(peer.read(columns=("text",), from_offset=heard[-1].told.next_offset))
    assert sum(len(batch.column("text")) for answer in heard for batch in answer.batches()) == count
    assert max(answer.told.data_bytes for answer in heard) <= READ_BYTES + size + 1_000, "so much, or a single batch"


def test_columns_are_of_the_newest_batch_in_memory_too(brokers: Brokers) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    heard = Peer(leader).read(columns=("text",), to=1)
    assert heard.batches() == [rows(0, 2).select(["text"])]
    assert heard.told.next_offset == 1


def test_columns_of_batches_of_any_size_come_whole(brokers: Brokers) -> None:
    """Over several segments. Some batches are larger than what is read at a time."""
    leader = leads(brokers)
    sizes = [1, 700, 3, 2_500, 30_000, 1, 1, 40_000, 2, 800] * 3
    data = produce(leader, *(prepared(place, size) for place, size in enumerate(sizes)))
    assert len(data) // 6 > RUN_BYTES
    peer, found, offset = Peer(leader), list[pa.RecordBatch](), 0
    while offset < sum(sizes):
        heard = peer.read(columns=("text",), from_offset=offset)
        found += heard.batches()
        offset = heard.told.next_offset
    assert found == [rows(place, size).select(["text"]) for place, size in enumerate(sizes)]
    eventually(lambda: room_bytes(leader) == 0, "it is given back")


def test_the_fewer_columns_are_asked_for_the_more_batches_an_answer_has(brokers: Brokers) -> None:
    brokers.settings = Settings(flight_read_bytes_max=256 << 10)  # an answer has 16 KiB
    leader = leads(brokers)
    produce(leader, *(prepared(200 * place, 200) for place in range(16)))
    peer = Peer(leader)
    whole, half = (peer.read(columns=columns) for columns in (("row", "text"), ("row",)))
    assert len(half.batches()) in (2 * len(whole.batches()), 2 * len(whole.batches()) + 1)
    assert half.rows() == [*range(half.told.next_offset)]


def test_the_room_counts_what_an_answer_of_some_columns_has_once_it_is_made(brokers: Brokers) -> None:
    leader = leads(brokers)
    count = 2 * LARGE_BYTES // 8
    columns = [pa.repeat(7, count), pa.repeat("text", count)]
    stored = produce(leader, batch_of(pa.record_batch(columns, schema=SCHEMA)))
    stuck = Peer(leader, receive_bytes=1 << 14)
    stuck.ask(columns=("row",))
    eventually(lambda: is_stuck(leader), "it takes nothing")
    taken = room_bytes(leader)
    assert taken == stuck.answer().told.data_bytes < 0.6 * len(stored)
    eventually(lambda: room_bytes(leader) == 0, "it is given back")


# Damage, and cuts


def damage(broker: Broker, partition: TopicPartition = ORDERS, *, at: int = -8) -> None:
    """A bit of its first segment's data."""
    data = broker.folder(partition) / f"{0:020}.arrow"
    with data.open("r+b") as file:
        content = bytearray(file.read())
        content[at] ^= 1
        file.seek(0)
        file.write(content)


@pytest.mark.parametrize("count", [2, 3_000], ids=["read", "from its file"])
def test_damaged_bytes_are_found_by_the_reader_and_by_the_broker_if_it_is_to_look(brokers: Brokers, count: int) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    produce(leader, *(prepared(place * count, count) for place in range(2)))
    produce(leader, prepared(0), partition=OTHER)
    damage(leader)
    connections = ReadConnections(NO_SECURITY)
    for _ in range(2):
        with connections.one(place_of(leader)) as connection:
            connection.ask(ticket(from_offset=1), checked=False)
            answer = answer_of(connection)
            with pytest.raises(CorruptLog, match="does not have its CRC-32C"):
                answer.records()
            connection.ask(ticket(from_offset=1), checked=True)
            with pytest.raises(StorageFailed, match="does not have its CRC-32C"):
                answer_of(connection)
            connection.ask(ReadTicket(topic="orders", partition=1), checked=True)
            assert answer_of(connection).records() is not None, "the connection goes on"
    assert len(connections._waiting[place_of(leader)]) == 1
    connections.close()
    assert leader.replication.reads.meter.refusals() == {(GET, StorageFailed.code): 2}
    still_reads(leader)


@pytest.mark.parametrize("count", [2, 3_000, 40_000])
@pytest.mark.parametrize("column", SCHEMA.names)
def test_damage_is_found_where_some_columns_are_asked_for(brokers: Brokers, count: int, column: str) -> None:
    """Whichever column is damaged."""
    leader = leads(brokers)
    produce(leader, prepared(0, count), prepared(count, count))
    damage(leader)
    peer = Peer(leader)
    peer.ask(columns=(column,))
    assert peer.refusal() == StorageFailed.code
    assert read_all(Peer(leader), start=2 * count) == b""


def test_a_file_that_has_become_shorter_is_told_of_or_comes_as_zeros(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    produce(leader, prepared(0, 2_000), prepared(2_000, 2_000))
    produce(leader, prepared(0), partition=OTHER)
    data = leader.folder(ORDERS) / f"{0:020}.arrow"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 1_000)
    peer = Peer(leader)
    with pytest.raises(CorruptLog):
        peer.read(to=4_000).records()
    peer.ask(checked=True)
    assert peer.refusal() == "KAFKA_STORAGE_ERROR"
    peer.ask(columns=("row",))
    assert peer.refusal() == "KAFKA_STORAGE_ERROR"
    assert peer.read(partition=1).rows() == [0, 1]


def test_a_little_that_cannot_be_read_is_refused_alone(brokers: Brokers) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    produce(leader, prepared(0), prepared(2))
    produce(leader, prepared(0), partition=OTHER)
    data = leader.folder(ORDERS) / f"{0:020}.arrow"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 10)
    peer = Peer(leader)
    peer.ask()
    assert peer.refusal() == "KAFKA_STORAGE_ERROR"
    assert peer.read(partition=1).rows() == [0, 1]


def test_a_topic_whose_schema_is_not_known_yet_is_refused_alone(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))

    def unknown(topic: str) -> TopicSchema:
        raise UnknownTopicOrPartition(f"{topic} is not here")

    peer = Peer(leader)
    with monkeypatch.context() as patched:
        patched.setattr(leader.replication.reads, "schema_of", unknown)
        for columns in (None, ("row",)):
            peer.ask(columns=columns)
            assert peer.refusal() == UnknownTopicOrPartition.code
    assert peer.read().rows() == [0, 1]
    assert room_bytes(leader) == 0


def cut_and_write_anew(broker: Broker) -> None:
    """The log, from offset 2 on; whoever calls has the partition."""
    log = log_of(broker)
    log.truncate(2)
    for first in (100, 200):
        log.append(prepared(first), leader_epoch=0, timestamp_ms=0)


def test_what_was_cut_before_it_was_read_is_looked_for_again(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0), prepared(2), prepared(4))
    read, reads = StoredRange.read, list[str]()

    def cutting(found: StoredRange) -> bytes:
        reads.append(threading.current_thread().name)
        if len(reads) == 1:
            with leader.partitions[ORDERS]:
                cut_and_write_anew(leader)
        return read(found)

    monkeypatch.setattr(StoredRange, "read", cutting)
    assert Peer(leader).read(checked=True).rows() == [0, 1, 100, 101, 200, 201]
    assert reads == ["read-aside"] * 2


def test_columns_of_what_was_cut_before_it_was_read_are_of_what_is_there_instead(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0), prepared(2), prepared(4))
    read_into, reads = StoredRange.read_into, list[str]()

    def cutting(found: StoredRange, room: memoryview, position: int) -> int:
        reads.append(threading.current_thread().name)
        if len(reads) == 1:
            with leader.partitions[ORDERS]:
                cut_and_write_anew(leader)
        return read_into(found, room, position)

    monkeypatch.setattr(StoredRange, "read_into", cutting)
    assert Peer(leader).read(columns=("row",)).rows() == [0, 1, 100, 101, 200, 201]
    assert reads == ["read-aside"] * 2


def test_what_was_cut_before_it_was_sent_has_not_its_crc_and_is_whole_if_it_is_asked_for_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0), prepared(2, 2_000), prepared(2_002, 2_000))
    send_to, sends = StoredRange.send_to, list[int]()

    def cutting(found: StoredRange, connection: int, position: int) -> int:
        sends.append(position)
        if len(sends) == 1:
            cut_and_write_anew(leader)
        return send_to(found, connection, position)

    monkeypatch.setattr(StoredRange, "send_to", cutting)
    peer = Peer(leader)
    with pytest.raises(CorruptLog):
        peer.read(to=6).records()
    assert sends
    assert peer.read(checked=True, to=6).rows() == [0, 1, 100, 101, 200, 201]


# A reader that takes nothing, and the room of all


@pytest.mark.parametrize("checked", [False, True])
def test_a_reader_that_takes_nothing_has_one_answer_waiting_and_others_go_on(
    brokers: Brokers, *, checked: bool
) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    data = produce(leader, large())
    produce(leader, prepared(0), partition=OTHER)
    stuck, other = Peer(leader, receive_bytes=1 << 14), Peer(leader)
    stuck.say(*(question(number, checked=checked) for number in range(READS_MAX)))
    eventually(lambda: is_stuck(leader), "it takes nothing")
    for number in range(50):
        other.ask(number, partition=1)
        assert other.answer(number).rows() == [0, 1]
    one_answer = len(data) + (4 << 10)
    assert sum(outbox_bytes(leader)) <= one_answer
    assert room_bytes(leader) == (len(data) if checked else 0)
    for number in range(3):
        assert bytes(stuck.answer(number).records().data) == data
    assert sum(outbox_bytes(leader)) <= one_answer
    stuck.leaves()
    eventually(lambda: len(readers(leader)) == 1, "its place is free")
    eventually(lambda: room_bytes(leader) == 0, "its room is, too, once the answer is made that was under way")


@contextmanager
def full_room(brokers: Brokers) -> Iterator[tuple[Broker, Peer]]:
    """A broker whose room one reader fills, which takes nothing."""
    brokers.settings = Settings(flight_read_bytes_max=SMALL_ROOM)
    leader = leads(brokers, ORDERS, OTHER)
    produce(leader, large())
    produce(leader, prepared(0), partition=OTHER)
    stuck = Peer(leader, receive_bytes=1 << 14)
    stuck.ask(checked=True)
    eventually(lambda: room_bytes(leader) > SMALL_ROOM, "the room is full")
    yield leader, stuck


def take(stuck: Peer) -> None:
    stuck.answer()


def leave(stuck: Peer) -> None:
    stuck.leaves()


@pytest.mark.parametrize("gives_back", [take, leave])
def test_while_the_room_is_full_others_wait_until_a_reader_takes_or_leaves(
    brokers: Brokers, gives_back: Callable[[Peer], None]
) -> None:
    with full_room(brokers) as (leader, stuck):
        others = [Peer(leader) for _ in range(3)]
        for other in others:
            other.ask(partition=1)
        eventually(lambda: waits_for_room(leader) >= len(others), "they wait for room")
        assert all(other.is_silent for other in others)
        client = Client(leader)
        client.say(stream(), put(0, to=1))
        assert client.is_told(0).error == NONE, "a producer needs no room"
        gives_back(stuck)
        for other in others:
            assert other.answer().rows()[:2] == [0, 1]
        eventually(lambda: room_bytes(leader) == 0, "all of it is given back")


def test_a_wait_that_is_over_is_told_of_while_the_room_is_full_since_that_takes_none_of_it(brokers: Brokers) -> None:
    """A client gives up an answer that comes long after max_wait_ms."""
    with full_room(brokers) as (leader, stuck):
        other = Peer(leader)
        other.channel.settimeout(2)
        other.ask(partition=1, from_offset="latest", max_wait_ms=30)
        assert other.answer().payload == b""
        assert room_bytes(leader) > SMALL_ROOM, "it is still full"
        stuck.leaves()


def test_one_that_waits_for_room_and_leaves_is_forgotten(brokers: Brokers) -> None:
    with full_room(brokers) as (leader, stuck):
        other = Peer(leader)
        other.ask(partition=1)
        eventually(lambda: len(readers(leader)) == 2 and waits_for_room(leader) == 1, "it waits")
        other.leaves()
        eventually(lambda: waits_for_room(leader) == 0, "it is forgotten")
        stuck.answer()
        still_reads(leader)


def test_an_answer_takes_a_part_of_the_room_that_is_left(brokers: Brokers) -> None:
    brokers.settings = Settings(flight_read_bytes_max=SMALL_ROOM)
    leader = leads(brokers)
    data = produce(leader, *(prepared(2 * place, 200) for place in range(100)))
    heard = Peer(leader).read(checked=True)
    assert len(heard.records().data) <= SMALL_ROOM // 16 < len(data)


def test_answers_that_are_made_at_one_time_do_not_fill_the_room_several_times_over(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were asked for while there was room, and the disk is slow."""
    brokers.settings = Settings(flight_read_bytes_max=SMALL_ROOM)
    leader = leads(brokers)
    data = produce(leader, large())
    goes_on, read, waiting = threading.Event(), StoredRange.read, list[int]()

    def slow(found: StoredRange) -> bytes:
        waiting.append(len(found))
        assert goes_on.wait(TIMEOUT_S)
        return read(found)

    monkeypatch.setattr(StoredRange, "read", slow)
    peers = [Peer(leader, receive_bytes=1 << 14) for _ in range(8)]
    for peer in peers:
        peer.ask(checked=True)
    eventually(lambda: on_the_loop(leader, lambda found: all(each._end._owed for each in found)), "all have asked")
    eventually(lambda: waiting, "an answer is being made")
    goes_on.set()
    settled = len(peers)
    eventually(
        lambda: sum(map(bool, outbox_bytes(leader))) + waits_for_room(leader) == settled,
        "each has an answer that it does not take, or waits for room",
    )
    held = room_bytes(leader)
    takers = [threading.Thread(target=peer.answer, daemon=True) for peer in peers]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(TIMEOUT_S)
        assert not taker.is_alive(), "each is answered in the end"
    assert held <= SMALL_ROOM + len(data), "the room, and the answer that fills it"


# Who is let in


def test_readers_have_so_many_places_of_their_own(brokers: Brokers) -> None:
    brokers.settings = Settings(flight_reads_max=2)
    leader = leads(brokers, replicas=(1, 2))
    first, second = Peer(leader), Peer(leader)
    with pytest.raises(Overloaded, match=r"2 readers \(flight.reads.max\) are connected") as refused:
        Peer(leader)
    assert refused.value.retriable
    with pytest.raises(Overloaded):
        read_once(ReadConnections(NO_SECURITY), place_of(leader))
    client = Client(leader)
    client.say(stream(), put(0))
    brokers.start(2).command(ORDERS, 1, (1, 2))
    assert client.is_told(0).base_offset == 0, "a producer and a follower have connected"
    second.leaves()
    eventually(lambda: len(readers(leader)) == 1, "its place is free")
    assert Peer(leader).read(max_wait_ms=WAIT_MS).rows() == [0, 1]
    assert first.read(max_wait_ms=WAIT_MS).rows() == [0, 1]


def test_readers_take_no_place_of_a_producer_or_a_follower(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.transport.frames.replication_server.CONNECTIONS_MAX", 2)
    brokers.settings = Settings(flight_writes_max=1)
    leader = leads(brokers, replicas=(1, 2))
    peers = [Peer(leader) for _ in range(4)]
    client = Client(leader)
    client.say(stream(), put(0))
    brokers.start(2).command(ORDERS, 1, (1, 2))
    assert client.is_told(0).error == NONE
    assert peers[-1].read(max_wait_ms=WAIT_MS).rows() == [0, 1]
    assert (len(producers(leader)), len(readers(leader))) == (1, 4)


def test_a_reader_of_another_cluster_is_to_look_for_its_own(brokers: Brokers) -> None:
    leader = leads(brokers)
    with pytest.raises(MisroutedCall, match="cluster, not of another: reload routes"):
        Peer(leader, cluster_id="another")
    assert not readers(leader)
    Peer(leader, cluster_id="")


def test_questions_that_come_with_the_last_bytes_of_the_handshake_are_answered(brokers: Brokers) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    with socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S) as connection:
        hello = joined(ClientFrame(cluster_id=CLUSTER, reads=True))
        connection.sendall(hello + question(0) + question(1, from_offset=2))
        receiver = LastingReceiver(connection, 1 << 20)
        heard = [received(receiver)[0] for _ in range(3)]
    assert isinstance(heard[0], WelcomeFrame)
    assert [each.number for each in heard[1:] if isinstance(each, ReadAnswerFrame)] == [0, 1]


def test_a_question_comes_in_many_sends(brokers: Brokers) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    peer = Peer(leader)
    data = question(3)
    for place in range(len(data)):
        peer.say(data[place : place + 1])
    assert peer.answer(3).rows() == [0, 1]


def test_a_question_may_be_longer_than_the_buffer_in_which_it_is_received(brokers: Brokers) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    peer = Peer(leader)
    for number in range(3):
        peer.ask(number, columns=("row", *(f"no such column {number}" for number in range(2_000))))
        peer.ask(number + 10, columns=("text",))
    for number in range(3):
        assert peer.answer(number).batches() == [rows(0, 2).select(["row"])]
        assert peer.answer(number + 10).batches() == [rows(0, 2).select(["text"])]


# Mistakes


PUT = joined(PutFrame(stream=0, number=0, crc=0, batch=BatchMetadata(partition=0)), b"batch")
MISTAKES: dict[str, tuple[list[bytes], str, str]] = {
    "a batch": ([PUT], "INVALID_REQUEST", "a reader sends questions, not PutFrame"),
    "a stream": ([stream()], "INVALID_REQUEST", "not StreamFrame"),
    "a fetch": ([joined(FetchFrame(number=1, partitions=()))], "INVALID_REQUEST", "not FetchFrame"),
    "another first frame": ([joined(ClientFrame(reads=True))], "INVALID_REQUEST", "not ClientFrame"),
    "a follower's hello": (
        [joined(HelloFrame(cluster_id=CLUSTER, broker_id=2, broker_epoch=0))],
        "INVALID_REQUEST",
        "not HelloFrame",
    ),
    "an answer": ([joined(ReadAnswerFrame(number=0))], "INVALID_REQUEST", "not ReadAnswerFrame"),
    "a number that is owed": (
        [question(4, max_wait_ms=WAIT_MS), question(4)],
        "INVALID_REQUEST",
        "question 4 is not answered yet",
    ),
    "too many questions": (
        [question(number, max_wait_ms=WAIT_MS) for number in range(READS_MAX + 1)],
        "INVALID_REQUEST",
        f"or {READS_MAX} others are not",
    ),
    "a column that is named twice": (
        [question(columns=("text", "late")).replace(b"late", b"text")],
        "INVALID_REQUEST",
        "a column is named twice",
    ),
    "no frame": ([struct.pack("!II", 2, 0) + b"\xc1\xc1"], "INVALID_REQUEST", "not a replication frame"),
    "a frame over the limit": (
        [struct.pack("!II", QUESTION_BYTES_MAX, 0)],
        "INVALID_REQUEST",
        f"is over {QUESTION_BYTES_MAX}",
    ),
    "another version": ([joined(ReadFrame(v=2, number=0, ticket=ticket()))], "UNSUPPORTED_VERSION", "2"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_its_own_connection_and_is_told(brokers: Brokers, mistake: str) -> None:
    leader = leads(brokers)
    good, peer = Peer(leader), Peer(leader)
    good.ask(7, max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 1, "a good one waits")
    frames, code, why = MISTAKES[mistake]
    peer.say(*frames)
    heard = peer.hears_error()
    assert heard.error == code
    assert why in heard.message
    eventually(lambda: len(readers(leader)) == 1, "its place is free")
    eventually(lambda: waiters(leader) == 1, "it waits for nothing")
    produce(leader, prepared(0))
    assert good.answer(7).rows() == [0, 1]
    still_reads(leader)


def test_a_question_over_a_producers_connection_ends_that(brokers: Brokers) -> None:
    leader = leads(brokers)
    good, client = Client(leader), Client(leader)
    client.say(stream(), question())
    heard = client.hears_error()
    assert heard.error == InvalidRequest.code
    assert "ReadFrame" in heard.message
    eventually(lambda: len(producers(leader)) == 1, "its place is free")
    good.say(stream(), put(0))
    assert good.is_told(0).base_offset == 0
    still_reads(leader)
    still_takes(leader)


def test_a_broker_that_closes_leaves_nothing_of_its_readers(brokers: Brokers) -> None:
    files, threads = open_files(), set(threading.enumerate())
    leader = leads(brokers)
    peer = Peer(leader)
    peer.ask(max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 1, "it waits")
    brokers.close()
    brokers.brokers.clear()
    with pytest.raises((BrokerNotAvailable, ConnectionResetError)):
        peer.hears()
    peer.leaves()
    eventually(lambda: threads.issuperset(threading.enumerate()), "no thread is left")
    eventually(lambda: open_files() <= files, "no socket is left")


# A slow disk


def test_while_one_reader_waits_for_a_disk_others_are_served(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = leads(brokers, ORDERS, OTHER)
    data = produce(leader, prepared(0), prepared(2, 2_000))
    produce(leader, prepared(0), partition=OTHER)
    goes_on, warmed = threading.Event(), list[str]()

    def slow(found: StoredRange) -> None:
        warmed.append(threading.current_thread().name)
        assert goes_on.wait(TIMEOUT_S)

    monkeypatch.setattr(StoredRange, "is_cached", False)
    monkeypatch.setattr(StoredRange, "warm", slow)
    cold, other, client = Peer(leader), Peer(leader), Client(leader)
    cold.say(question(0), question(1, partition=1))
    eventually(lambda: warmed, "the disk is waited for")
    client.say(stream())
    for number in range(20):
        other.ask(number, partition=1, from_offset="latest")
        assert other.answer(number).payload == b""
        client.say(put(number, to=1))
        assert client.is_told(number).error == NONE
    newest = leader.replica(OTHER).log.log_end - 2
    assert other.read(partition=1, from_offset=newest).rows() == [0, 1], "from memory"
    assert cold.is_silent
    goes_on.set()
    assert bytes(cold.answer(0).records().data) == data
    assert cold.answer(1).told.next_offset == newest + 2
    assert set(warmed) == {"read-aside"}


def test_what_is_read_ahead_for_a_reader_that_has_left_goes_nowhere(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = leads(brokers)
    produce(leader, large())
    goes_on, warmed = threading.Event(), list[int]()

    def slow(found: StoredRange) -> None:
        warmed.append(len(found))
        assert goes_on.wait(TIMEOUT_S)

    monkeypatch.setattr(StoredRange, "is_cached", False)
    monkeypatch.setattr(StoredRange, "warm", slow)
    cold = Peer(leader)
    cold.ask()
    eventually(lambda: warmed, "the disk is waited for")
    cold.leaves()
    eventually(lambda: not readers(leader), "its place is free")
    goes_on.set()
    eventually(lambda: sum(leader.replication.reads.meter.durations()[GET].counts) == 1, "it is over")
    assert (room_bytes(leader), leader.replication.reads.consumed.so_far) == (0, Moved())
    monkeypatch.undo()
    still_reads(leader)


# The client's connections


@pytest.fixture
def connections() -> Iterator[ReadConnections]:
    found = ReadConnections(NO_SECURITY)
    yield found
    found.close()


def kept(connections: ReadConnections, broker: Broker) -> list[ReadConnection]:
    return list(connections._waiting.get(place_of(broker), []))


def read_once(connections: ReadConnections, place: Place, *, waits_ms: int = 0) -> ReadConnection:
    with connections.one(place) as connection:
        connection.ask(ticket(max_wait_ms=waits_ms), checked=False)
        answer_of(connection)
    return connection


def test_a_connection_serves_one_read_after_another(brokers: Brokers, connections: ReadConnections) -> None:
    leader = leads(brokers)
    first = read_once(connections, place_of(leader))
    assert read_once(connections, place_of(leader)) is first
    assert kept(connections, leader) == [first]
    assert len(readers(leader)) == 1


def test_reads_at_one_time_have_connections_of_their_own_and_so_many_wait_after_that(
    brokers: Brokers, connections: ReadConnections
) -> None:
    leader = leads(brokers)
    with ExitStack() as stack:
        used = [stack.enter_context(connections.one(place_of(leader))) for _ in range(WAITING_MAX + 2)]
        assert len(set(used)) == len(readers(leader)) == WAITING_MAX + 2
    assert len(kept(connections, leader)) == WAITING_MAX
    eventually(lambda: len(readers(leader)) == WAITING_MAX, "the others are closed")
    connections.close()
    eventually(lambda: not readers(leader), "all are closed")


def test_connections_to_two_brokers_are_not_mistaken_for_each_other(
    brokers: Brokers, connections: ReadConnections
) -> None:
    first, second = leads(brokers), brokers.start(2)
    one = read_once(connections, place_of(first))
    with connections.one(place_of(second)) as other:
        other.ask(ticket(), checked=False)
        with pytest.raises(UnknownTopicOrPartition):
            other.told()
    assert (kept(connections, first), kept(connections, second)) == ([one], [other])


def test_a_connection_that_owes_an_answer_is_not_used_again(brokers: Brokers, connections: ReadConnections) -> None:
    leader = leads(brokers)
    with connections.one(place_of(leader)) as connection:
        connection.ask(ticket(max_wait_ms=WAIT_MS), checked=False)
    assert kept(connections, leader) == []
    eventually(lambda: not readers(leader), "it is closed")
    assert read_once(connections, place_of(leader)) is not connection


def test_a_connection_whose_records_were_not_taken_is_not_used_again(
    brokers: Brokers, connections: ReadConnections
) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    with connections.one(place_of(leader)) as connection:
        connection.ask(ticket(), checked=False)
        assert connection.told().data_bytes
    assert kept(connections, leader) == []


class Broke(Exception):
    """Of whoever reads."""


def test_a_connection_whose_reader_breaks_off_is_used_again_only_if_nothing_is_owed(
    brokers: Brokers, connections: ReadConnections
) -> None:
    leader = leads(brokers)
    first = read_once(connections, place_of(leader))
    with pytest.raises(Broke), connections.one(place_of(leader)):
        raise Broke
    assert kept(connections, leader) == [first]

    def asks_and_breaks() -> None:
        with connections.one(place_of(leader)) as used:
            assert used is first
            used.ask(ticket(), checked=False)
            raise Broke

    with pytest.raises(Broke):
        asks_and_breaks()
    assert kept(connections, leader) == []


def test_the_broker_ends_a_connection_over_which_nobody_reads_and_the_client_does_not_use_it_again(
    brokers: Brokers, connections: ReadConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = leads(brokers)
    waiting = Peer(leader)
    waiting.ask(max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 1, "one waits")
    monkeypatch.setattr(read_end, "IDLE_MS", 20)
    before = read_once(connections, place_of(leader))
    eventually(lambda: len(readers(leader)) == 1, "it is ended, and the one that waits is not")
    eventually(lambda: not before.is_silent, "the client could know")
    monkeypatch.undo()
    assert kept(connections, leader) == [before]
    after = read_once(connections, place_of(leader))
    assert after is not before
    assert kept(connections, leader) == [after]
    produce(leader, prepared(0))
    assert waiting.answer().rows() == [0, 1]


def test_a_connection_of_a_broker_that_has_ended_breaks_a_read_with_an_error_to_retry(
    brokers: Brokers, connections: ReadConnections
) -> None:
    leader = leads(brokers)
    place, before = place_of(leader), read_once(connections, place_of(leader))

    def reads() -> None:
        with connections.one(place) as used:
            assert used is before
            used.ask(ticket(max_wait_ms=WAIT_MS), checked=False)
            eventually(lambda: waiters(leader) == 1, "it waits")
            brokers.close()
            brokers.brokers.clear()
            answer_of(used)

    with pytest.raises(BrokerNotAvailable) as broken:
        reads()
    assert broken.value.retriable
    assert kept(connections, leader) == []
    with pytest.raises(BrokerNotAvailable):
        read_once(connections, place)


def test_close_ends_a_read_that_waits_on_another_thread(brokers: Brokers, connections: ReadConnections) -> None:
    leader = leads(brokers)
    idle = read_once(connections, place_of(leader))
    told: list[ReplicationError] = []

    def read() -> None:
        try:
            read_once(connections, place_of(leader), waits_ms=WAIT_MS)
        except ReplicationError as error:
            told.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    eventually(lambda: waiters(leader) == 1, "it waits")
    with connections.one(place_of(leader)) as another:
        assert another is not idle
    connections.close()
    reading.join(TIMEOUT_S)
    assert not reading.is_alive()
    assert [type(error) for error in told] == [BrokerNotAvailable]
    eventually(lambda: not readers(leader), "all are closed")
    with pytest.raises(ClientClosed, match="this reader is closed"):
        read_once(connections, place_of(leader))
    eventually(lambda: not readers(leader), "none is left open")


def test_an_answer_that_does_not_come_is_given_up(
    brokers: Brokers, connections: ReadConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_connections, "ANSWER_TIMEOUT_S", 0.05)
    leader = leads(brokers)
    with leader.partitions[ORDERS], pytest.raises(BrokerNotAvailable, match="broke: timed out"):
        read_once(connections, place_of(leader))
    assert kept(connections, leader) == []


WRONG_ANSWERS: dict[str, Frame] = {
    "another number": ReadAnswerFrame(number=1),
    "another frame": PutAnswersFrame(answers=()),
    "an error of the connection": ErrorFrame(error=InvalidRequest.code, message="what was that"),
}


@contextmanager
def answering(*frames: bytes) -> Iterator[Place]:
    """What pretends to be a broker: it welcomes a reader, and answers its first question so."""

    def play() -> None:
        with listener.accept()[0] as connection:
            connection.settimeout(TIMEOUT_S)
            receiver = LastingReceiver(connection, 1 << 20)
            received(receiver)
            send(connection, encoded(WelcomeFrame(batch_bytes_max=1)))
            received(receiver)
            send(connection, frames)
            with pytest.raises((BrokerNotAvailable, ConnectionResetError)):
                received(receiver)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S)
        playing = threading.Thread(target=play, daemon=True)
        playing.start()
        yield Place("127.0.0.1", listener.getsockname()[1])
        playing.join(TIMEOUT_S)
        assert not playing.is_alive()


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
def test_a_broker_that_does_not_answer_the_question_is_refused(connections: ReadConnections, wrong: str) -> None:
    with answering(joined(WRONG_ANSWERS[wrong])) as place:
        with pytest.raises(InvalidRequest):
            read_once(connections, place)
        assert not connections._waiting[place], "it is not used again"


@pytest.mark.parametrize("changed", [{"data_bytes": 1}, {"schema_bytes": 9}, {"entry_bytes": 1, "data_bytes": 99}])
def test_an_answer_that_does_not_describe_its_payload_is_refused(changed: dict[str, int]) -> None:
    told = replace(ReadAnswerFrame(number=0), **changed)
    with pytest.raises(InvalidRequest, match="does not describe its payload of 100 bytes"):
        ReadAnswer(told, memoryview(bytes(100))).records()


def test_a_schema_that_is_not_that_of_its_batches_is_damage(brokers: Brokers) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    told, payload = Peer(leader).read()
    assert Heard(told, payload).rows() == [0, 1]
    damaged = bytearray(payload)
    damaged[told.schema_bytes // 2] ^= 1
    with pytest.raises(CorruptLog, match="schema of the batches does not have its CRC-32C"):
        ReadAnswer(told, memoryview(damaged)).records()


# Frames that last


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    with ours, theirs:
        yield ours, theirs


def told(number: int) -> ReadAnswerFrame:
    return ReadAnswerFrame(number=number)


class Dribbling:
    """A connection that brings at most so much with each recv."""

    def __init__(self, connection: socket.socket, most: int) -> None:
        self._connection = connection
        self._most = most

    def recv_into(self, room: memoryview) -> int:
        return self._connection.recv_into(room[: self._most])


SIZES = (0, 1, HEAD_BYTES - 20, HEAD_BYTES, HEAD_BYTES + 1, 5_000, 0, 0, 3)


@pytest.mark.parametrize("most", [1, 7, 8, 9, HEAD_BYTES, 1 << 20])
def test_frames_of_any_size_are_received_in_pieces_of_any_size(
    pair: tuple[socket.socket, socket.socket], most: int
) -> None:
    """With the largest, several frames come in one recv."""
    sent = [(told(number), bytes([number]) * size) for number, size in enumerate(SIZES)]
    pair[1].sendall(b"".join(joined(frame, payload) for frame, payload in sent))
    receiver = LastingReceiver(Dribbling(pair[0], most), 1 << 20)  # type: ignore[arg-type]
    assert [(frame, bytes(payload)) for frame, payload in (received(receiver) for _ in sent)] == sent


def test_a_payload_lasts_while_later_ones_are_received(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = LastingReceiver(pair[0], 1 << 20)
    payloads = []
    for number in range(20):
        pair[1].sendall(joined(told(number), bytes([number]) * 9_000))
        payloads.append(received(receiver)[1])
    views = [pa.py_buffer(payload) for payload in payloads]
    del payloads, receiver
    assert [view.to_pybytes() for view in views] == [bytes([number]) * 9_000 for number in range(20)]


def test_a_payload_is_aligned_so_that_nothing_of_it_is_copied(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].sendall(joined(told(0), bytes(5_000)))
    assert pa.py_buffer(received(LastingReceiver(pair[0], 1 << 20))[1]).address % 64 == 0


@pytest.mark.parametrize("payload", [0, 1_000])
def test_a_frame_may_be_so_long_and_no_longer(pair: tuple[socket.socket, socket.socket], payload: int) -> None:
    frame = joined(told(0), bytes(payload))
    limit = len(frame) - 8
    pair[1].sendall(frame)
    assert len(received(LastingReceiver(pair[0], limit))[1]) == payload
    pair[1].sendall(frame)
    with pytest.raises(InvalidRequest, match=f"a frame of {limit} bytes is over {limit - 1}"):
        LastingReceiver(pair[0], limit - 1).frame()


def test_a_frame_that_is_far_too_long_takes_no_memory(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].sendall(b"\xff" * 8)
    with pytest.raises(InvalidRequest, match="is over"):
        LastingReceiver(pair[0], 1 << 20).frame()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 20, -1])
def test_a_peer_that_closes_in_the_midst_of_a_frame_is_not_available(
    pair: tuple[socket.socket, socket.socket], count: int
) -> None:
    pair[1].sendall(joined(told(0)) + joined(told(1), bytes(2_000))[:count])
    pair[1].shutdown(socket.SHUT_WR)
    receiver = LastingReceiver(pair[0], 1 << 20)
    assert received(receiver)[0] == told(0)
    with pytest.raises(BrokerNotAvailable, match="closed the connection"):
        received(receiver)


def test_what_is_no_frame_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].sendall(struct.pack("!II", 2, 0) + b"\xc1\xc1")
    with pytest.raises(InvalidRequest, match="not a replication frame"):
        LastingReceiver(pair[0], 1 << 20).frame()


def test_open_files_are_given_back(brokers: Brokers, connections: ReadConnections) -> None:
    leader = leads(brokers)
    produce(leader, prepared(0))
    read_once(connections, place_of(leader))
    before = open_files()
    for _ in range(20):
        Peer(leader).leaves()
        read_once(connections, place_of(leader))
    eventually(lambda: open_files() <= before, "nothing is left open")
