"""The digest of rows: the same in any order, and another for any other rows."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.storage.format import row_digest as of_rows
from spark_replication.storage.format.index import DIGEST, DIGEST_BITS
from spark_replication.storage.format.row_digest import row_digest

LONG = "longer than a word of eight bytes"
#: Of each kind of column, values of which none equals another.
KINDS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False, None],
    pa.int8(): [0, 1, -1, None],
    pa.int64(): [0, 1, -1, 1 << 62, None],
    pa.float64(): [0.0, -0.0, 1.0, None],
    pa.decimal128(20, 2): [Decimal("0.01"), Decimal("0.02"), Decimal("-0.01"), None],
    pa.timestamp("us", "UTC"): [0, 1, None],
    pa.string(): ["", "a", "b", "a\0", "ab", "ba", "abcdefgh", "abcdefgh\0", LONG, f"{LONG}.", f".{LONG}", None],
    pa.large_string(): ["", "a", LONG, None],
    pa.string_view(): ["", "a", LONG, None],
    pa.binary(): [b"", b"\0", b"\0\0", b"\1", None],
    pa.binary(3): [b"abc", b"abd", b"\0\0\0", None],
    pa.list_(pa.int8()): [[], [0], [None], [0, 0], [1, 0], [0, 1], None],
    pa.list_(pa.list_(pa.string())): [[], [[]], [["a"], ["b"]], [["a", "b"]], [[], ["a", "b"]], [None], None],
    pa.list_(pa.int8(), 2): [[1, 2], [2, 1], [None, 1], [1, None], None],
    pa.struct([("x", pa.int8()), ("y", pa.int8())]): [
        {"x": 1, "y": 2},
        {"x": 2, "y": 1},
        {"x": None, "y": 1},
        {"x": 1, "y": None},
        {"x": None, "y": None},
        None,
    ],
    pa.map_(pa.string(), pa.int8()): [
        [],
        [("a", 1)],
        [("a", 2)],
        [("b", 1)],
        [("a", 1), ("b", 1)],
        [("a", None)],
        None,
    ],
}
OF_ALL = pa.schema([pa.field(f"column {place}", kind) for place, kind in enumerate(KINDS)])


def of_one(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind)], names=["it"])


def of_all(rows: int, seed: int = 1) -> pa.RecordBatch:
    drawn = random.Random(seed)
    return pa.record_batch(
        [pa.array([drawn.choice(values) for _ in range(rows)], kind) for kind, values in KINDS.items()], schema=OF_ALL
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_of_other_values_have_another_digest(kind: pa.DataType) -> None:
    digests = {row_digest(of_one(kind, [value, KINDS[kind][0]])) for value in KINDS[kind]}
    assert len(digests) == len(KINDS[kind])


def test_the_same_rows_have_one_digest_in_whatever_order_and_wherever_they_lie() -> None:
    batch = of_all(500)
    order = list(range(500))
    random.Random(2).shuffle(order)
    columns = [pa.array([column[place].as_py() for place in order], column.type) for column in batch.columns]
    shuffled = pa.record_batch(columns, schema=OF_ALL)
    within = pa.concat_batches([of_all(3, seed=3), batch, of_all(3, seed=4)]).slice(3, 500)
    read = pa.ipc.read_record_batch(batch.serialize(), OF_ALL)
    assert [row_digest(each) for each in (shuffled, within, read)] == [row_digest(batch)] * 3


def test_a_batch_of_several_pieces_has_the_digest_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = of_all(500)
    whole = row_digest(batch)
    monkeypatch.setattr(of_rows, "PIECE_BYTES", 1_000)
    assert row_digest(batch) == whole


def test_what_lies_beneath_a_null_counts_for_nothing() -> None:
    valid = pa.py_buffer(b"\x05")
    one, other = (pa.Array.from_buffers(pa.int8(), 3, [valid, pa.py_buffer(data)]) for data in (b"\1\2\3", b"\1\7\3"))
    assert row_digest(pa.record_batch([one], ["it"])) == row_digest(pa.record_batch([other], ["it"]))


def test_a_row_that_is_there_twice_counts_twice_and_a_value_counts_in_its_column() -> None:
    assert row_digest(of_one(pa.int8(), [1, 1])) != row_digest(of_one(pa.int8(), [2, 2]))
    assert row_digest(of_one(pa.int8(), [1, 1])) != row_digest(of_one(pa.int8(), [1]))
    one, two = pa.array([1, 2]), pa.array([2, 1])
    digests = {
        row_digest(pa.record_batch(columns, names=["x", "y"])) for columns in ([one, one], [one, two], [two, two])
    }
    assert len(digests) == 2, "the rows (1, 1), (2, 2) twice, and (1, 2), (2, 1)"


def test_a_column_of_nulls_that_the_topic_has_got_since_changes_nothing() -> None:
    batch = of_one(pa.int8(), [1, 2])
    wider = batch.append_column("new", pa.nulls(2, pa.string()))
    assert row_digest(wider) == row_digest(batch)


def test_rows_that_cannot_be_hashed_one_by_one_have_a_digest_of_their_order() -> None:
    kind = pa.list_view(pa.int8())
    assert row_digest(of_one(kind, [[1], [2]])) == row_digest(of_one(kind, [[1], [2]]))
    assert row_digest(of_one(kind, [[1], [2]])) != row_digest(of_one(kind, [[1], [3]]))


def test_a_digest_is_the_same_in_each_release() -> None:
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int64()), "text": pa.array(["a", LONG])})
    assert row_digest(batch) == 1584541102
    assert DIGEST <= row_digest(batch) < DIGEST << 1 == 1 << (DIGEST_BITS + 1)
