"""Conditions on _partition, _offset and _timestamp that decide what is asked for. Pure.

All rows of a stored batch have its _timestamp: by time, a batch is read or left out as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from spark_replication.client.reading.log_batch import OFFSET, TIMESTAMP
from spark_replication.messages.records import PARTITION
from spark_replication.model import Offset

Comparison = Literal["==", "in", ">", ">=", "<", "<="]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
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


EVERYTHING = Bounds()


def bounds(column: str, comparison: Comparison, value: Any) -> Bounds | None:
    """What a condition leaves to be read; None if it has to be looked at row by row."""
    match comparison:
        case "==":
            return _within(column, [value])
        case "in":
            return _within(column, value)
        case ">":
            return _from(column, value, past=1)
        case ">=":
            return _from(column, value, past=0)
        case "<":
            return _below(column, value, past=0)
        case "<=":
            return _below(column, value, past=1)


def _within(column: str, values: Iterable[Any]) -> Bounds | None:
    numbers = [_number(column, value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) or not known:
        return None
    if column == PARTITION:
        return Bounds(partitions=frozenset(known))
    if len(set(known)) > 1:  # Spark has to leave out the gaps between offsets, or times
        return None
    return both(_start(column, known[0]), _end(column, known[0] + 1))


def _from(column: str, value: Any, *, past: int) -> Bounds | None:
    number = _number(column, value)
    return None if number is None or column == PARTITION else _start(column, number + past)


def _below(column: str, value: Any, *, past: int) -> Bounds | None:
    number = _number(column, value)
    return None if number is None or column == PARTITION else _end(column, number + past)


def _number(column: str, value: Any) -> int | None:
    """The number of a partition, an offset, or a time in µs since 1970; None if the value is none of these."""
    if column == TIMESTAMP and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // _MICROSECOND
    if column in (PARTITION, OFFSET) and isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _start(column: str, number: int) -> Bounds:
    return Bounds(offset_start=max(0, number)) if column == OFFSET else Bounds(time_start_us=number)


def _end(column: str, number: int) -> Bounds:
    return Bounds(offset_end=max(0, number)) if column == OFFSET else Bounds(time_end_us=number)


def both(one: Bounds, other: Bounds) -> Bounds:
    partitions = one.partitions
    if other.partitions is not None:
        partitions = other.partitions if partitions is None else partitions & other.partitions
    return Bounds(
        partitions=partitions,
        offset_start=max(one.offset_start, other.offset_start),
        offset_end=min(_given(one.offset_end, other.offset_end), default=None),
        time_start_us=max(_given(one.time_start_us, other.time_start_us), default=None),
        time_end_us=min(_given(one.time_end_us, other.time_end_us), default=None),
    )


def _given(*numbers: int | None) -> Iterator[int]:
    return (number for number in numbers if number is not None)
