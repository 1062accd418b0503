"""What a browser shows of a value of each kind: one short line of text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_replication.page.shown_values import BINARY_BYTES_MAX, CELL_CHARACTERS_MAX, shown_value

PAIR = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])
ZEROS = " ".join(["00"] * BINARY_BYTES_MAX)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (pa.int8(), None, None),
        (pa.null(), None, None),
        (pa.int64(), 1 << 62, "4611686018427387904"),
        (pa.bool_(), True, "true"),
        (pa.float64(), 1.5, "1.5"),
        (pa.float32(), float("nan"), "nan"),
        (pa.timestamp("ns", "UTC"), 1, "1970-01-01 00:00:00.000000001Z"),
        (pa.timestamp("s"), 1 << 60, f"<value out of range: {1 << 60}>"),
        (pa.timestamp("us", "Nowhere/Land"), 5, "(timestamp[us, tz=Nowhere/Land])"),
        (pa.month_day_nano_interval(), (1, 2, 3), "MonthDayNano(months=1, days=2, nanoseconds=3)"),
        (pa.string(), "", ""),
        (pa.string(), "<b>é</b>", "<b>é</b>"),
        (pa.string(), "a\nb\0\u202e", r"a\nb\x00\u202e"),
        (pa.string(), "x" * CELL_CHARACTERS_MAX, "x" * CELL_CHARACTERS_MAX),
        (pa.large_string(), "x" * 1_000, f"{'x' * CELL_CHARACTERS_MAX}… (1,000 bytes)"),
        (pa.string_view(), "é" * 1_000, f"{'é' * CELL_CHARACTERS_MAX}… (2,000 bytes)"),
        (pa.binary(), b"\0ab", "00 61 62"),
        (pa.binary(2), b"ab", "61 62"),
        (pa.binary_view(), bytes(1 << 20), f"{ZEROS} … (1,048,576 bytes)"),
        (pa.list_(pa.int8()), [1, None, 3], "[1, null, 3]"),
        (pa.list_view(pa.binary()), [b"a"], "[61]"),
        (pa.list_(pa.int8(), 2), [1, 2], "[1, 2]"),
        (pa.large_list(pa.string()), ['x"', "\n"], '["x\\"", "\\n"]'),
        (pa.map_(pa.string(), pa.int8()), [("k", 1), ("l", None)], '{"k": 1, "l": null}'),
        (PAIR, {"a": 1, "b": ["x", None]}, '{"a": 1, "b": ["x", null]}'),
    ],
)
def test_a_value_is_shown_as_text(kind: pa.DataType, value: Any, shown: str | None) -> None:
    assert shown_value(pa.array([value], kind)[0]) == shown


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (pa.array(["q"]).dictionary_encode(), '"q"'),
        (pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([7])), "7"),
        (pa.UnionArray.from_sparse(pa.array([1], pa.int8()), [pa.array([1]), pa.array(["x"])]), '"x"'),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])), '"{}"'),
        (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), '{"a": 1, "a": 2}'),
    ],
)
def test_what_stands_for_another_value_is_shown_as_that(array: pa.Array, shown: str) -> None:
    assert shown_value(array[0]) == shown


def test_a_million_values_within_one_are_not_looked_at() -> None:
    """As Python's numbers they would take gigabytes."""
    rows = pa.ListArray.from_arrays(pa.array([0, 1 << 27], pa.int32()), pa.nulls(1 << 27))
    shown = shown_value(rows[0])
    assert shown is not None
    assert (shown[:12], shown[-1], len(shown)) == ("[null, null,", "…", CELL_CHARACTERS_MAX + 1)
