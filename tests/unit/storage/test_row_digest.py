"""The digest of rows: the same in any order and any slice, another for any other rows."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_replication.errors import InvalidRequest
from spark_replication.storage.row_digest import row_digest

COUNT = 500


def values(kind: pa.DataType) -> list[Any]:
    """COUNT values of a type, with nulls: all of them differ, but for the nulls."""

    def value(number: int) -> Any:  # noqa: PLR0911 (a table)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return [number, None, *range(number % 4)]
        if pa.types.is_fixed_size_list(kind):
            return [number, number + 1]
        if pa.types.is_map(kind):
            return [(f"k{number}", number), ("other", None)]
        if pa.types.is_struct(kind):
            return {"a": number, "b": {"c": str(number)}}
        if pa.types.is_decimal(kind):
            return decimal.Decimal(number)
        if pa.types.is_date(kind):
            return datetime.date(2000, 1, 1) + datetime.timedelta(days=number)
        if pa.types.is_fixed_size_binary(kind):
            return f"{number:09}".encode()
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return b"x" * (number % 7) + str(number).encode()
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return "ä" * (number % 7) + str(number)
        return float(number) if pa.types.is_floating(kind) else number

    return [None if number % 10 == 9 else value(number) for number in range(COUNT)]


KINDS = [
    pa.int16(),
    pa.int32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.timestamp("us", "UTC"),
    pa.date32(),
    pa.decimal128(20, 0),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.binary_view(),
    pa.binary(9),
    pa.list_(pa.int64()),
    pa.large_list(pa.int64()),
    pa.list_(pa.int32(), 2),
    pa.map_(pa.string(), pa.int64()),
    pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
]


def batch(*columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([*columns], names=[str(number) for number in range(len(columns))])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_have_one_digest_in_any_order_and_others_have_another(kind: pa.DataType) -> None:
    there = values(kind)
    whole = pa.array(there, kind)
    digest = row_digest(batch(whole))
    order = np.random.default_rng(7).permutation(COUNT)
    assert row_digest(batch(pa.array([there[each] for each in order], kind))) == digest
    around = pa.array([*there[:13], *there, *there[:5]], kind)
    assert row_digest(batch(around.slice(13, COUNT))) == digest, "what lies beside a slice is not of it"
    others = {
        row_digest(batch(pa.array([*there[:at], there[at + 1], *there[at + 1 :]], kind)))
        for at in range(0, COUNT - 1, 7)
    }
    assert digest not in others
    assert len(others) == len(range(0, COUNT - 1, 7))


def test_values_belong_to_their_rows_and_columns() -> None:
    one, other = pa.array([1, 2, 3]), pa.array([4, 5, 6])
    digest = row_digest(batch(one, other))
    assert row_digest(batch(pa.array([3, 1, 2]), pa.array([6, 4, 5]))) == digest
    assert row_digest(batch(one, pa.array([5, 4, 6]))) != digest
    assert row_digest(batch(other, one)) != digest


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.string(), ["ab", "c"], ["a", "bc"]),
        (pa.string(), ["", None], [None, None]),
        (pa.string(), ["ab"], ["ba"]),
        (pa.binary(), [b"\0"], [b""]),
        (pa.binary(), [b"\0\0"], [b"\0"]),
        (pa.list_(pa.int64()), [[1], [2]], [[1, 2], []]),
        (pa.list_(pa.int64()), [[], None], [None, None]),
        (pa.list_(pa.int64()), [[None]], [[]]),
        (pa.float64(), [0.0], [-0.0]),
        (pa.bool_(), [True, None], [False, None]),
        (pa.int64(), [0], [None]),
        (pa.struct([("a", pa.int64())]), [None], [{"a": None}]),
        (pa.int64(), [1, 1], [2, 2]),
    ],
)
def test_what_is_nearly_the_same_is_another(kind: pa.DataType, one: list[Any], other: list[Any]) -> None:
    assert row_digest(batch(pa.array(one, kind))) != row_digest(batch(pa.array(other, kind)))


def test_a_long_text_is_hashed_in_parts_like_a_short_one() -> None:
    long = "x" * (3 << 20)
    texts = pa.array(["a", long, "b", long + "y", "c"])
    assert row_digest(batch(texts)) == row_digest(batch(pa.array(["c", long + "y", "b", "a", long])))
    assert row_digest(batch(texts)) != row_digest(batch(pa.array(["a", long, "b", long + "z", "c"])))


def test_it_is_part_of_the_format() -> None:
    """Brokers have kept it beside batches: a later release finds the same."""
    columns = pa.array([1, None, 3]), pa.array(["a", "", None]), pa.array([[1], None, []], pa.list_(pa.int8()))
    assert row_digest(batch(*columns)) == 1608496989


def test_what_has_no_bytes_of_its_own_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    with pytest.raises(InvalidRequest, match="cannot be told apart"):
        row_digest(batch(union))
