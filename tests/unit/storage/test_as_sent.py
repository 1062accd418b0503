"""A batch that a client has serialised: what is stored of it, and what is refused."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replication.config import Compression
from spark_replication.errors import (
    BatchTooLarge,
    BrokerNotAvailable,
    InvalidRequest,
    ReplicationError,
    SchemaMismatch,
    UnknownSchemaVersion,
)
from spark_replication.ports import PreparedBatch
from spark_replication.storage.format import batches
from spark_replication.storage.format.batches import TopicSchema, as_sent, prepare, serialized
from spark_replication.storage.format.row_digest import row_digest
from tests.unit.storage.storage_stories import SCHEMA, TOPIC, WIDENED, WIDER, rows

LIMIT = 1 << 20
NUMBERS: dict[str, Any] = {"producer": 7, "producer_epoch": 2, "sequence": 5, "any_order": True}

SMALL_INTS = st.integers(-128, 127)
TEXTS = st.sampled_from(["", "a", "é", "too long to be within a view of it"])
UTC = pa.timestamp("us", "UTC")
#: Of each kind of column, values that it may have.
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.string_view(): TEXTS,
    pa.binary(): st.binary(max_size=9),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(10, 2): st.integers(-999, 999).map(lambda cents: Decimal(cents) / 100),
    pa.decimal256(50, 0): st.integers(-(10**49), 10**49).map(Decimal),
    UTC: st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)),
    pa.date32(): st.dates(),
    pa.list_(pa.list_(pa.string())): st.lists(st.none() | st.lists(st.none() | TEXTS, max_size=2), max_size=3),
    pa.large_list(pa.int8()): st.lists(SMALL_INTS, max_size=3),
    pa.list_(pa.int8(), 2): st.lists(SMALL_INTS, min_size=2, max_size=2),
    pa.list_view(pa.int8()): st.lists(SMALL_INTS, max_size=3),
    pa.struct([("x", pa.int8()), ("text", pa.string())]): st.fixed_dictionaries(
        {"x": st.none() | SMALL_INTS, "text": st.none() | TEXTS}
    ),
    pa.map_(pa.string(), pa.int8()): st.dictionaries(TEXTS, st.none() | SMALL_INTS, max_size=2).map(
        lambda found: list(found.items())
    ),
    pa.null(): st.none(),
}


@st.composite
def some_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A batch of a few columns of any kinds, or a slice of one."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    count = draw(st.integers(1, 8))
    fields, columns = [], []
    for place, kind in enumerate(kinds):
        is_nullable = kind == pa.null() or draw(st.booleans())
        values = st.none() | KINDS[kind] if is_nullable else KINDS[kind]
        fields.append(pa.field(f"column {place}", kind, nullable=is_nullable))
        columns.append(pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind))
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    start = draw(st.integers(0, count - 1))
    return batch.slice(start, draw(st.integers(1, count - start)))


def sent(
    message: bytes | bytearray | memoryview,
    schema: pa.Schema = SCHEMA,
    topic: TopicSchema = TOPIC,
    *,
    batch_bytes_max: int = LIMIT,
    compression: Compression = "none",
) -> PreparedBatch:
    """With the CRC of whatever it is."""
    return as_sent(
        message, schema, topic, crc=crc32c(message), batch_bytes_max=batch_bytes_max, compression=compression, **NUMBERS
    )


def made(
    batch: pa.RecordBatch, topic: TopicSchema = TOPIC, *, compression: Compression = "none"
) -> tuple[int, bytes, int, bytes, int, int, int, int]:
    return all_of(prepare(batch, topic, batch_bytes_max=LIMIT, compression=compression, **NUMBERS))


def all_of(batch: PreparedBatch) -> tuple[int, bytes, int, bytes, int, int, int, int]:
    """Its message as bytes, whatever they lie in."""
    return (
        batch.rows,
        bytes(batch.message),
        batch.crc,
        batch.schema,
        batch.producer,
        batch.producer_epoch,
        batch.sequence,
        batch.digest,
    )


def message_of(batch: pa.RecordBatch, metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    """As a stream has it that is written with these options."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    messages = [bytes(each.serialize()) for each in pa.ipc.MessageReader.open_stream(sink.getvalue())]
    return messages[-1]


def body_of(message: bytes | bytearray) -> int:
    """Where its body begins."""
    return 8 + int.from_bytes(message[4:8], "little")


# Stored as it came


@given(some_batches())
@settings(max_examples=100)
def test_a_batch_is_stored_as_the_client_serialised_it_which_is_as_it_would_be_made_anew(batch: pa.RecordBatch) -> None:
    message, crc = serialized(batch)
    topic = TopicSchema(batch.schema)
    stored = as_sent(message, batch.schema, topic, crc=crc, batch_bytes_max=LIMIT, **NUMBERS)
    assert bytes(stored.message) == bytes(message)
    assert (stored.crc, stored.crc) == (crc, crc32c(message))
    assert all_of(stored) == made(batch, topic)
    read = pa.ipc.read_record_batch(pa.py_buffer(stored.message), batch.schema)
    assert read.to_pylist() == batch.to_pylist()


def test_the_numbers_of_a_producer_are_none_unless_they_are_given() -> None:
    message, crc = serialized(rows(0, 2))
    stored = as_sent(message, SCHEMA, TOPIC, crc=crc, batch_bytes_max=LIMIT)
    assert (stored.rows, stored.producer, stored.producer_epoch, stored.sequence) == (2, -1, -1, -1)
    assert stored.digest == 0


def test_a_batch_in_any_order_has_the_digest_of_its_rows_as_they_are_stored() -> None:
    batch = rows(0, 3)
    for sent in (batch, batch.take([2, 0, 1])):
        message, crc = serialized(sent)
        stored = as_sent(message, SCHEMA, TOPIC, crc=crc, batch_bytes_max=LIMIT, **NUMBERS)
        assert stored.digest == row_digest(batch)


@pytest.mark.parametrize("kind", [bytearray, lambda message: memoryview(bytearray(message))])
def test_what_was_prepared_stays_when_the_receive_buffer_is_used_again(
    kind: Callable[[bytes], bytearray | memoryview],
) -> None:
    message = bytes(serialized(rows(0, 5))[0])
    received = kind(message)
    stored = sent(received)
    received[:] = bytes(len(message))
    assert all_of(stored) == made(rows(0, 5))


def test_metadata_of_the_schema_makes_no_difference() -> None:
    batch = rows(0, 2).replace_schema_metadata({"from": "pandas"})
    message, _ = serialized(batch)
    assert all_of(sent(message, batch.schema)) == made(rows(0, 2))


# Made anew


def test_a_batch_of_an_earlier_version_is_filled() -> None:
    message, crc = serialized(rows(0, 3))
    stored = sent(message, SCHEMA, WIDENED)
    assert stored.crc != crc
    assert all_of(stored) == made(rows(0, 3), WIDENED)
    read = pa.ipc.read_record_batch(pa.py_buffer(stored.message), WIDER)
    assert read.column("late").to_pylist() == [None, None, None]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_topic_with_compression_stores_it_compressed(compression: Compression) -> None:
    batch = rows(0, 1_000)
    message, _ = serialized(batch)
    stored = sent(message, compression=compression)
    assert len(stored.message) < len(message) / 1.5
    assert all_of(stored) == made(batch, compression=compression)


def at_64(message: bytes) -> bytes:
    """Its body begins at a multiple of 64 bytes, not of 8."""
    (found,) = pa.ipc.MessageReader.open_stream(message)
    return bytes(found.serialize(alignment=64))


def with_a_gap(message: bytes) -> bytes:
    """Its body has eight bytes more, which no buffer has."""
    body = len(message) - body_of(message)
    at = message.index(body.to_bytes(8, "little"))
    return message[:at] + (body + 8).to_bytes(8, "little") + message[at + 8 :] + bytes(8)


@pytest.mark.parametrize(
    "message",
    [
        message_of(rows(0, 5), {"custom": "metadata"}),
        at_64(message_of(rows(0, 5))),
        with_a_gap(message_of(rows(0, 5))),
    ],
    ids=["custom metadata", "metadata padded to 64 bytes", "a gap in the body"],
)
def test_a_message_that_is_larger_than_it_need_be_is_stored_as_any_other(message: bytes) -> None:
    plain = bytes(serialized(rows(0, 5))[0])
    assert len(message) > len(plain)
    assert all_of(sent(message)) == made(rows(0, 5))


EXTRA_BUFFER = 84  # where the message of one column of numbers says how many buffers it has


def with_a_buffer_more() -> bytes:
    message = bytearray(message_of(pa.record_batch({"row": pa.array([1, None, 3])})))
    assert message[EXTRA_BUFFER] == 2
    message[EXTRA_BUFFER] = 3
    return bytes(message)


def with_bytes_in_its_padding() -> bytes:
    message = bytearray(message_of(pa.record_batch({"row": pa.array([1, None, 3])})))
    message[body_of(message) + 7] = 9
    return bytes(message)


@pytest.mark.parametrize(
    "message",
    [
        message_of(pa.record_batch({"row": pa.array([1, None, 3])}), metadata_version=pa.ipc.MetadataVersion.V4),
        with_a_buffer_more(),
        with_bytes_in_its_padding(),
    ],
    ids=["metadata version 4", "a buffer that no column has", "bytes in the padding"],
)
def test_a_message_of_the_same_size_that_the_broker_would_not_make_is_made_anew(message: bytes) -> None:
    batch = pa.record_batch({"row": pa.array([1, None, 3])})
    topic = TopicSchema(batch.schema)
    assert all_of(sent(message, batch.schema, topic)) == made(batch, topic)


# Refused


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            [pa.field("number", pa.int64()), pa.field("text", pa.string())],
            "column 0 is named 'number' in the batch and 'row' in the topic",
        ),
        (
            [pa.field("row", pa.int64()), pa.field("text", pa.large_string())],
            r"column 1 \('text'\) is large_string in the batch and string in the topic",
        ),
        (
            [pa.field("row", pa.int64(), nullable=False), pa.field("text", pa.string())],
            r"column 0 \('row'\) is not nullable in the batch and nullable in the topic",
        ),
        ([pa.field("row", pa.int64())], r"column 1 \('text'\) of the topic is not in the batch"),
        (
            [*SCHEMA, pa.field("more", pa.int8(), nullable=False)],
            r"column 2 \('more'\) of the batch is not in the topic",
        ),
    ],
)
def test_the_first_difference_from_the_schema_of_the_topic_is_named(fields: list[pa.Field], why: str) -> None:
    schema = pa.schema(fields)
    columns = [pa.array([1]).cast(field.type) for field in fields]
    message, _ = serialized(pa.RecordBatch.from_arrays(columns, schema=schema))
    with pytest.raises(SchemaMismatch, match=why):
        sent(message, schema)


def test_a_batch_of_a_version_that_the_broker_does_not_know_yet_is_refused_for_now() -> None:
    batch = pa.RecordBatch.from_arrays([*rows(0, 1).columns, pa.array([7], pa.int8())], schema=WIDER)
    message, _ = serialized(batch)
    with pytest.raises(UnknownSchemaVersion) as refused:
        sent(message, WIDER)
    assert refused.value.retriable
    assert all_of(sent(message, WIDER, WIDENED)) == made(batch, WIDENED)


@pytest.mark.parametrize("schema", [WIDER, pa.schema([pa.field("row", pa.struct([("x", pa.int64())]))])])
def test_a_message_that_does_not_fit_the_schema_of_its_stream_is_refused(schema: pa.Schema) -> None:
    message, _ = serialized(rows(0, 1))
    with pytest.raises(InvalidRequest, match="not sound Arrow data"):
        sent(message, schema, WIDENED)


def test_a_dictionary_that_was_not_decoded_is_refused() -> None:
    batch = pa.record_batch({"row": pa.array([1]), "text": pa.array(["a"]).dictionary_encode()})
    with pytest.raises(InvalidRequest, match="not sound Arrow data"):
        sent(message_of(batch), batch.schema)


@pytest.mark.parametrize("wrong", [lambda crc: crc ^ 1, lambda _: 0])
def test_a_batch_with_another_crc_is_refused(wrong: Callable[[int], int]) -> None:
    message, crc = serialized(rows(0, 1))
    with pytest.raises(BrokerNotAvailable, match="does not have its CRC-32C: send it again") as refused:
        as_sent(message, SCHEMA, TOPIC, crc=wrong(crc), batch_bytes_max=LIMIT)
    assert refused.value.retriable


def test_a_bit_that_fell_over_is_found_or_changes_nothing() -> None:
    """Some lie between fields, and say nothing."""
    message, crc = serialized(rows(0, 1))
    unchanged = 0
    for place in range(len(message)):
        changed = bytearray(message)
        changed[place] ^= 1 << place % 8
        try:
            stored = as_sent(changed, SCHEMA, TOPIC, crc=crc, batch_bytes_max=LIMIT)
        except BrokerNotAvailable:
            continue
        assert bytes(stored.message) == bytes(message)
        unchanged += 1
    assert 0 < unchanged < len(message) / 4


MESSAGE = message_of(rows(0, 5))
WORDS = pa.record_batch({"row": pa.array(["a"]).dictionary_encode()})


@pytest.mark.parametrize(
    "payload",
    [
        message_of(rows(0, 5), compression="lz4"),
        message_of(rows(0, 5), compression="zstd"),
        bytes(SCHEMA.serialize()),
        bytes(SCHEMA.serialize()) + MESSAGE,
        MESSAGE[:-1],
        MESSAGE[:40],
        MESSAGE[:8],
        MESSAGE[4:],
        MESSAGE + bytes(1),
        MESSAGE + bytes(8),
        MESSAGE + MESSAGE,
        MESSAGE + b"\xff\xff\xff\xff" + bytes(4),
        b"no Arrow at all, but some text of some length",
        bytes(200),
        b"\xff" * 200,
        b"",
    ],
    ids=[
        "lz4", "zstd", "a schema", "a stream", "cut by a byte", "cut within its metadata", "its lengths alone",
        "without its marker", "a byte more", "eight bytes more", "two batches", "a batch and the end of a stream",
        "text", "zeros", "ones", "nothing",
    ],
)  # fmt: skip
def test_what_is_not_one_plain_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not one IPC message of a record batch without compression"):
        sent(payload)


@pytest.mark.parametrize("topic", [TOPIC, WIDENED], ids=["newest version", "earlier version"])
def test_a_batch_without_rows_is_refused(topic: TopicSchema) -> None:
    message, _ = serialized(rows(0, 0))
    with pytest.raises(InvalidRequest, match="a batch without rows has no offsets"):
        sent(message, SCHEMA, topic)


def test_a_batch_of_too_many_rows_is_refused_however_few_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS_MAX", 2)
    topic = TopicSchema(pa.schema([pa.field("nothing", pa.null())]))
    for count in (2, 3):
        message, _ = serialized(pa.RecordBatch.from_arrays([pa.nulls(count)], schema=topic.newest))
        if count == 2:
            assert sent(message, topic.newest, topic).rows == 2
            continue
        with pytest.raises(BatchTooLarge, match="3 rows is over 2"):
            sent(message, topic.newest, topic)


def test_a_batch_at_the_cap_is_taken_and_one_over_it_is_refused() -> None:
    message, _ = serialized(rows(0, 50))
    size = len(message)
    assert sent(message, batch_bytes_max=size).rows == 50
    with pytest.raises(BatchTooLarge, match=f"takes {size} bytes in memory, over batch.bytes.max={size - 1}"):
        sent(message, batch_bytes_max=size - 1)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_the_cap_is_on_what_a_batch_takes_in_memory_however_small_it_is_stored(compression: Compression) -> None:
    message, _ = serialized(rows(0, 1_000))
    size = len(message)
    assert len(sent(message, batch_bytes_max=size, compression=compression).message) < size
    with pytest.raises(BatchTooLarge, match=f"takes {size} bytes in memory"):
        sent(message, batch_bytes_max=size - 1, compression=compression)


def test_a_batch_over_the_cap_is_refused_before_its_content_is_looked_at() -> None:
    """Its text, which is no UTF-8, would not pass: buffers that lie in one place make it large, and the look long."""
    text = pa.py_buffer(b"\xff" * 1_000)
    offsets = pa.array([0, 1_000], pa.int32()).buffers()[1]
    batch = pa.record_batch({"text": pa.StringArray.from_buffers(1, offsets, text)})
    message = message_of(batch)
    with pytest.raises(InvalidRequest, match="not sound Arrow data"):
        sent(message, batch.schema, TopicSchema(batch.schema))
    with pytest.raises(BatchTooLarge):
        sent(message, batch.schema, TopicSchema(batch.schema), batch_bytes_max=len(message) - 1)


REQUIRED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


@pytest.mark.parametrize("topic", [TopicSchema(REQUIRED), TopicSchema(REQUIRED.append(WIDER.field(2)), (2,))])
def test_nulls_in_a_column_without_nulls_are_refused(topic: TopicSchema) -> None:
    for values, is_refused in (([1, 2], False), ([1, None], True)):
        batch = pa.RecordBatch.from_arrays([pa.array(values), pa.array([None, "b"])], schema=REQUIRED)
        message, _ = serialized(batch)
        if not is_refused:
            assert all_of(sent(message, REQUIRED, topic)) == made(batch, topic)
            continue
        with pytest.raises(SchemaMismatch, match=r"column 0 \('id'\) is not nullable and the batch has nulls in it"):
            sent(message, REQUIRED, topic)


def test_nulls_that_the_message_does_not_count_are_none() -> None:
    """Arrow does not read the bits of a column that has no nulls: they are not stored."""
    batch = pa.RecordBatch.from_arrays([pa.array([1, None]), pa.array(["a", "b"])], schema=REQUIRED)
    message = bytearray(message_of(batch))
    rows_and_nulls = (2).to_bytes(8, "little") + (1).to_bytes(8, "little")
    at = message.index(rows_and_nulls)
    message[at : at + 16] = (2).to_bytes(8, "little") + bytes(8)
    stored = sent(message, REQUIRED, TopicSchema(REQUIRED))
    read = pa.ipc.read_record_batch(pa.py_buffer(stored.message), REQUIRED)
    assert read.column("id").null_count == 0
    assert all_of(stored) == made(read, TopicSchema(REQUIRED))


TEXTS_ALONE = pa.record_batch({"text": pa.array(["one", "two", "three"])})
LISTS_ALONE = pa.record_batch({"list": pa.array([[1], [2, 3], [4]])})


@pytest.mark.parametrize("batch", [TEXTS_ALONE, LISTS_ALONE], ids=["text", "list"])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("offset", [-1, 1 << 30, -(1 << 31)])
def test_offsets_that_lead_out_of_their_buffer_are_refused(batch: pa.RecordBatch, place: int, offset: int) -> None:
    message = bytearray(message_of(batch))
    at = body_of(message) + 4 * place
    message[at : at + 4] = offset.to_bytes(4, "little", signed=True)
    with pytest.raises(InvalidRequest, match="not sound Arrow data"):
        sent(message, batch.schema, TopicSchema(batch.schema))


def test_offsets_that_go_back_are_refused() -> None:
    message = bytearray(message_of(TEXTS_ALONE))
    at = body_of(message) + 4
    message[at : at + 4] = (9).to_bytes(4, "little")
    with pytest.raises(InvalidRequest, match="not sound Arrow data"):
        sent(message, TEXTS_ALONE.schema, TopicSchema(TEXTS_ALONE.schema))


def test_text_that_is_no_utf8_is_refused() -> None:
    message = message_of(TEXTS_ALONE).replace(b"onetwo", b"\xff" * 6)
    with pytest.raises(InvalidRequest, match="not sound Arrow data"):
        sent(message, TEXTS_ALONE.schema, TopicSchema(TEXTS_ALONE.schema))


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_what_is_refused_is_refused_in_every_topic(compression: Compression) -> None:
    message = message_of(TEXTS_ALONE).replace(b"onetwo", b"\xff" * 6)
    with pytest.raises(ReplicationError):
        sent(message, TEXTS_ALONE.schema, TopicSchema(TEXTS_ALONE.schema), compression=compression)
