"""Every decoder of what comes from outside, with seeded malformed bytes: it reads them, or refuses them with an error
of ours, and raises nothing else. What Arrow would end the process over must be refused before it gets there: a failure
of that kind shows as a crash of the tests."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from spark_replication.config import Settings
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.commands import LeaderAndIsr
from spark_replication.messages.descriptions import GetMetadata
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.messages.replication import (
    FetchedFrame,
    FetchedPartition,
    FetchFrame,
    FetchPartition,
    HelloFrame,
    from_frame,
    to_frame,
)
from spark_replication.model import TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.storage.batches import TopicSchema, batches_of, prepare, schema_from_bytes
from spark_replication.storage.index import IndexEntry, encode_entry
from spark_replication.transport.frames import FrameReceiver, encoded
from spark_replication.transport.replication_client import _records
from tests.unit.transport.hostile import any_of, damaged
from tests.unit.transport.replicas import Brokers

SEEDS = range(5)
ROUNDS = 400
FRAME_BYTES_MAX = 1 << 16

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
    orders = TopicPartition("orders", 0)
    leader.command(orders, 1, (1, 2))
    leader.produce(orders, 3)
    partition = follower.open(orders)
    follower.command(orders, 9, (9, 2))  # nobody: what comes, comes from this test
    log = leader.replica(orders).log
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
    assert follower.replica(orders).log.log_end == 0
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
