"""Conditions on _partition, _offset and _timestamp that brokers and tasks apply, so that Spark need not. Pure.

All rows of a stored batch have its _timestamp: by time, a batch is read or left out as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from spark_replication.client.producing.placing import PARTITION
from spark_replication.model import Offset
from spark_replication.spark.datasource.types import OFFSET, TIMESTAMP

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What is read. Ends are exclusive. None means that nothing is left out on that side."""

    partitions: frozenset[int] | None = None
    offset_start: Offset = 0
    offset_end: Offset | None = None
    time_start_us: int | None = None
    time_end_us: int | None = None

    def has_partition(self, number: int) -> bool:
        return self.partitions is None or number in self.partitions

    def has_time(self, timestamp_ms: int) -> bool:
        time_us = timestamp_ms * 1_000
        above = self.time_start_us is None or time_us >= self.time_start_us
        return above and (self.time_end_us is None or time_us < self.time_end_us)

    @property
    def time_start_ms(self) -> int | None:
        """The time before which no batch is wanted; None if there is no such time."""
        return None if self.time_start_us is None else max(0, -(-self.time_start_us // 1_000))


EVERYTHING = Pushed()


def pushed(filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """The conditions that are applied here, as one, and those that are left to Spark."""
    found, left = EVERYTHING, []
    for each in filters:
        taken = _taken(each)
        if taken is None:
            left.append(each)
        else:
            found = _both(found, taken)
    return found, left


def _taken(condition: Filter) -> Pushed | None:
    match condition:
        case EqualTo((column,), value):
            return _within(column, [value])
        case In((column,), values):
            return _within(column, values)
        case GreaterThan((column,), value):
            return _from(column, value, past=1)
        case GreaterThanOrEqual((column,), value):
            return _from(column, value, past=0)
        case LessThan((column,), value):
            return _below(column, value, past=0)
        case LessThanOrEqual((column,), value):
            return _below(column, value, past=1)
    return None


def _within(column: str, values: Iterable[Any]) -> Pushed | None:
    numbers = [_number(column, value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) or not known:
        return None
    if column == PARTITION:
        return Pushed(partitions=frozenset(known))
    if len(set(known)) > 1:  # Spark has to leave out the gaps between offsets, or times
        return None
    return _both(_start(column, known[0]), _end(column, known[0] + 1))


def _from(column: str, value: Any, *, past: int) -> Pushed | None:
    number = _number(column, value)
    return None if number is None or column == PARTITION else _start(column, number + past)


def _below(column: str, value: Any, *, past: int) -> Pushed | None:
    number = _number(column, value)
    return None if number is None or column == PARTITION else _end(column, number + past)


def _number(column: str, value: Any) -> int | None:
    """The number of a partition, an offset, or a time in µs since 1970; None if the value is none of these."""
    if column == TIMESTAMP and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // _MICROSECOND
    if column in (PARTITION, OFFSET) and isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _start(column: str, number: int) -> Pushed:
    return Pushed(offset_start=max(0, number)) if column == OFFSET else Pushed(time_start_us=number)


def _end(column: str, number: int) -> Pushed:
    return Pushed(offset_end=max(0, number)) if column == OFFSET else Pushed(time_end_us=number)


def _both(one: Pushed, other: Pushed) -> Pushed:
    partitions = one.partitions
    if other.partitions is not None:
        partitions = other.partitions if partitions is None else partitions & other.partitions
    return Pushed(
        partitions=partitions,
        offset_start=max(one.offset_start, other.offset_start),
        offset_end=min(_given(one.offset_end, other.offset_end), default=None),
        time_start_us=max(_given(one.time_start_us, other.time_start_us), default=None),
        time_end_us=min(_given(one.time_end_us, other.time_end_us), default=None),
    )


def _given(*numbers: int | None) -> Iterator[int]:
    return (number for number in numbers if number is not None)
