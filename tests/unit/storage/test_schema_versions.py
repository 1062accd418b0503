"""A topic's schema over its versions: what may come next, what of each is taken, and as what it is stored and shown."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from spark_replication.admin.cli.log_files import verify
from spark_replication.core.controller.widening import SchemaChange
from spark_replication.errors import CorruptLog, CorruptState, InvalidSchema, SchemaMismatch, UnknownSchemaVersion
from spark_replication.model import TopicConfig
from spark_replication.ports import PreparedBatch
from spark_replication.storage.format import batches
from spark_replication.storage.format.batches import (
    TopicSchema,
    are_versions,
    filled,
    in_a_version,
    in_pieces,
    prepare,
    schema_change,
    schema_to_bytes,
    topic_schema,
)
from spark_replication.storage.format.index import decode_entries, encode_entry
from tests.unit.storage.storage_stories import SCHEMA, TOPIC, WIDENED, WIDER, Open, prepared, read, read_rows, rows

ID, NAME, LATE = pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("late", pa.int8())
LATEST = pa.field("latest", pa.list_(pa.float64()))
THREE = TopicSchema(pa.schema([ID, NAME, LATE, LATEST]), (2, 3))


def text(*fields: pa.Field, metadata: dict[str, str] | None = None) -> str:
    return base64.b64encode(schema_to_bytes(pa.schema(fields, metadata=metadata))).decode()


def stored(batch: PreparedBatch, schema: pa.Schema) -> pa.RecordBatch:
    found = pa.ipc.read_record_batch(pa.py_buffer(batch.message), schema)
    found.validate(full=True)
    return found


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ((ID, NAME, LATE), ""),
        ((ID, NAME, LATE, LATEST), ""),
        ((ID, NAME), ""),
        ((ID, NAME, LATE.with_type(pa.dictionary(pa.int8(), pa.string()))), ""),
        ((ID,), "column 1 ('name') of the topic is not in the new schema"),
        ((ID, LATE, NAME), "column 1 is named 'late' in the new schema and 'name' in the topic"),
        ((LATE, ID, NAME), "column 0 is named 'late' in the new schema and 'id' in the topic"),
        (
            (ID, NAME.with_type(pa.large_string()), LATE),
            "column 1 ('name') is large_string in the new schema and string",
        ),
        ((ID.with_nullable(True), NAME, LATE), "column 0 ('id') is nullable in the new schema and not nullable"),
        ((ID, NAME, LATE.with_nullable(False)), "column 2 ('late') is new and not nullable"),
        ((ID, NAME, LATE, LATEST.with_nullable(False)), "column 3 ('latest') is new and not nullable"),
        ((ID, NAME, LATE.with_name("id")), "column 2 ('id') is new and has the name of another"),
        ((ID, NAME, LATE, LATE), "column 3 ('late') is new and has the name of another"),
    ],
)
def test_only_nullable_columns_at_the_end_are_a_widening(fields: tuple[pa.Field, ...], difference: str) -> None:
    found = schema_change(text(ID, NAME), text(*fields))
    assert (found.columns_before, found.columns_after) == (2, len(fields))
    assert found.difference.startswith(difference)
    assert bool(found.difference) == bool(difference)


def test_metadata_is_no_difference() -> None:
    same = schema_change(text(ID, NAME), text(ID.with_metadata({"a": "b"}), NAME, metadata={"c": "d"}))
    assert same == SchemaChange(columns_before=2, columns_after=2)


@pytest.mark.parametrize("rubbish", ["", "no base64!", base64.b64encode(b"rubbish").decode()])
def test_what_is_no_schema_is_refused_and_it_is_said_whose_it_is(rubbish: str) -> None:
    with pytest.raises(InvalidSchema, match="the request holds"):
        schema_change(text(ID), rubbish)
    with pytest.raises((CorruptLog, CorruptState), match="a topic's config holds"):
        schema_change(rubbish, text(ID))
    with pytest.raises((CorruptLog, CorruptState), match="a topic's config holds"):
        topic_schema(TopicConfig(schema=rubbish))


def test_the_versions_of_a_topic_are_the_first_columns_of_its_schema() -> None:
    found = topic_schema(TopicConfig(schema=text(ID, NAME, LATE, LATEST), earlier_columns=(2, 3)))
    assert [version.names for version in found.versions] == [
        ["id", "name", "late", "latest"],
        ["id", "name", "late"],
        ["id", "name"],
    ]
    assert found.versions[0] == found.newest == THREE.newest
    assert found.head == schema_to_bytes(THREE.newest)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_batch_of_any_version_is_stored_in_the_newest(width: int) -> None:
    columns: list[Any] = [[1, 2], ["a", None], [7, None], [[0.5], None]]
    fields = list(THREE.newest)[:width]
    arrays = [pa.array(found, field.type) for found, field in zip(columns, fields, strict=False)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    found = prepare(batch, THREE, batch_bytes_max=10_000)
    assert (found.rows, found.schema) == (2, THREE.head)
    shown = stored(found, THREE.newest)
    assert shown.columns[:width] == batch.columns
    assert [column.null_count for column in shown.columns[width:]] == [2] * (4 - width)
    assert in_a_version(batch, THREE) is batch, "and a client sends it as it is"


def test_what_a_batch_lacks_comes_in_pieces_if_it_would_take_much(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(range(10)), pa.array(["a"] * 10)], schema=pa.schema([ID, NAME]))
    whole = filled(batch, range(4), THREE.newest)
    assert [*in_pieces(batch, range(4), THREE.newest)] == [whole]
    monkeypatch.setattr(batches, "PIECE_BYTES_MAX", 3 * sum(THREE.null_bytes[2:]))
    found = [*in_pieces(batch, range(4), THREE.newest)]
    assert [piece.num_rows for piece in found] == [3, 3, 3, 1]
    assert pa.Table.from_batches(found).combine_chunks().to_batches() == [whole]
    assert [piece.num_rows for piece in in_pieces(batch, range(2), pa.schema([ID, NAME]))] == [10], "it lacks nothing"
    monkeypatch.setattr(batches, "PIECE_BYTES_MAX", 0)
    assert [piece.num_rows for piece in in_pieces(batch, range(4), THREE.newest)] == [1] * 10


NUMBERS = pa.list_(pa.int64(), 1_000)


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.string(),
        pa.large_list(pa.int8()),
        pa.map_(pa.string(), pa.int64()),
        pa.binary(77),
        pa.decimal128(30, 2),
        NUMBERS,
        pa.list_(NUMBERS, 3),
        pa.struct([("a", pa.binary(9)), ("b", NUMBERS)]),
        pa.dictionary(pa.int16(), pa.string()),
        pa.null(),
    ],
    ids=str,
)
def test_what_a_null_takes_is_counted_without_making_one(kind: pa.DataType) -> None:
    counted = TopicSchema(pa.schema([("column", kind)])).null_bytes[0]
    assert counted == pytest.approx(pa.nulls(8_000, kind).nbytes / 8_000, rel=0.2, abs=0.2)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64(), 10**9),
        pa.binary(1 << 27),
        pa.list_(NUMBERS, 10**6),
        pa.struct([("a", pa.binary(1 << 27))]),
    ],
)
def test_a_row_without_a_value_takes_no_more_than_a_batch_may(kind: pa.DataType) -> None:
    wide = text(ID, pa.field("wide", kind))
    TopicSchema(pa.schema([ID, pa.field("wide", kind)]))  # nothing of it is made
    with pytest.raises(InvalidSchema, match=r"a row without any value takes \d+ bytes, 16777216 at most: use lists"):
        schema_change(wide, wide)
    with pytest.raises(InvalidSchema, match="a row without any value"):
        schema_change(text(ID), wide)


def test_dictionaries_of_an_earlier_version_are_decoded_as_ever() -> None:
    names = pa.array(["a", "b"]).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), names], schema=pa.schema([ID, NAME.with_type(names.type)]))
    found = stored(prepare(batch, THREE, batch_bytes_max=10_000), THREE.newest)
    assert found.to_pydict() == {"id": [1, 2], "name": ["a", "b"], "late": [None] * 2, "latest": [None] * 2}


def test_columns_without_nulls_have_none_in_any_version() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, None]), pa.array(["a", "b"])], schema=pa.schema([ID, NAME]))
    with pytest.raises(SchemaMismatch, match=r"column 0 \('id'\) is not nullable and the batch has nulls"):
        prepare(batch, THREE, batch_bytes_max=10_000)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((ID,), r"column 1 \('name'\) of the topic is not in the batch"),
        ((ID, NAME.with_name("n")), "column 1 is named 'n' in the batch and 'name' in the topic"),
        ((ID, NAME, LATE.with_type(pa.int16())), r"column 2 \('late'\) is int16 in the batch and int8 in the topic"),
        ((ID, NAME, LATEST), "column 2 is named 'latest' in the batch and 'late' in the topic"),
        (
            (ID, NAME, LATE, LATEST, NAME.with_name("x").with_nullable(False)),
            r"column 4 \('x'\) of the batch is not in",
        ),
        ((ID, NAME, LATE, LATEST, NAME), r"column 4 \('name'\) of the batch is not in the topic"),
        (
            (ID, NAME, LATE, NAME, NAME.with_name("x")),
            "column 3 is named 'name' in the batch and 'latest' in the topic",
        ),
    ],
)
def test_what_is_of_no_version_and_can_be_of_none_is_refused_for_good(
    fields: tuple[pa.Field, ...], message: str
) -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in fields], schema=pa.schema(fields))
    with pytest.raises(SchemaMismatch, match=message) as refused:
        in_a_version(batch, THREE)
    assert not refused.value.retriable


def test_what_may_be_of_a_version_that_is_not_known_here_may_be_tried_again() -> None:
    newer = WIDER.append(pa.field("latest", pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in newer.types], schema=newer)
    with pytest.raises(UnknownSchemaVersion, match=r"column 3 \('latest'\) of the batch is not in the topic: widen"):
        prepare(batch, WIDENED, batch_bytes_max=1_000)
    assert UnknownSchemaVersion.retriable
    assert in_a_version(batch, TopicSchema(newer, (2, 3))) is batch


def test_columns_that_a_batch_lacks_are_nulls_and_those_that_nobody_asked_for_go() -> None:
    batch = rows(0, 3)
    assert filled(batch, range(2), SCHEMA) is batch
    wider = filled(batch, range(3), WIDER)
    assert wider.schema == WIDER
    assert wider.column("late").null_count == 3
    assert wider.column("row").buffers()[1].address == batch.column("row").buffers()[1].address, "nothing is copied"
    assert filled(wider, [2, 0], pa.schema([WIDER.field(2), WIDER.field(0)])).to_pydict() == {
        "late": [None] * 3,
        "row": [0, 1, 2],
    }
    assert filled(wider, range(2), SCHEMA) == batch


def test_schemas_are_of_one_topic_if_one_goes_on_from_the_other() -> None:
    assert are_versions(SCHEMA, WIDER)
    assert are_versions(WIDER, SCHEMA)
    assert not are_versions(WIDER, pa.schema([SCHEMA.field(1), SCHEMA.field(0)]))


def torn_head(folder: Path) -> None:
    """As a loss of power may leave it: it still is a schema, of another column."""
    path = folder / f"{0:020}.arrow"
    data = path.read_bytes()
    assert data.count(b"text") == 1
    path.write_bytes(data.replace(b"text", b"te\0\0"))
    assert pa.ipc.open_stream(path.read_bytes()).schema != SCHEMA


def without_names_of_schemas(index: bytes) -> bytes:
    """As an older program has written it."""
    return b"".join(encode_entry(entry._replace(schema_crc=0)) for entry in decode_entries(index))


def test_a_segment_whose_head_is_torn_does_not_survive_recovery(open_log: Open) -> None:
    log = open_log(segment_bytes=1)
    log.begin_epoch(0)
    for first in (0, 2):
        log.append(prepared(first), leader_epoch=0, timestamp_ms=0)
    folder = Path(log.recovery.folder)
    log.close()
    (sound,) = verify([folder])
    assert sound.problems == []
    torn_head(folder)
    (damaged,) = verify([folder])
    (problem,) = damaged.problems
    assert "its schema does not have the CRC-32C that its entries name" in problem
    again = open_log()
    assert (again.log_end, again.recovery.entries_cut, again.recovery.lossless) == (0, 2, False)
    assert "its schema does not have the CRC-32C that entry 0 names" in again.recovery.why


def test_a_segment_of_a_program_that_named_no_schema_is_read_and_gone_on_with(open_log: Open) -> None:
    log = open_log()
    log.begin_epoch(0)
    log.append(prepared(0), leader_epoch=0, timestamp_ms=0)
    folder = Path(log.recovery.folder)
    log.close()
    index = folder / f"{0:020}.index"
    index.write_bytes(without_names_of_schemas(index.read_bytes()))
    again = open_log()
    again.append(prepared(2), leader_epoch=0, timestamp_ms=0)
    again.close()
    assert [entry.schema_crc for entry in decode_entries(index.read_bytes())] == [0, crc32c(TOPIC.head)]
    (verified,) = verify([folder])
    assert (read_rows(open_log()), verified.problems) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize("start", [0, 2])
def test_a_follower_takes_nothing_for_a_segment_with_another_head(open_log: Open, start: int) -> None:
    leader, follower = open_log(), open_log("follower")
    leader.begin_epoch(0)
    for first in (0, 2):
        leader.append(prepared(first), leader_epoch=0, timestamp_ms=0)
    for offset in (0, 2):
        records = read(leader, offset, bytes_max=1, end=4)
        assert records is not None
        on_the_wire = replace(records, schema=records.head)
        if offset == start:
            named = [entry._replace(schema_crc=crc32c(WIDENED.head)) for entry in decode_entries(records.entries)]
            with pytest.raises(CorruptLog, match=r"segment 0 in .* does not have its leader's schema"):
                follower.append_slice(replace(on_the_wire, entries=b"".join(map(encode_entry, named))))
            assert follower.log_end == start
        follower.append_slice(on_the_wire)
    assert read_rows(follower) == [0, 1, 2, 3]


def test_a_crash_between_the_roll_and_its_first_batch_leaves_the_log_as_it_was(open_log: Open) -> None:
    log = open_log()
    log.begin_epoch(0)
    log.append(prepared(0), leader_epoch=0, timestamp_ms=0)
    folder = Path(log.recovery.folder)
    log.close()
    (folder / f"{2:020}.index").write_bytes(b"")
    (folder / f"{2:020}.arrow").write_bytes(WIDENED.head)
    again = open_log()
    assert (again.recovery.lossless, read_rows(again)) == (True, [0, 1])
    assert not (folder / f"{2:020}.arrow").exists()
    again.append(prepared(2, topic=WIDENED), leader_epoch=0, timestamp_ms=0)
    assert [each.base for each in again.segments()] == [0, 2]
    assert pa.ipc.open_stream((folder / f"{2:020}.arrow").read_bytes()).schema == WIDER
