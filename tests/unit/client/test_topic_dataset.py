"""A topic as a data set of pyarrow: what DuckDB asks for through it, and gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_replication.client.reading.bounds import EVERYTHING, Bounds
from spark_replication.client.reading.log_batch import METADATA
from spark_replication.client.reading.topic_dataset import filter_bounds
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.test_topic_rows import Asked, fill, filled, rows_of

__all__ = ["filled"]

SCHEMA = pa.schema([pa.field("number", pa.int64()), *METADATA])
PARTITION, OFFSET, TIMESTAMP, NUMBER = (pc.field(name) for name in ("_partition", "_offset", "_timestamp", "number"))
AT_US = 2_000_000


def at(time_us: int) -> pa.Scalar:
    return pa.scalar(time_us, METADATA.field("_timestamp").type)


LEFT: dict[str, tuple[pc.Expression, Bounds]] = {
    "a partition": (PARTITION == 1, Bounds(partitions=frozenset({1}))),
    "partitions": (PARTITION.isin([1, 2, 9]), Bounds(partitions=frozenset({1, 2}))),
    "partitions above": (PARTITION > 0, Bounds(partitions=frozenset({1, 2}))),
    "an offset": (OFFSET == 5, Bounds(offset_start=5, offset_end=6)),
    "above": (OFFSET > 5, Bounds(offset_start=6)),
    "below": (OFFSET < 5, Bounds(offset_end=5)),
    "up to": (OFFSET <= 5, Bounds(offset_end=6)),
    "either end": ((OFFSET == 3) | (OFFSET == 9), Bounds(offset_start=3, offset_end=10)),
    "times": ((at(7) <= TIMESTAMP) & (at(AT_US) > TIMESTAMP), Bounds(time_start_us=7, time_end_us=AT_US)),
    "beside others": (
        (OFFSET > 5) & (NUMBER > 3) & (PARTITION == 1),
        Bounds(partitions=frozenset({1}), offset_start=6),
    ),
}
NOTHING_KNOWN: dict[str, pc.Expression] = {
    "another column": NUMBER > 3,
    "either of two": (OFFSET > 5) | (NUMBER > 3),
    "another offset": OFFSET != 5,
    "what is computed": pc.add(OFFSET, 1) > 5,
}


@pytest.mark.parametrize("name", LEFT)
def test_where_a_filter_cannot_hold_is_left_out(name: str) -> None:
    rows, left = LEFT[name]
    looked_at = [column for column in METADATA.names if column in str(rows)]
    assert filter_bounds(rows, SCHEMA, looked_at, lambda: range(3)) == left


@pytest.mark.parametrize("name", NOTHING_KNOWN)
def test_what_arrow_cannot_tell_leaves_everything(name: str) -> None:
    assert filter_bounds(NOTHING_KNOWN[name], SCHEMA, ["_offset"], lambda: range(3)) == EVERYTHING


@pytest.mark.parametrize("rows", [OFFSET < 0, at(0) > TIMESTAMP, pc.scalar(value=False) & (OFFSET > 1)])
def test_what_holds_nowhere_leaves_nothing(rows: pc.Expression) -> None:
    found = filter_bounds(rows, SCHEMA, ["_offset", "_timestamp"], lambda: range(3))
    assert found.offset_end == 0 or found.time_end_us == 0


@pytest.fixture
def relation(filled: FakeCluster) -> Iterator[duckdb.DuckDBPyRelation]:
    with rows_of(filled) as rows:
        yield rows.to_duckdb()


@pytest.mark.parametrize(
    ("where", "numbers", "reads"),
    [
        ("_offset > 1 AND _partition = 0 AND number < 5", [2, 3, 4], [(0, 2, 6)]),
        ("_partition IN (1, 2)", [10, 11, 12], [(2, 0, 3)]),
        ("_timestamp >= '1970-01-01 00:00:02+00'", [3, 4, 5], [(0, 3, 6)]),
        ("_timestamp < '1960-01-01 00:00:00+00'", [], [(0, 0, 6), (2, 0, 3)]),
        ("_offset BETWEEN 1 AND 2", [1, 2, 11, 12], [(0, 1, 3), (2, 1, 3)]),
        ("_offset < 0", [], []),
        ("_offset < 1 OR number = 5", [0, 5, 10], [(0, 0, 6), (2, 0, 3)]),
        ("number > 4", [5, 10, 11, 12], [(0, 0, 6), (2, 0, 3)]),
    ],
)
def test_duckdb_asks_for_no_more_than_a_query_needs(
    filled: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    numbers: list[int],
    reads: list[tuple[int, int, int]],
) -> None:
    asked = Asked(monkeypatch)
    found = rows_of(filled).to_duckdb().filter(where).project("number").fetchall()
    assert sorted(number for (number,) in found) == numbers
    assert [each[:3] for each in asked.reads] == reads


def test_a_relation_reads_again_whenever_it_is_asked(filled: FakeCluster, relation: duckdb.DuckDBPyRelation) -> None:
    assert relation.columns == ["number", *METADATA.names]
    assert relation.count("*").fetchall() == [(9,)]
    fill(filled, 1, [20])
    assert relation.count("*").fetchall() == [(10,)]
    assert relation.sum("number").fetchall() == [(68,)]
    (first,) = relation.order("number DESC").limit(1).project("number, _partition, _offset, _timestamp").fetchall()
    assert first[:3] == (20, 1, 0)
    assert first[3] == datetime.fromtimestamp(0.007, UTC)


def test_columns_that_are_named_are_all_that_a_relation_has(filled: FakeCluster) -> None:
    found = rows_of(filled, columns=["_offset", "number"], where=[("_partition", "=", 2)]).to_duckdb()
    assert found.filter("_offset > 0").fetchall() == [(1, 11), (2, 12)]


def test_columns_are_read_whatever_their_names(filled: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    found = rows_of(filled).to_duckdb().filter("_topic = 'orders and (_offset > 5)'").project("_offset")
    assert found.fetchall() == []
    assert [each[:3] for each in asked.reads] == [(0, 0, 6), (2, 0, 3)], "a text is no condition"
