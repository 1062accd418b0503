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

from spark_replication.tables.statistics import COLUMNS_MAX, statistics

HIGHEST = "\U0010ffff"


def told(column: pa.Array, *, rows_of_group: int = 1_000, with_nan: bool = False) -> tuple[Any, Any, Any]:
    """The least and greatest value and the number of nulls of a column "c"; ... stands for none."""
    found = of_table(pa.table({"c": column}), rows_of_group=rows_of_group, with_nan={"c"} if with_nan else set())
    assert found["numRecords"] == len(column)
    return found["minValues"].get("c", ...), found["maxValues"].get("c", ...), found["nullCount"].get("c", ...)


def of_table(table: pa.Table, *, rows_of_group: int = 1_000, with_nan: set[str] | None = None) -> dict[str, Any]:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=rows_of_group)
    found: dict[str, Any] = json.loads(statistics(pq.read_metadata(file), table.schema, with_nan or set()))
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
        pytest.param(pa.array([{"x": 0.5}]), ..., ..., {"x": 0}, id="floating within structs"),
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
    assert f'"maxValues":{{"c":{number}}}' in statistics(pq.read_metadata(file), table.schema)


def test_bounds_are_of_all_groups_of_rows() -> None:
    assert told(pa.array([5, 3, None, 9]), rows_of_group=1) == (3, 9, 1)
    assert told(pa.array(["a", "b" * 5_000, "c"]), rows_of_group=1) == (..., ..., 0), "one group says nothing"


def test_nan_is_above_all_for_spark_so_there_are_no_bounds() -> None:
    column = pa.array([1.0, math.nan])
    assert told(column) == (1, 1, 0), "Parquet does not say"
    assert told(column, with_nan=True) == (..., ..., 0)


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
