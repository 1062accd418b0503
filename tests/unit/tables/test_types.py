"""What becomes of a topic's columns in its table: tables (TB8)."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema

from spark_replication.errors import InvalidSchema
from spark_replication.tables.types import OURS, fitted, table_schema

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
DICTIONARY = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("found", "wanted", "values"),
    [
        (pa.bool_(), pa.bool_(), [True, None]),
        (pa.int8(), pa.int8(), [-128, 127]),
        (pa.uint8(), pa.int16(), [0, 255, None]),
        (pa.uint16(), pa.int32(), [0, (1 << 16) - 1]),
        (pa.uint32(), pa.int64(), [0, (1 << 32) - 1]),
        (pa.uint64(), pa.decimal128(20, 0), [Decimal(0), Decimal((1 << 64) - 1), None]),
        (pa.float32(), pa.float32(), [0.5]),
        (pa.large_string(), pa.string(), ["a", None]),
        (pa.string_view(), pa.string(), ["a", "too long to be within a view of it"]),
        (pa.large_binary(), pa.binary(), [b"a"]),
        (pa.binary_view(), pa.binary(), [b"a"]),
        (pa.binary(2), pa.binary(), [b"ab", None]),
        (pa.date32(), pa.date32(), [date(2026, 11, 28)]),
        (pa.date64(), pa.date32(), [date(1969, 11, 28), None]),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), [NOON]),
        (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "UTC"), [NOON, None]),
        (pa.timestamp("ms"), pa.timestamp("us"), [NOON.replace(tzinfo=None)]),
        (pa.decimal32(5, 2), pa.decimal128(5, 2), [Decimal("1.50")]),
        (pa.decimal256(38, 38), pa.decimal128(38, 38), [Decimal("0." + "1" * 38)]),
        (pa.list_(pa.uint8()), pa.list_(pa.int16()), [[1, None], None, [3]]),
        (pa.large_list(pa.string_view()), pa.list_(pa.string()), [["a"]]),
        (pa.large_list(pa.list_(pa.uint8(), 2)), pa.list_(pa.list_(pa.int16())), [[[1, 2]], None, [[3, 4], None]]),
        (pa.struct([("x", pa.uint8())]), pa.struct([("x", pa.int16())]), [{"x": 255}, None]),
        (pa.map_(pa.string_view(), pa.uint8()), pa.map_(pa.string(), pa.int16()), [[("k", 1)], []]),
    ],
    ids=str,
)
def test_what_is_cast(found: pa.DataType, wanted: pa.DataType, values: list[Any]) -> None:
    schema = table_schema(pa.schema([pa.field("c", found, nullable=False, metadata={"delta.invariants": "x"})]))
    assert schema.equals(pa.schema([pa.field("c", wanted), *OURS]), check_metadata=True)
    assert pa.schema(Schema.from_arrow(schema)).field("c").type == wanted, "a table has just that type"
    (column,) = fitted(pa.record_batch([pa.array(values, found)], pa.schema([("c", found)])), schema)
    assert column.type == wanted
    assert column.to_pylist() == values
    column.validate(full=True)
    (rest,) = fitted(pa.record_batch([pa.array([*values, *values], found)[1:]], pa.schema([("c", found)])), schema)
    assert rest.to_pylist() == [*values, *values][1:], "a batch may begin within its buffers"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            pa.time32("s"),
            r"column 'c' is time32\[s\], which a Delta table cannot hold: cast it to timestamp\('us'\) or",
        ),
        (pa.time64("us"), "int64"),
        (pa.duration("ms"), "cast it to int64"),
        (pa.float16(), "cast it to float32"),
        (pa.month_day_nano_interval(), "cast it to int64 or string"),
        (pa.null(), "the type that it is to have"),
        (pa.timestamp("ns"), r"cast it to timestamp\('us'\)"),
        (pa.decimal256(39, 0), "38 digits at most"),
        (pa.decimal128(5, -2), "none of them left out"),
        (pa.decimal128(5, 6), "none of them left out"),
        (pa.list_(DICTIONARY), r"column 'c\.element' is dictionary.* its value type"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "its value type"),
        (pa.sparse_union([pa.field("a", pa.int8())]), "a struct of its cases"),
        (pa.struct([("x", pa.list_(pa.float16()))]), r"column 'c\.x\.element' is halffloat"),
        (pa.map_(pa.string(), pa.duration("s")), r"column 'c\.value' is duration"),
        (pa.map_(pa.time32("s"), pa.string()), r"column 'c\.key' is time32"),
        (pa.list_(pa.timestamp("ms")), r"column 'c\.element' is timestamp\[ms\].*timestamp\('us'\)"),
        (pa.list_(pa.date64()), r"column 'c\.element' is date64.*date32"),
        (pa.struct([("x", pa.int8()), ("X", pa.int8())]), "column 'c' has two columns .* 'X' in whatever case"),
        (pa.list_view(pa.int8()), "cast it to a list"),
        (pa.large_list_view(pa.int8()), "cast it to a list"),
        (pa.uuid(), "cast it to another type"),
    ],
    ids=str,
)
def test_what_is_refused_with_the_cast_that_a_person_can_make(found: pa.DataType, told: str) -> None:
    with pytest.raises(InvalidSchema, match=told):
        table_schema(pa.schema([("c", found)]))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a", "_offset"], "column '_offset' has the name of one that each table has"),
        (["_Partition"], "'_Partition' has the name"),
        (["_timestamp"], "'_timestamp'"),
        (["_leader_epoch"], "'_leader_epoch'"),
        (["_day"], "'_day'"),
        (["a", "b", "A"], "the topic has two columns .* 'A'"),
        (["a", "a"], "the topic has two columns .* 'a'"),
        ([""], "the topic has a column without a name"),
    ],
)
def test_names_that_a_table_cannot_have(names: list[str], told: str) -> None:
    with pytest.raises(InvalidSchema, match=told):
        table_schema(pa.schema([(name, pa.int8()) for name in names]))


def test_other_names_are_kept() -> None:
    odd = "odd, {name}=1.5\t;(x)"
    assert table_schema(pa.schema([(odd, pa.uint8())])).field(0).equals(pa.field(odd, pa.int16()))


def test_a_table_by_day_has_the_day() -> None:
    topic = pa.schema([("a", pa.int8()), ("b", pa.uint8())])
    assert table_schema(topic, ["b"]).names == ["a", "b", *OURS.names]
    assert table_schema(topic, ["a", "_day"]).names == ["a", "b", *OURS.names, "_day"]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("c", "no column 'c' to partition the table by: there are a, b"),
        ("a", "no table is partitioned by double, as column 'a' is"),
        ("_timestamp", "no table is partitioned by timestamp"),
    ],
)
def test_by_what_no_table_is_partitioned(column: str, told: str) -> None:
    with pytest.raises(InvalidSchema, match=told):
        table_schema(pa.schema([("a", pa.float64()), ("b", pa.uint8())]), [column])


def test_a_batch_of_an_earlier_schema_has_nulls() -> None:
    schema = table_schema(pa.schema([("a", pa.int8()), ("b", pa.uint8())]), ["_day"])
    columns = fitted(pa.record_batch({"a": pa.array([1, 2], pa.int8())}), schema)
    assert [column.to_pylist() for column in columns] == [[1, 2], [None, None]]
    assert columns[1].type == pa.int16()


@pytest.mark.parametrize(
    ("found", "numbers", "kept"),
    [
        (pa.timestamp("ms"), [1 << 62, None, 5], [9_223_372_036_854_775_000, None, 5_000]),
        (pa.timestamp("ms"), [-(1 << 62)], [-9_223_372_036_854_775_000]),
        (pa.timestamp("s"), [1 << 62, 1], [9_223_372_036_854_000_000, 1_000_000]),
        (pa.timestamp("s"), [None], [None]),
        (pa.date64(), [(1 << 62) // 86_400_000 * 86_400_000, None, -86_400_000], [(1 << 31) - 1, None, -1]),
    ],
)
def test_a_time_that_delta_cannot_hold_is_the_nearest_that_it_can(
    found: pa.DataType, numbers: list[int | None], kept: list[int | None]
) -> None:
    batch = pa.record_batch([pa.array(numbers, pa.int64()).view(found)], pa.schema([("c", found)]))
    (column,) = fitted(batch, table_schema(batch.schema))
    assert column.view(pa.int32() if column.type == pa.date32() else pa.int64()).to_pylist() == kept
