"""What of a batch is given, wherever it comes from: its columns, and the rows that are within all that was asked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_replication.client.reading.bounds import Bounds
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.selection import RowsAsked, Selection, selection
from spark_replication.errors import InvalidRequest

OWN = pa.schema([("id", pa.int64()), ("item", pa.string())])


def selected(**asked: Any) -> Selection:
    return selection("orders", OWN, RowsAsked(**asked))


def batch_of(found: Selection) -> LogBatch:
    """Four rows at the offsets 10 to 13 of partition 1, as of 2 s."""
    rows = pa.record_batch({"id": [1, 2, 3, 4], "item": ["tea", "salt", None, "tea"]}, schema=OWN)
    return LogBatch(
        topic="orders",
        partition=1,
        batch=rows.select(found.read),
        base_offset=10,
        last_offset=13,
        leader_epoch=0,
        timestamp=2_000,
        high_watermark=14,
    )


def ids(**asked: Any) -> list[int]:
    found = selected(columns=("id",), **asked)
    numbers: list[int] = found.rows(batch_of(found)).column("id").to_pylist()
    return numbers


@pytest.mark.parametrize(
    ("within", "given"),
    [
        (Bounds(), [1, 2, 3, 4]),
        (Bounds(offset_start=12), [3, 4]),
        (Bounds(offset_end=12), [1, 2]),
        (Bounds(offset_start=11, offset_end=13), [2, 3]),
        (Bounds(offset_end=10), []),
        (Bounds(offset_start=14), []),
        (Bounds(offset_start=13, offset_end=11), []),
        (Bounds(partitions=frozenset({1}), time_start_us=2_000_000), [1, 2, 3, 4]),
        (Bounds(partitions=frozenset({0})), []),
        (Bounds(time_end_us=2_000_000), []),
    ],
)
def test_rows_beyond_the_bounds_are_not_given(within: Bounds, given: list[int]) -> None:
    assert ids(within=within) == given


def test_conditions_hold_beside_the_bounds() -> None:
    assert ids(within=Bounds(offset_start=11), where=(("item", "=", "tea"),)) == [4]
    assert ids(within=Bounds(offset_start=11), where=(("_offset", "<", 12), ("_partition", "=", 1))) == [2]
    assert ids(where=(("item", "not in", ["tea"]), ("_partition", ">", 0))) == [2, 3]


def test_what_is_looked_at_is_read_and_only_what_was_asked_for_is_given() -> None:
    found = selected(columns=("_partition", "_offset", "id"), where=(("item", "!=", "salt"),))
    assert (found.read, found.told) == (("id", "item"), frozenset({"_partition", "_offset"}))
    assert found.rows(batch_of(found)).to_pylist() == [
        {"_partition": 1, "_offset": 10, "id": 1},
        {"_partition": 1, "_offset": 13, "id": 4},
    ]
    assert selected(columns=("_offset",)).read == ("id",), "one column says how many rows there are"


@pytest.mark.parametrize("comparison", ["=", "<", "in"])
def test_a_type_that_is_not_compared_is_refused_before_anything_is_read(comparison: str) -> None:
    value = [0.5] if comparison == "in" else 0.5
    with pytest.raises(InvalidRequest, match=r"half is halffloat, and .* has no kernel"):
        selection("orders", pa.schema([("half", pa.float16())]), RowsAsked(where=(("half", comparison, value),)))
