"""Which conditions brokers and tasks carry out, and which are left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not

from spark_replication.client.reading.bounds import Bounds
from spark_replication.spark.datasource.filters import pushed

PARTITION, OFFSET, TIMESTAMP = ("_partition",), ("_offset",), ("_timestamp",)
NOON = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=5_500)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([EqualTo(PARTITION, 3)], Bounds(partitions=frozenset({3}))),
        ([In(PARTITION, (1, 2)), In(PARTITION, (2, 3))], Bounds(partitions=frozenset({2}))),
        ([GreaterThan(OFFSET, 5), LessThan(OFFSET, 9)], Bounds(offset_start=6, offset_end=9)),
        ([GreaterThanOrEqual(OFFSET, 5), LessThanOrEqual(OFFSET, 9)], Bounds(offset_start=5, offset_end=10)),
        ([EqualTo(OFFSET, 5)], Bounds(offset_start=5, offset_end=6)),
        ([GreaterThan(OFFSET, 5), GreaterThan(OFFSET, 2), LessThan(OFFSET, -1)], Bounds(offset_start=6, offset_end=0)),
        ([GreaterThanOrEqual(TIMESTAMP, NOON)], Bounds(time_start_us=5_500)),
        ([GreaterThan(TIMESTAMP, NOON), LessThan(TIMESTAMP, NOON)], Bounds(time_start_us=5_501, time_end_us=5_500)),
        ([EqualTo(TIMESTAMP, NOON)], Bounds(time_start_us=5_500, time_end_us=5_501)),
    ],
)
def test_conditions_on_where_and_when_are_carried_out(conditions: list[Filter], expected: Bounds) -> None:
    assert pushed(conditions) == (expected, [])


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("id",), 3),
        EqualTo(("a", "_offset"), 3),
        Not(EqualTo(PARTITION, 3)),
        GreaterThan(PARTITION, 3),
        In(OFFSET, (1, 5)),
        In(PARTITION, ()),
        In(PARTITION, (1, None)),
        EqualTo(OFFSET, True),
        GreaterThan(TIMESTAMP, datetime(1970, 1, 1)),
        GreaterThan(TIMESTAMP, 5),
    ],
)
def test_all_others_are_left_to_spark(condition: Filter) -> None:
    assert pushed([condition, EqualTo(PARTITION, 1)]) == (Bounds(partitions=frozenset({1})), [condition])


def test_a_batch_has_one_time_and_is_left_out_as_a_whole() -> None:
    found, _ = pushed([GreaterThanOrEqual(TIMESTAMP, NOON), LessThan(TIMESTAMP, NOON + timedelta(milliseconds=2))])
    assert [time_ms for time_ms in range(10) if found.has_time(time_ms)] == [6, 7]
    assert found.time_start_ms == 6
    assert Bounds().time_start_ms is None
