"""What a table keeps of a file's columns, by which readers skip it: tables."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_replication.tables.statistics import COLUMNS_MAX, FloatingColumn, statistics, with_bounds

HIGHEST = "\U0010ffff"


def told(column: pa.Array, *, rows_of_group: int = 1_000) -> tuple[Any, Any, Any]:
    """The least and greatest value and the number of nulls of a column "c"; ... stands for none."""
    found = of_table(pa.table({"c": column}), rows_of_group=rows_of_group)
    assert found["numRecords"] == len(column)
    return found["minValues"].get("c", ...), found["maxValues"].get("c", ...), found["nullCount"].get("c", ...)


def of_table(table: pa.Table, *, rows_of_group: int = 1_000) -> dict[str, Any]:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=rows_of_group, write_statistics=with_bounds(table.schema))
    floating = {field.name: FloatingColumn() for field in table.schema if pa.types.is_floating(field.type)}
    for batch in table.to_batches(max_chunksize=rows_of_group):
        floating = {name: known.with_rows(batch.column(name)) for name, known in floating.items()}
    found: dict[str, Any] = json.loads(statistics(pq.read_metadata(file), table.schema, floating))
    return found


def at(microsecond: int, second: int = 7) -> datetime:
    return datetime(2026, 11, 28, 1, 2, second, microsecond, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "least", "greatest", "nulls"),
    [
        pytest.param(pa.array([3, None, -1]), -1, 3, 1, id="numbers"),
        pytest.param(pa.array([None, None], pa.int8()), ..., ..., 2, id="nulls alone"),
        pytest.param(pa.array([1.5, -0.25]), -0.25, 1.5, 0, id="floating"),
        pytest.param(pa.array([1.5, math.inf]), ..., ..., 0, id="JSON has no infinity"),
        pytest.param(pa.array([1.5, math.nan, None]), ..., ..., 1, id="Spark takes NaN for the greatest"),
        pytest.param(pa.array([None], pa.float32()), ..., ..., 1, id="floating, all null"),
        pytest.param(pa.array(["b", "a", None]), "a", "b", 1, id="texts"),
        pytest.param(pa.array(["a" * 40, "b" * 40]), "a" * 32, "b" * 32 + HIGHEST, 0, id="long texts"),
        pytest.param(pa.array(["a", "b" * 32 + HIGHEST]), ..., ..., 0, id="no short text is above"),
        pytest.param(pa.array(["a", "b" * 5_000]), ..., ..., 0, id="Parquet has no bounds so long"),
        pytest.param(pa.array([b"a"]), ..., ..., 0, id="binary"),
        pytest.param(pa.array([True]), ..., ..., 0, id="booleans"),
        pytest.param(pa.array([date(1969, 12, 31), date(2026, 1, 2)]), "1969-12-31", "2026-01-02", 0, id="days"),
        pytest.param(pa.array([(1 << 31) - 1], pa.int32()).view(pa.date32()), ..., ..., 0, id="days nobody shows"),
        pytest.param(
            pa.array([at(1), at(999_001)], pa.timestamp("us", "UTC")),
            "2026-11-28T01:02:07.000Z",
            "2026-11-28T01:02:08.000Z",
            0,
            id="times outwards",
        ),
        pytest.param(
            pa.array([-1], pa.timestamp("us")),
            "1969-12-31T23:59:59.999",
            "1970-01-01T00:00:00.000",
            0,
            id="before 1970",
        ),
        pytest.param(pa.array([(1 << 63) - 1], pa.timestamp("us")), ..., ..., 0, id="times nobody shows"),
        pytest.param(pa.array([Decimal("1.10"), Decimal("-2")], pa.decimal128(9, 2)), -2.0, 1.1, 0, id="decimals"),
        pytest.param(pa.array([[1], None]), ..., ..., ..., id="lists"),
        pytest.param(pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), ..., ..., ..., id="maps"),
        pytest.param(pa.array([{"x": 2, "y": [1]}, {"x": 1, "y": [9]}]), {"x": 1}, {"x": 2}, {"x": 0}, id="structs"),
        pytest.param(pa.array([{"x": 0.5, "y": 1}]), {"y": 1}, {"y": 1}, {"y": 0}, id="floating within structs"),
    ],
)
def test_what_is_told_of_a_column(column: pa.Array, least: Any, greatest: Any, nulls: Any) -> None:
    assert told(column) == (least, greatest, nulls)
    assert told(column, rows_of_group=1)[2] == nulls


def test_a_decimal_has_all_of_its_digits() -> None:
    number = Decimal((1 << 64) - 1)
    file = io.BytesIO()
    table = pa.table({"c": pa.array([number], pa.decimal128(20, 0))})
    pq.write_table(table, file)
    assert f'"maxValues":{{"c":{number}}}' in statistics(pq.read_metadata(file), table.schema, {})


def test_bounds_are_of_all_groups_of_rows() -> None:
    assert told(pa.array([5, 3, None, 9]), rows_of_group=1) == (3, 9, 1)
    assert told(pa.array(["a", "b" * 5_000, "c"]), rows_of_group=1) == (..., ..., 0), "one group says nothing"


def test_files_have_no_bounds_of_what_may_be_nan() -> None:
    floating = {"c": pa.array([0.5]), "s": pa.array([{"x": 0.5, "y": 1}])}
    table = pa.table({**floating, "l": [[1]], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), "n": [1]})
    file = io.BytesIO()
    pq.write_table(table, file, write_statistics=with_bounds(table.schema))
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    assert [column.path_in_schema for column in columns if column.is_stats_set] == ["s.y", "n"]


def test_both_zeros_are_within_the_bounds_of_one() -> None:
    for zero in (-0.0, 0.0):
        bounds = FloatingColumn().with_rows(pa.array([zero])).bounds
        assert bounds is not None
        assert [math.copysign(1, each) for each in bounds] == [-1, 1]


def test_of_many_columns_the_first_are_told_and_ours() -> None:
    names = [f"c{number}" for number in range(COLUMNS_MAX + 2)]
    found = of_table(pa.table({name: [1] for name in [*names, "_offset"]}))
    assert list(found["minValues"]) == [*names[:COLUMNS_MAX], "_offset"]


def test_columns_behind_lists_are_found_where_they_are() -> None:
    table = pa.table(
        {
            "s": [{"a": [1], "b": {"c": 2}}],
            "m": pa.array([[("k", 7)]], pa.map_(pa.string(), pa.int64())),
            "last": [3],
        }
    )
    assert of_table(table)["minValues"] == {"s": {"b": {"c": 2}}, "last": 3}
