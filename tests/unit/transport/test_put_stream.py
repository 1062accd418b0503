"""A write stream while its topic is widened."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.config import Settings
from spark_replication.errors import InvalidRequest, SchemaMismatch
from spark_replication.messages.envelope import to_json
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.process.memory import uncollected
from spark_replication.storage.format.batches import TopicSchema
from spark_replication.transport.flight.limits import Room
from spark_replication.transport.flight.put_stream import FlightPutStream, QueueInOrder
from spark_replication.transport.meter import PUT, Meter, Traffic
from tests.unit.storage.storage_stories import SCHEMA, TOPIC, WIDENED, WIDER, rows
from tests.unit.transport.replicas import Broker, Brokers

ORDERS = TopicPartition("orders", 0)


class Chunk(NamedTuple):
    data: pa.RecordBatch
    app_metadata: pa.Buffer | None = None


class Chunks:
    """A Flight reader."""

    def __init__(self, chunks: Iterable[pa.RecordBatch | Chunk]) -> None:
        self._chunks = iter(chunks)

    def read_chunk(self) -> Chunk:
        chunk = next(self._chunks)
        return chunk if isinstance(chunk, Chunk) else Chunk(chunk)


class Written(list[dict[str, Any]]):
    def write(self, data: bytes) -> None:
        self.append(msgspec.json.decode(data))


def stream_to(broker: Broker, schema: Callable[[], TopicSchema]) -> FlightPutStream:
    return FlightPutStream(
        lambda _: broker.partitions[ORDERS],
        schema,
        QueueInOrder,
        Settings(),
        lambda: 0,
        lambda: None,
        room=Room(1 << 20, "room", wait_s=0),
        meter=Meter([PUT]),
        traffic=Traffic(),
        pace=lambda _: None,
    )


def test_an_open_stream_is_served_in_the_version_that_the_broker_knows_by_then(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    broker.command(ORDERS, 1, (1,))
    schemas: list[TopicSchema] = [TOPIC]
    new = pa.RecordBatch.from_arrays([*rows(2, 2).columns, pa.array([7, None], pa.int8())], schema=WIDER)

    def sent() -> Iterator[pa.RecordBatch]:
        yield rows(0, 2)
        yield new  # the broker has not heard of it
        schemas.append(WIDENED)
        yield new
        yield rows(4, 2)

    written = Written()
    stream = stream_to(broker, lambda: schemas[-1])
    stream.run(Chunks(sent()), written)
    assert [answer.get("base_offset") for answer in written] == [0, None, 2, 4]
    assert (written[1]["error"], written[1]["retriable"], written[1]["maybe_written"]) == (
        "UNKNOWN_SCHEMA_VERSION",
        True,
        False,
    )
    folder = broker.folder(ORDERS)
    first, second = (pa.ipc.open_stream(path.read_bytes()) for path in sorted(folder.glob("*.arrow")))
    assert (first.schema, second.schema) == (SCHEMA, WIDER)
    assert first.read_all().to_pydict() == {"row": [0, 1], "text": ["row 0", "row 1"]}
    assert second.read_all().column("late").to_pylist() == [7, None, None, None]
    brokers.close()


def numbered(sequence: int, batch: pa.RecordBatch, *, producer: int = 7) -> Chunk:
    metadata = BatchMetadata(acks=1, producer=producer, sequence=sequence)
    return Chunk(batch, pa.py_buffer(to_json(metadata)))


@pytest.mark.parametrize(("has_head", "why"), [(True, "OUT_OF_ORDER_SEQUENCE_NUMBER"), (False, "UNKNOWN_PRODUCER_ID")])
def test_what_comes_after_a_refused_batch_is_not_stored_before_that_one_is(
    tmp_path: Path, *, has_head: bool, why: str
) -> None:
    """A producer sends it all again, renumbered or not: each batch is there once."""
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    if not has_head:
        log = broker.open(ORDERS).unguarded.log
        log.begin_anew(10)
        log.close()
        broker.open(ORDERS)
    broker.command(ORDERS, 1, (1,))
    start = broker.replica(ORDERS).log.log_start
    large = rows(0, 2_000)
    sent = [
        numbered(0, large),
        *(numbered(sequence, rows(sequence, 1)) for sequence in (1, 2)),
        numbered(0, rows(9, 1), producer=8),
        *(numbered(sequence, rows(sequence, 1)) for sequence in (0, 1, 2)),
    ]
    written = Written()
    settings = Settings(batch_bytes_max=2_000)
    stream = FlightPutStream(
        lambda _: broker.partitions[ORDERS],
        lambda: TOPIC,
        QueueInOrder,
        settings,
        lambda: 0,
        lambda: None,
        room=Room(1 << 20, "room", wait_s=0),
        meter=Meter([PUT]),
        traffic=Traffic(),
        pace=lambda _: None,
    )
    stream.run(Chunks(sent), written)
    assert [answer.get("error") or answer["base_offset"] - start for answer in written] == [
        "MESSAGE_TOO_LARGE",
        *[why] * 2,
        *[0, 1, 2, 3],
    ]
    assert not any(answer.get("maybe_written") for answer in written)
    assert broker.replica(ORDERS).log.log_end == start + 4
    brokers.close()


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (pa.ArrowInvalid("bad offsets"), "INVALID_REQUEST: the stream cannot be read on: bad offsets"),
        (OSError("no message"), "INVALID_REQUEST: the stream cannot be read on: no message"),
        (flight.FlightCancelledError("the client is gone"), "the client is gone"),
    ],
)
def test_a_stream_that_breaks_ends_with_what_came_before_answered(tmp_path: Path, broken: Exception, told: str) -> None:
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    broker.command(ORDERS, 1, (1,))

    def sent() -> Iterator[pa.RecordBatch]:
        yield rows(0, 2)
        raise broken

    written = Written()
    stream = stream_to(broker, lambda: TOPIC)
    with pytest.raises(Exception, match=told) as ended:
        stream.run(Chunks(sent()), written)
    assert isinstance(ended.value, (InvalidRequest, flight.FlightCancelledError))
    assert [answer["base_offset"] for answer in written] == [0]
    brokers.close()


def test_a_batch_that_is_refused_goes_with_its_stream(tmp_path: Path) -> None:
    """Its memory is no garbage that waits until Python looks at everything."""
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    broker.command(ORDERS, 1, (1,))
    batches: list[weakref.ref[pa.RecordBatch]] = []

    def sent() -> Iterator[pa.RecordBatch]:
        batch = pa.record_batch({"other": [1]})
        batches.append(weakref.ref(batch))
        yield batch

    written = Written()
    with uncollected():
        stream_to(broker, lambda: TOPIC).run(Chunks(sent()), written)
        (batch,) = batches
        assert batch() is None
    assert [answer["error"] for answer in written] == [SchemaMismatch.code]
    brokers.close()
