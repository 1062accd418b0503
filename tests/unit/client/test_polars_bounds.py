"""What predicates of polars leave to be read, and what lazy frames ask for and give."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from spark_replication.client.reading import polars_bounds
from spark_replication.client.reading.bounds import EVERYTHING, Bounds
from spark_replication.client.reading.log_batch import METADATA
from spark_replication.client.reading.polars_bounds import predicate_bounds
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.test_topic_rows import Asked, filled, rows_of

__all__ = ["filled"]

PARTITION, OFFSET, TIMESTAMP, NUMBER = (pl.col(name) for name in ("_partition", "_offset", "_timestamp", "number"))
AT = datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
AT_US = 2_000_000

LEFT: dict[str, tuple[pl.Expr, Bounds]] = {
    "a partition": (PARTITION == 1, Bounds(partitions=frozenset({1}))),
    "partitions": (PARTITION.is_in([1, 2]), Bounds(partitions=frozenset({1, 2}))),
    "partitions of a column": (PARTITION.is_in(pl.Series([1, 2])), Bounds(partitions=frozenset({1, 2}))),
    "partitions as SQL has them": (
        PARTITION.cast(pl.Int64, wrap_numerical=True).is_in([1]),
        Bounds(partitions=frozenset({1})),
    ),
    "a partition as a larger number": (PARTITION.cast(pl.Int64) == 1, Bounds(partitions=frozenset({1}))),
    "an offset": (OFFSET == 5, Bounds(offset_start=5, offset_end=6)),
    "above": (OFFSET > 5, Bounds(offset_start=6)),
    "from": (OFFSET >= 5, Bounds(offset_start=5)),
    "below": (OFFSET < 5, Bounds(offset_end=5)),
    "up to": (OFFSET <= 5, Bounds(offset_end=6)),
    "below nothing": (OFFSET < -5, Bounds(offset_end=0)),
    "offsets": (OFFSET.is_in([9, 5, 7]), Bounds(offset_start=5, offset_end=10)),
    "a range": (OFFSET.is_between(3, 9), Bounds(offset_start=3, offset_end=10)),
    "a range without its end": (OFFSET.is_between(3, 9, closed="left"), Bounds(offset_start=3, offset_end=9)),
    "a range without its start": (OFFSET.is_between(3, 9, closed="right"), Bounds(offset_start=4, offset_end=10)),
    "a range without its ends": (OFFSET.is_between(3, 9, closed="none"), Bounds(offset_start=4, offset_end=9)),
    "a time": (TIMESTAMP >= AT, Bounds(time_start_us=AT_US)),
    "a time of another zone": (
        AT.astimezone(ZoneInfo("Europe/Berlin")) > TIMESTAMP,
        Bounds(time_end_us=AT_US),
    ),
    "all that hold": (
        (OFFSET > 5) & (NUMBER < 3) & (PARTITION == 1) & (OFFSET < 9) & NUMBER.is_null(),
        Bounds(partitions=frozenset({1}), offset_start=6, offset_end=9),
    ),
}
NOT_KNOWN: dict[str, pl.Expr] = {
    "a column of the topic's": NUMBER > 5,
    "either": (OFFSET > 5) | (PARTITION == 1),
    "another": OFFSET != 5,
    "the other way round": pl.lit(5) < OFFSET,
    "no offset": pl.lit(None) < OFFSET,
    "one that may be none": OFFSET.is_in([5, None]),
    "none of them": OFFSET.is_in([]),
    "part of an offset": OFFSET > 5.5,
    "two columns": OFFSET > NUMBER,
    "what is computed": OFFSET + 1 > 5,
    "what it is compared with is computed": pl.lit(4) + 1 < OFFSET,
    "a range of columns": OFFSET.is_between(NUMBER, NUMBER),
    "a day": AT.date() < TIMESTAMP,
    "a time without a zone": datetime(2026, 1, 1) < TIMESTAMP,
    "partitions above": PARTITION > 1,
    "not": ~(OFFSET > 5),
    "always": pl.lit(value=True),
    "a function": NUMBER.clip(OFFSET, 5) > 3,
    "a condition": pl.when(OFFSET > 5).then(1).otherwise(0) == 1,
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_known_becomes_bounds(name: str) -> None:
    predicate, left = LEFT[name]
    assert predicate_bounds(predicate, METADATA.names) == left


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_is_not_known_leaves_everything(name: str) -> None:
    assert predicate_bounds(NOT_KNOWN[name], METADATA.names) == EVERYTHING
    assert predicate_bounds(NOT_KNOWN[name] & (PARTITION == 1), METADATA.names) == Bounds(partitions=frozenset({1}))


def test_a_column_of_the_topics_own_is_not_what_bounds_are_about() -> None:
    assert predicate_bounds((OFFSET > 5) & (PARTITION == 1), ["_partition"]) == Bounds(partitions=frozenset({1}))


def test_every_way_to_compare_is_told_apart() -> None:
    made = [compare(OFFSET, pl.lit(5)) for compare in polars_bounds.COMPARISONS.values()]
    made += [OFFSET.is_between(3, 9, closed=closed) for closed in polars_bounds.RANGES]
    assert not any(one.meta.eq(other) for one, other in pairwise([*made, made[0]]))


PREDICATES: list[pl.Expr] = [
    PARTITION == 0,
    (PARTITION == 2) & (OFFSET >= 1),
    OFFSET.is_in([0, 4]),
    OFFSET.is_between(1, 3) & (NUMBER != 2),
    TIMESTAMP < AT,
    (TIMESTAMP >= AT) | (PARTITION == 2),
    (OFFSET > 100) & (NUMBER > 0),
    (NUMBER % 2 == 0) & (OFFSET < 5) & (TIMESTAMP <= AT),
]


@pytest.mark.parametrize("place", range(len(PREDICATES)))
@pytest.mark.parametrize("limit", [None, 1])
def test_a_lazy_frame_gives_what_the_whole_frame_gives(filled: FakeCluster, place: int, limit: int | None) -> None:
    lazy = rows_of(filled).lazy()
    expected = lazy.collect().filter(PREDICATES[place])
    found = lazy.filter(PREDICATES[place])
    if limit is not None:
        expected, found = expected.head(limit), found.head(limit)
    assert found.collect().equals(expected)


@pytest.mark.parametrize(
    ("given", "predicate", "reads"),
    [
        ({}, PARTITION == 2, [(2, 0, 3)]),
        ({}, (PARTITION == 0) & (OFFSET >= 4) & (NUMBER > 0), [(0, 4, 6)]),
        ({}, OFFSET < 2, [(0, 0, 2), (2, 0, 2)]),
        ({}, TIMESTAMP >= AT, [(0, 3, 6)]),
        ({"where": [("_offset", ">", 1)]}, OFFSET < 3, [(0, 2, 3), (2, 2, 3)]),
        ({"since": 2_000}, OFFSET > 4, [(0, 5, 6)]),
        ({}, OFFSET > 100, []),
        ({}, NUMBER > 100, [(0, 0, 6), (2, 0, 3)]),
    ],
)
def test_a_lazy_frame_asks_for_no_row_that_its_filter_leaves_out(
    filled: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    predicate: pl.Expr,
    reads: list[tuple[int, int, int]],
) -> None:
    asked = Asked(monkeypatch)
    rows_of(filled, **given).lazy().filter(predicate).select("number").collect()
    assert [each[:3] for each in asked.reads] == reads


def test_sql_of_polars_asks_for_no_more(filled: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    found = pl.SQLContext(orders=rows_of(filled).lazy()).execute(
        "SELECT number FROM orders WHERE _partition IN (0, 1) AND _offset BETWEEN 1 AND 2"
    )
    assert found.collect()["number"].to_list() == [1, 2]
    assert [each[:3] for each in asked.reads] == [(0, 1, 3)]
