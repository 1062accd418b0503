"""Every decoder of what comes from outside, with seeded malformed bytes: it reads them, or refuses them with an error
of ours, and raises nothing else. What Arrow would end the process over must be refused before it gets there: a failure
of that kind shows as a crash of the tests."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import hypothesis
import msgspec
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import strategies as st

from spark_replication.config import Settings
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.commands import LeaderAndIsr
from spark_replication.messages.descriptions import GetMetadata
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.frames import Frame, from_frame, to_frame
from spark_replication.messages.lane import ClientFrame, PutAnswersFrame, PutFrame, StreamFrame
from spark_replication.messages.records import SEQUENCE_IN_ANY_ORDER_MAX, BatchMetadata, ReadTicket
from spark_replication.messages.replication import (
    FetchedFrame,
    FetchedPartition,
    FetchFrame,
    FetchPartition,
    HelloFrame,
)
from spark_replication.model import TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.storage.format.batches import TopicSchema, batches_of, prepare, schema_from_bytes
from spark_replication.storage.format.index import IndexEntry, encode_entry
from spark_replication.transport.frames.replication_client import _records
from spark_replication.transport.sockets.frames import FrameReceiver, encoded
from tests.unit.storage.storage_stories import SCHEMA as TOPIC_SCHEMA
from tests.unit.storage.storage_stories import WIDER, read_batches, rows
from tests.unit.transport.hostile import any_of, damaged
from tests.unit.transport.replicas import CLUSTER, TIMEOUT_S, Brokers
from tests.unit.transport.test_lane import Client, log_of, producers, put, still_serves, stream
from tests.waiting import eventually

SEEDS = range(5)
ROUNDS = 400
FRAME_BYTES_MAX = 1 << 16
EXAMPLES = 600
ORDERS = TopicPartition("orders", 0)

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.utf8()), ("parts", pa.list_(pa.utf8()))])
BATCH = pa.record_batch(
    [
        pa.array([1, 2, 3], pa.int64()),
        pa.array(["a", None, "ccc"]),
        pa.array([["x"], ["y", "zz"], []], pa.list_(pa.utf8())),
    ],
    schema=SCHEMA,
)
FETCH = FetchPartition(
    topic="orders", partition=0, topic_id="id", leader_epoch=0, offset=0, last_epoch=-1, clean_since=0
)
FRAMES = (
    to_frame(HelloFrame(cluster_id="cluster", broker_id=2, broker_epoch=0)),
    to_frame(FetchFrame(number=1, partitions=(FETCH, FETCH))),
    to_frame(
        FetchedFrame(
            number=1, partition=FetchedPartition(topic="orders", partition=0, topic_id="id", leader_epoch=0, offset=5)
        )
    ),
)
TEXTS: dict[type[msgspec.Struct], bytes] = {
    ReadTicket: to_json(ReadTicket(topic="orders", partition=0, to=9, columns=("id",))),
    BatchMetadata: b'{"acks":"all","producer":1,"epoch":0,"sequence":7}',
    GetMetadata: to_json(GetMetadata(topics=("orders",))),
    LeaderAndIsr: to_json(LeaderAndIsr(controller_epoch=1, partitions=(), topics={}, brokers={})),
}


def refusals(seed: int, attempt: Callable[[random.Random], object]) -> int:
    """How many of the rounds were refused; anything but an error of our tree is a failure of its seed."""
    rng = random.Random(seed)
    refused = 0
    for number in range(ROUNDS):
        try:
            attempt(rng)
        except ReplicationError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed={seed} round={number}: {error!r}") from error
    return refused


@pytest.mark.parametrize("seed", SEEDS)
def test_headers(seed: int) -> None:
    assert refusals(seed, lambda rng: from_frame(any_of(rng, FRAMES))) > ROUNDS // 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", TEXTS)
def test_tickets_metadata_and_requests(kind: type[msgspec.Struct], seed: int) -> None:
    assert refusals(seed, lambda rng: from_json(any_of(rng, [TEXTS[kind]]), kind)) > ROUNDS // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_of_frames(seed: int) -> None:
    sound = [struct.pack("!II", len(header), 3) + header + b"abc" for header in FRAMES]

    def receive(rng: random.Random) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(any_of(rng, sound))
            theirs.shutdown(socket.SHUT_WR)
            receiver = FrameReceiver(ours, FRAME_BYTES_MAX)
            while True:
                receiver.receive()

    assert refusals(seed, receive) == ROUNDS, "each ends, at the latest with the connection"


@pytest.mark.parametrize("seed", SEEDS)
def test_schemas(seed: int) -> None:
    sound = bytes(SCHEMA.serialize())
    assert refusals(seed, lambda rng: schema_from_bytes(any_of(rng, [sound]), "a request")) > ROUNDS // 4


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_of_a_producer(seed: int) -> None:
    """As Flight's reader hands them on: it looks at the metadata of a batch, and not at what offsets point to."""
    sound = bytes(BATCH.serialize())

    def take(rng: random.Random) -> None:
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(damaged(rng, sound)), SCHEMA)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise InvalidRequest(f"Flight refuses it: {error}") from error
        message = prepare(batch, TopicSchema(SCHEMA), batch_bytes_max=Settings().batch_bytes_max).message
        pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA).validate(full=True)

    assert 0 < refusals(seed, take) < ROUNDS


def test_a_batch_whose_offsets_lead_out_of_its_buffers_is_refused() -> None:
    sound = bytes(BATCH.serialize())
    offsets = struct.pack("<4i", 0, 1, 1, 4)
    assert sound.count(offsets) == 1
    wild = sound.replace(offsets, struct.pack("<4i", 1 << 20, 1 << 20, 1 << 20, 1 << 21))
    batch = pa.ipc.read_record_batch(pa.py_buffer(wild), SCHEMA)
    with pytest.raises(InvalidRequest, match="not sound Arrow data"):
        prepare(batch, TopicSchema(SCHEMA), batch_bytes_max=1 << 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_stored_batches(seed: int) -> None:
    sound = bytes(BATCH.serialize())
    entries = _entries_of(sound)

    def look(rng: random.Random) -> None:
        data = damaged(rng, sound)
        records = LogSlice(0, 3, 0, entries, data, TopicSchema(SCHEMA).head)
        for _entry, _batch in batches_of(records):
            pass

    assert refusals(seed, look) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_of_a_leader(seed: int, tmp_path: Path) -> None:
    """A follower takes all of an answer, or nothing."""
    brokers = Brokers(tmp_path)
    leader, follower = brokers.start(1), brokers.start(2)
    leader.command(ORDERS, 1, (1, 2))
    leader.produce(ORDERS, 3)
    partition = follower.open(ORDERS)
    follower.command(ORDERS, 9, (9, 2))  # nobody: what comes, comes from this test
    log = leader.replica(ORDERS).log
    found = log.find(0, bytes_max=1 << 20, end=log.log_end)
    assert found is not None
    read = found.loaded()
    answer = FetchedPartition(
        topic="orders",
        partition=0,
        topic_id="id",
        leader_epoch=0,
        schema_bytes=len(read.schema),
        entry_bytes=len(read.entries),
        data_bytes=len(read.data),
    )
    sound = bytes(read.schema) + bytes(read.entries) + bytes(read.data)

    def take(rng: random.Random) -> None:
        with partition as replica:
            fetch = replica.next_fetch()
            assert fetch is not None
            replica.fetch_answered(fetch, answer, _records(answer, memoryview(damaged(rng, sound))))

    assert refusals(seed, take) == ROUNDS
    assert follower.replica(ORDERS).log.log_end == 0
    brokers.close()


def _entries_of(message: bytes) -> bytes:
    return encode_entry(
        IndexEntry(
            base_offset=0,
            last_offset=2,
            position=0,
            timestamp_ms=0,
            timestamp_max_ms=0,
            producer=-1,
            sequence=-1,
            bytes=len(message),
            crc=0,
            leader_epoch=0,
            producer_epoch=-1,
        )
    )


def test_a_sound_frame_is_read() -> None:
    """The other side: what is damaged above is sound before."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(map(bytes, encoded(FetchFrame(number=1, partitions=(FETCH, FETCH)), b"abc"))))
        ((frame, payload),) = FrameReceiver(ours, FRAME_BYTES_MAX).receive()
    assert (frame, bytes(payload)) == (FetchFrame(number=1, partitions=(FETCH, FETCH)), b"abc")
    for kind, text in TEXTS.items():
        from_json(text, kind)
    prepare(BATCH, TopicSchema(SCHEMA), batch_bytes_max=1 << 20)


# The lane: what a client sends, damaged frame by frame. A payload is damaged before its checksum is made: else the
# checksum would refuse it before anything looks at it.

SCHEMAS = (
    *[TOPIC_SCHEMA] * 6,
    WIDER,
    SCHEMA,
    pa.schema([("row", pa.int64()), ("text", pa.string_view())]),
    pa.schema([("row", pa.int64()), ("text", pa.list_(pa.int8()))]),
    pa.schema([("row", pa.float64()), ("text", pa.dictionary(pa.int32(), pa.utf8()))]),
    pa.schema([("row", pa.run_end_encoded(pa.int32(), pa.int64())), ("text", pa.large_utf8())]),
)
COUNTS = st.sampled_from((0, 1, 2, 3, (1 << 31) - 1, (1 << 63) - 1))


def one_in(count: int, rare: st.SearchStrategy[bytes], sound: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(1, count).flatmap(lambda drawn: rare if drawn == count else st.just(sound))


def seldom_damaged(sound: bytes, one_of: int) -> st.SearchStrategy[bytes]:
    return one_in(one_of, st.integers(0, 1 << 32).map(lambda seed: damaged(random.Random(seed), sound)), sound)


def framed(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("!II", len(header), len(payload)) + header + payload


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    schema = draw(seldom_damaged(bytes(draw(st.sampled_from(SCHEMAS)).serialize()), 6))
    frame = StreamFrame(
        stream=draw(st.integers(1, 4)),
        topic=draw(st.sampled_from(("orders", "orders", "orders", "", "x" * 5_000))),
        topic_id=draw(st.sampled_from(("id", "id", "id", "other"))),
    )
    return framed(draw(seldom_damaged(to_frame(frame), 20)), schema)


@st.composite
def puts(draw: st.DrawFn, place: int) -> bytes:
    batch = draw(st.sampled_from((rows(0, 1), rows(0, 3), rows(0, 70), rows(0, 0), BATCH)))
    payload = draw(seldom_damaged(batch.serialize().to_pybytes(), 2))
    producer = draw(st.sampled_from((None, None, 1, (1 << 63) - 1)))
    sequence = None if producer is None else draw(COUNTS)
    frame = PutFrame(
        stream=draw(st.sampled_from((*[0] * 12, 1, 2, 3, 4))),
        number=draw(st.sampled_from((*[place] * 30, 0, (1 << 63) - 1))),
        crc=crc32c(payload),
        batch=BatchMetadata(
            partition=draw(st.sampled_from((0, 0, 0, 0, 1, None))),
            acks=draw(st.sampled_from(("all", 0, 1))),
            producer=producer,
            epoch=draw(st.sampled_from((0, 1, (1 << 31) - 1))),
            sequence=sequence,
            any_order=(sequence or 0) <= SEQUENCE_IN_ANY_ORDER_MAX and draw(st.booleans()),
        ),
    )
    return framed(draw(seldom_damaged(to_frame(frame), 20)), payload)


@st.composite
def lane_traffic(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """What is answered at once, and what follows. Most of it is sound, so that what is not is met in every state."""
    others: tuple[Frame, ...] = (
        ClientFrame(cluster_id=CLUSTER),
        PutAnswersFrame(answers=()),
        FetchFrame(number=1, partitions=(FETCH,)),
        HelloFrame(cluster_id=CLUSTER, broker_id=9, broker_epoch=0),
    )
    other = st.sampled_from(others).map(lambda frame: framed(to_frame(frame)))
    kind = st.sampled_from((*["stream"] * 4, *["put"] * 30, "other"))
    sound_stream = framed(
        to_frame(StreamFrame(stream=0, topic="orders", topic_id="id")), bytes(TOPIC_SCHEMA.serialize())
    )
    first = draw(st.sampled_from((*[ClientFrame(cluster_id=CLUSTER)] * 9, ClientFrame(nonce=b"n" * 32))))
    hello, frames = framed(to_frame(first)), [sound_stream] if draw(st.integers(0, 9)) else []
    for place in range(draw(st.integers(2, 12))):
        frames.append(draw({"stream": streams(), "put": puts(place), "other": other}[draw(kind)]))
    traffic = b"".join(frames)
    if draw(st.integers(0, 9)) == 0:
        return b"", draw(seldom_damaged(hello + traffic, 1))
    return hello, traffic


@pytest.mark.slow
def test_hostile_traffic_of_clients_harms_nobody_and_what_is_stored_is_sound(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    good = Client(leader)
    good.say(stream())
    served = 0

    @hypothesis.settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(lane_traffic())
    def is_served_beside(traffic: tuple[bytes, bytes]) -> None:
        nonlocal served
        hello, frames = traffic
        with socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S) as connection:
            with suppress(OSError):  # the broker hangs up on what it refuses
                if hello:
                    connection.sendall(hello)
                    assert connection.recv(1 << 16)
                connection.sendall(frames)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                while connection.recv(1 << 16):
                    pass
        good.say(put(served, rows(served, 1)))
        assert good.is_told(served).error == "NONE", "acks=all: the follower has it"
        served += 1

    is_served_beside()
    eventually(lambda: len(producers(leader)) == 1, "all others are forgotten")
    still_serves(leader)
    eventually(lambda: follower.replica(ORDERS).log.log_end == leader.replica(ORDERS).log.log_end, "all is there")
    assert leader.files(ORDERS) == follower.files(ORDERS)
    batches = list(read_batches(log_of(follower)))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(TOPIC_SCHEMA)
    assert len(batches) > served + EXAMPLES // 20, "sound ones among them were stored"
    assert leader.replication.lane.kept.bytes == 0
