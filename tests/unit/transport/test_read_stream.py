"""What one DoGet gives of a log whose segments have different versions of the topic's schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.envelope import from_json
from spark_replication.messages.records import BatchPosition, ReadTicket
from spark_replication.model import TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.storage.format import batches
from spark_replication.storage.format.batches import TopicSchema, prepare
from spark_replication.transport.flight.limits import Room
from spark_replication.transport.flight.read_stream import ReadStream
from spark_replication.transport.meter import Traffic
from tests.unit.storage.storage_stories import SCHEMA, TOPIC, WIDENED, WIDER, prepared
from tests.unit.transport.replicas import Brokers

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """It leads alone: rows 0–3 are of the first version, two a batch, and 4–7 of the second, with 7 times the row."""
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    broker.command(ORDERS, 1, (1,))
    led = broker.partitions[ORDERS]
    for first in (0, 2):
        produce(led, prepared(first))
    for first in (4, 6):
        produce(led, wide(first))
    yield led
    brokers.close()


def wide(first: int) -> PreparedBatch:
    numbers = [first, first + 1]
    texts = [f"row {number}" for number in numbers]
    batch = pa.record_batch([pa.array(numbers), pa.array(texts), pa.array([7 * n for n in numbers], pa.int8())], WIDER)
    return prepare(batch, WIDENED, batch_bytes_max=10_000)


def produce(partition: Partition, batch: PreparedBatch) -> None:
    with partition as replica:
        replica.produce(batch, acks="all", now_ms=0, acknowledge=lambda _outcome: None)


def begun(partition: Partition, schema: pa.Schema, ticket: ReadTicket) -> ReadStream:
    room = Room(1 << 20, "room", wait_s=0)
    stream = ReadStream(lambda: partition, schema, ticket, room, lambda: False, traffic=Traffic(), pace=lambda _: None)
    stream.begin()
    return stream


def read(partition: Partition, schema: pa.Schema, **ticket: Any) -> list[dict[str, Any]]:
    """The rows, each with its offset; every batch has the stream's schema, and follows the one before."""
    stream = begun(partition, schema, ReadTicket(topic="orders", partition=0, **ticket))
    found: list[dict[str, Any]] = []
    for batch, metadata in stream.batches():
        batch.validate(full=True)
        assert batch.schema.equals(stream.schema)
        offset = from_json(metadata, BatchPosition).base_offset
        assert not found or offset == found[-1]["offset"] + 1
        found += [{"offset": each, **row} for each, row in enumerate(batch.to_pylist(), offset)]
    return found


def row(number: int, *names: str) -> dict[str, Any]:
    whole = {"row": number, "text": f"row {number}", "late": 7 * number if number >= 4 else None}
    return {"offset": number, **{name: whole[name] for name in names}}


def test_earlier_batches_have_nulls_in_the_columns_that_came_later(partition: Partition) -> None:
    assert read(partition, WIDER) == [row(number, "row", "text", "late") for number in range(8)]


@pytest.mark.parametrize("columns", [None, ("late",), ("text", "late")])
def test_what_would_take_much_comes_in_pieces_each_at_its_offset(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...] | None
) -> None:
    monkeypatch.setattr(batches, "PIECE_BYTES_MAX", 1)
    stream = begun(partition, WIDER, ReadTicket(topic="orders", partition=0, columns=columns))
    assert [batch.num_rows for batch, _ in stream.batches()] == [1, 1, 1, 1, 2, 2]
    for start, to in ((0, None), (1, 3), (3, 7)):
        expected = [row(number, *(columns or WIDER.names)) for number in range(start, to or 8)]
        assert read(partition, WIDER, from_offset=start, to=to, columns=columns) == expected


def test_later_batches_are_shown_without_the_columns_that_a_stream_began_without(partition: Partition) -> None:
    assert read(partition, SCHEMA) == [row(number, "row", "text") for number in range(8)]


@pytest.mark.parametrize("columns", [("late",), ("late", "row"), ("text", "late", "row"), ("text",)])
def test_columns_are_chosen_of_any_version(partition: Partition, columns: tuple[str, ...]) -> None:
    assert read(partition, WIDER, columns=columns) == [row(number, *columns) for number in range(8)]


def test_columns_that_the_stream_has_not_heard_of_are_refused(partition: Partition) -> None:
    assert read(partition, SCHEMA, columns=("text",)) == [row(number, "text") for number in range(8)]
    with pytest.raises(InvalidRequest, match="column 'late' is not in the topic, or there twice: row, text are"):
        read(partition, SCHEMA, columns=("late",))


@pytest.mark.parametrize("columns", [None, ("row", "late")])
@pytest.mark.parametrize(("start", "to"), [(1, 3), (3, 5), (5, 7), (1, 7), (0, 4), (4, 8), (7, None)])
def test_both_ends_are_trimmed_in_any_version(
    partition: Partition, start: int, to: int | None, columns: tuple[str, ...] | None
) -> None:
    expected = [row(number, *(columns or WIDER.names)) for number in range(start, to or 8)]
    assert read(partition, WIDER, from_offset=start, to=to, columns=columns) == expected


def test_a_stream_goes_on_when_the_topic_is_widened_and_when_it_is_led_by_who_does_not_know(
    partition: Partition,
) -> None:
    """The widest of three segments comes, and then one of the first version again."""
    ticket = ReadTicket(topic="orders", partition=0, from_offset=6, to=12, max_wait_ms=60_000)
    following = begun(partition, WIDER, ticket).batches()
    assert next(following)[0].to_pydict() == {"row": [6, 7], "text": ["row 6", "row 7"], "late": [42, 49]}
    newer = TopicSchema(WIDER.append(pa.field("latest", pa.string())), (2, 3))
    produce(partition, prepared(8, topic=newer))
    assert next(following)[0].to_pydict() == {"row": [8, 9], "text": ["row 8", "row 9"], "late": [None, None]}
    produce(partition, prepared(10, topic=TOPIC))
    assert next(following)[0].to_pydict() == {"row": [10, 11], "text": ["row 10", "row 11"], "late": [None, None]}
    assert list(following) == []


def test_batches_of_the_streams_own_schema_are_views_of_the_slice(partition: Partition) -> None:
    stream = begun(partition, WIDER, ReadTicket(topic="orders", partition=0, from_offset=4))
    with partition as replica:
        records = replica.read(4, bytes_max=1 << 20, to=None)
    assert records is not None
    first, second = (batch for batch, _ in stream.batches())
    distance = second.column("row").buffers()[1].address - first.column("row").buffers()[1].address
    assert distance == len(records.data) // 2, "both lie where one read has put them"


def test_only_the_topic_that_is_meant_is_read(partition: Partition) -> None:
    everything = read(partition, SCHEMA)
    assert read(partition, SCHEMA, topic_id=partition.topic_id) == everything
    with pytest.raises(UnknownTopicOrPartition, match=f"of topic_id {partition.topic_id} here, not another"):
        read(partition, SCHEMA, topic_id="another")
    with pytest.raises(UnknownTopicOrPartition):
        read(partition, SCHEMA, topic_id="another", any_replica=True)


def test_a_topic_that_was_made_again_is_not_read_with_the_schema_of_the_old_one(partition: Partition) -> None:
    other = pa.schema([("row", pa.int64()), ("text", pa.large_string())])
    with pytest.raises(flight.FlightServerError, match="UNKNOWN_TOPIC_OR_PARTITION: orders was made again"):
        read(partition, other)
