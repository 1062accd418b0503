"""What a batch must be to be stored, and how it comes back."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_replication.config import Compression
from spark_replication.errors import BatchTooLarge, CorruptLog, InvalidRequest, SchemaMismatch
from spark_replication.storage.format import batches
from spark_replication.storage.format.batches import (
    TopicSchema,
    batches_of,
    prepare,
    schema_from_bytes,
    schema_to_bytes,
    stored_schema,
)
from tests.unit.storage.storage_stories import SCHEMA, Open, prepared, read, rows

TOPIC = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            [pa.field("key", pa.int64(), nullable=False), pa.field("name", pa.string())],
            "column 0 is named 'key' in the batch and 'id' in the topic",
        ),
        (
            [pa.field("id", pa.int32(), nullable=False), pa.field("no", pa.string())],
            r"column 0 \('id'\) is int32 in the batch and int64 in the topic",
        ),
        (
            [pa.field("id", pa.int64()), pa.field("name", pa.string())],
            r"column 0 \('id'\) is nullable in the batch and not nullable in the topic",
        ),
        ([pa.field("id", pa.int64(), nullable=False)], r"column 1 \('name'\) of the topic is not in the batch"),
        ([*TOPIC, pa.field("more", pa.int8())], r"column 2 \('more'\) of the batch is not in the topic"),
        (
            [TOPIC.field(0), pa.field("name", pa.dictionary(pa.int8(), pa.int64()))],
            r"column 1 \('name'\) is int64 in the batch and string in the topic",
        ),
    ],
)
def test_the_first_difference_is_named(fields: list[pa.Field], message: str) -> None:
    columns = [pa.array([1], pa.int64()).cast(pa.int64()) for _ in fields]
    schema = pa.schema(fields)
    arrays = [
        column.dictionary_encode().cast(field.type) if pa.types.is_dictionary(field.type) else column.cast(field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    with pytest.raises(SchemaMismatch, match=message):
        prepare(pa.RecordBatch.from_arrays(arrays, schema=schema), TopicSchema(TOPIC), batch_bytes_max=1000)


def test_nulls_in_a_column_without_nulls_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, None]), pa.array(["a", "b"])], schema=TOPIC)
    with pytest.raises(SchemaMismatch, match=r"column 0 \('id'\) is not nullable and the batch has nulls"):
        prepare(batch, TopicSchema(TOPIC), batch_bytes_max=1000)


def test_metadata_makes_no_difference() -> None:
    assert (
        prepare(rows(0, 1).replace_schema_metadata({"from": "pandas"}), TopicSchema(SCHEMA), batch_bytes_max=1000).rows
        == 1
    )


def test_a_batch_at_the_cap_is_taken_and_one_without_rows_is_refused() -> None:
    size = len(prepared(0, 5).message)
    assert prepare(rows(0, 5), TopicSchema(SCHEMA), batch_bytes_max=size).rows == 5
    with pytest.raises(InvalidRequest, match="without rows"):
        prepare(rows(0, 0), TopicSchema(SCHEMA), batch_bytes_max=size)


def test_a_batch_of_too_many_rows_is_refused_however_few_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = TopicSchema(pa.schema([pa.field("nothing", pa.null())]))
    monkeypatch.setattr(batches, "ROWS_MAX", 2)
    for count, refused in ((2, False), (3, True)):
        batch = pa.RecordBatch.from_arrays([pa.nulls(count)], schema=nothing.newest)
        with pytest.raises(BatchTooLarge, match="3 rows is over 2") if refused else nullcontext():
            prepare(batch, nothing, batch_bytes_max=1000)


def test_a_slice_of_a_batch_is_stored_alone() -> None:
    sliced = prepare(rows(0, 1000).slice(500, 2), TopicSchema(SCHEMA), batch_bytes_max=1 << 20)
    assert len(sliced.message) < 400
    assert sliced.crc == crc32c(sliced.message)


def test_dictionaries_are_decoded_wherever_they_are() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    schema = pa.schema(
        [
            ("plain", words.type),
            ("listed", pa.list_(words.type)),
            ("held", pa.struct([("word", words.type)])),
        ]
    )
    listed = pa.ListArray.from_arrays([0, 1, 2, 3], words)
    held = pa.StructArray.from_arrays([words], names=["word"])
    stored = stored_schema(schema)
    assert stored.types == [pa.string(), pa.list_(pa.string()), pa.struct([("word", pa.string())])]
    batch = pa.RecordBatch.from_arrays([words, listed, held], schema=schema)
    message = prepare(batch, TopicSchema(stored), batch_bytes_max=10_000).message
    found = pa.ipc.read_record_batch(pa.py_buffer(message), stored)
    assert found.to_pylist() == batch.to_pylist()


def test_a_map_stays_as_it_is_but_for_its_dictionaries() -> None:
    words = pa.array(["a"]).dictionary_encode().type
    key, value = (
        pa.field("key", pa.int32(), nullable=False),
        pa.field("value", words, nullable=False, metadata={"a": "b"}),
    )
    (stored,) = stored_schema(pa.schema([("m", pa.map_(key, value, keys_sorted=True))])).types
    assert stored.equals(pa.map_(key, value.with_type(pa.string()), keys_sorted=True), check_metadata=True)


def test_a_schema_that_nobody_could_make_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.int8()))])

    def refuses(*_fields: pa.Field, keys_sorted: bool) -> pa.DataType:
        raise ValueError("a null type field may not be non-nullable")

    monkeypatch.setattr(pa, "map_", refuses)
    with pytest.raises(InvalidRequest, match="there is no such schema: a null type field may not"):
        stored_schema(schema)


def test_a_dictionary_out_of_reach_is_refused() -> None:
    hidden = pa.run_end_encoded(pa.int32(), pa.dictionary(pa.int8(), pa.string()))
    with pytest.raises(InvalidRequest, match="column 'deep' holds a dictionary"):
        stored_schema(pa.schema([("deep", hidden)]))


def test_batches_come_back_as_views_of_the_slice(open_log: Open) -> None:
    log = open_log()
    log.begin_epoch(0)
    for first in (0, 3):
        log.append(prepared(first, 3), leader_epoch=0, timestamp_ms=0)
    records = read(log, 0, bytes_max=1 << 20, end=6)
    assert records is not None
    found = list(batches_of(records))
    assert [batch for _, batch in found] == [rows(0, 3), rows(3, 3)]
    assert [(entry.base_offset, entry.last_offset) for entry, _ in found] == [(0, 2), (3, 5)]
    whole = pa.py_buffer(records.data)
    for _, batch in found:
        address = batch.column("row").buffers()[1].address
        assert whole.address <= address < whole.address + whole.size


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_batch_is_smaller_and_reads_like_any_other(compression: Compression, open_log: Open) -> None:
    plain = len(prepare(rows(0, 1_000), TopicSchema(SCHEMA), batch_bytes_max=1 << 20).message)
    log = open_log()
    log.begin_epoch(0)
    for first, used in ((0, compression), (1_000, "none")):
        batch = prepare(rows(first, 1_000), TopicSchema(SCHEMA), batch_bytes_max=1 << 20, compression=used)
        assert (len(batch.message) < plain / 1.5) == (used != "none")
        assert (len(batch.message) % 8, batch.crc) == (0, crc32c(batch.message))
        log.append(batch, leader_epoch=0, timestamp_ms=0)
    records = read(log, 0, bytes_max=1 << 20, end=2_000)
    assert records is not None
    expected = [rows(0, 1_000), rows(1_000, 1_000)]
    assert [batch for _, batch in batches_of(records)] == expected
    stream = pa.py_buffer(bytes(records.schema) + bytes(records.data))
    assert list(pa.ipc.open_stream(stream)) == expected


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_the_cap_is_on_what_a_batch_takes_in_memory_however_small_it_is_stored(compression: Compression) -> None:
    """Whoever reads it needs as much."""
    batch = rows(0, 1_000)
    size = pa.ipc.get_record_batch_size(batch)
    stored = prepare(batch, TopicSchema(SCHEMA), batch_bytes_max=size, compression=compression)
    assert (len(stored.message) == size) == (compression == "none")
    with pytest.raises(BatchTooLarge, match=f"takes {size} bytes in memory, over batch.bytes.max={size - 1}"):
        prepare(batch, TopicSchema(SCHEMA), batch_bytes_max=size - 1, compression=compression)


def test_compression_that_makes_it_larger_is_under_the_cap_too() -> None:
    batch = pa.record_batch([pa.array([random.Random(0).randbytes(10_000)], pa.binary())], names=["noise"])
    size = pa.ipc.get_record_batch_size(batch)
    with pytest.raises(BatchTooLarge, match="as it is stored"):
        prepare(batch, TopicSchema(batch.schema), batch_bytes_max=size, compression="lz4")


def test_a_batch_over_the_cap_is_refused_before_anything_is_made_of_it() -> None:
    """Its content, which would not pass, is not looked at."""
    nothing = pa.py_buffer(b"\xff" * (8 << 20))
    offsets = pa.array([0, 8 << 20], pa.int32()).buffers()[1]
    batch = pa.record_batch([pa.StringArray.from_buffers(1, offsets, nothing)], names=["text"])
    with pytest.raises(BatchTooLarge):
        prepare(batch, TopicSchema(batch.schema), batch_bytes_max=1 << 20)
    with pytest.raises(InvalidRequest, match="not sound"):
        prepare(batch, TopicSchema(batch.schema), batch_bytes_max=16 << 20)


MUCH = 1_000_000


TEXT = pa.array(["x" * MUCH])


@pytest.mark.parametrize(
    ("values", "within"),
    [
        (TEXT, ""),
        (TEXT, "struct"),
        (TEXT, "list"),
        (TEXT.cast(pa.large_string()), ""),
        (pa.array([b"x" * MUCH], pa.binary(MUCH)), ""),
        (pa.array([["x" * MUCH]]), ""),
        (pa.array([{"text": "x" * MUCH}]), ""),
    ],
    ids=["text", "text within a struct", "text within a list", "large text", "fixed", "list", "struct"],
)
def test_a_dictionary_that_would_be_over_the_cap_is_refused_before_it_is_decoded(values: pa.Array, within: str) -> None:
    """Decoded it would take a terabyte."""
    column: pa.Array = pa.DictionaryArray.from_arrays(pa.array(bytes(MUCH), pa.uint8()), values)
    if within == "struct":
        column = pa.StructArray.from_arrays([column], names=["within"])
    if within == "list":
        column = pa.ListArray.from_arrays(pa.array(range(MUCH + 1), pa.int32()), column)
    batch = pa.record_batch([column], names=["text"])
    topic = TopicSchema(stored_schema(batch.schema))
    with pytest.raises(BatchTooLarge, match="with its dictionaries decoded"):
        prepare(batch, topic, batch_bytes_max=16 << 20)
    if within != "list":  # of which all is decoded, also what no row refers to
        assert prepare(batch.slice(0, 2), topic, batch_bytes_max=16 << 20).rows == 2


def test_what_no_list_refers_to_is_counted_since_it_is_decoded() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(bytes(MUCH), pa.uint8()), TEXT)
    batch = pa.record_batch([pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column)], names=["texts"])
    with pytest.raises(BatchTooLarge, match="with its dictionaries decoded"):
        prepare(batch, TopicSchema(stored_schema(batch.schema)), batch_bytes_max=16 << 20)


def test_a_dictionary_of_numbers_is_counted_as_numbers() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.uint8()), pa.array([7], pa.int64()))
    batch = pa.record_batch([column], names=["number"])
    topic = TopicSchema(stored_schema(batch.schema))
    with pytest.raises(BatchTooLarge, match="takes 8000 bytes with its dictionaries decoded"):
        prepare(batch, topic, batch_bytes_max=7_999)
    assert prepare(batch, topic, batch_bytes_max=8_400).rows == 1_000


def test_a_schema_comes_back_and_rubbish_is_named() -> None:
    assert schema_from_bytes(schema_to_bytes(TOPIC), "there") == TOPIC
    for rubbish in (b"", b"rubbish", bytes(64), schema_to_bytes(TOPIC)[:40]):
        with pytest.raises(CorruptLog, match="there holds no Arrow schema"):
            schema_from_bytes(rubbish, "there")


def test_what_lacks_columns_is_refused_before_their_nulls_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of booleans are many rows."""
    columns = [pa.field("flag", pa.bool_()), *(pa.field(f"c{number}", pa.int64()) for number in range(100))]
    topic = TopicSchema(pa.schema(columns), (1,))
    batch = pa.record_batch([pa.nulls(80_000, pa.bool_())], schema=pa.schema(columns[:1]))
    monkeypatch.setattr(batches, "filled", None)  # whoever fills it, fails
    with pytest.raises(BatchTooLarge, match="in the columns that it lacks"):
        prepare(batch, topic, batch_bytes_max=8 << 20)


def test_a_batch_that_lacks_columns_is_stored_with_nulls_there() -> None:
    newest = pa.schema([("flag", pa.bool_()), ("words", pa.list_(pa.string())), ("nothing", pa.null())])
    batch = pa.record_batch([pa.array([True, False])], schema=pa.schema([("flag", pa.bool_())]))
    stored = prepare(batch, TopicSchema(newest, (1,)), batch_bytes_max=8 << 20)
    found = pa.ipc.read_record_batch(pa.py_buffer(stored.message), newest)
    assert found.to_pylist() == [{"flag": flag, "words": None, "nothing": None} for flag in (True, False)]
