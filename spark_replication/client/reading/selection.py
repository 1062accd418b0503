"""Which columns and rows of a topic are wanted: what is read of it for that, and what of each batch is given. Pure.

Whoever reads what is committed and whoever follows a topic select in the same way. Bounds say what need not be asked
for; a batch that came all the same is held against all that was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark_replication.client.reading.bounds import EVERYTHING, Bounds, Comparison, both, bounds
from spark_replication.client.reading.log_batch import METADATA, LogBatch, metadata_of
from spark_replication.errors import InvalidRequest

#: A column of the topic, or of METADATA; how it compares; with what.
Condition = tuple[str, str, Any]
SHOWN = tuple(METADATA.names)
#: Bounds tell how each of these is asked for.
BOUNDING: Mapping[str, Comparison] = {"=": "==", "==": "==", "in": "in", ">": ">", ">=": ">=", "<": "<", "<=": "<="}

COMPARED = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "in": None,
    "not in": None,
}


class RowsAsked(msgspec.Struct, frozen=True, kw_only=True):
    #: None: the topic's own.
    columns: tuple[str, ...] | None = None
    within: Bounds = EVERYTHING
    where: tuple[Condition, ...] = ()


class Selection(NamedTuple):
    #: What is given.
    schema: pa.Schema
    #: Columns of the topic that are read: those that are given, and those that conditions look at.
    read: tuple[str, ...]
    #: Columns of METADATA that are given, or that conditions look at.
    told: frozenset[str]
    bounds: Bounds
    #: What is left to be looked at row by row.
    filter: pc.Expression | None
    #: Whether what is read is what is given, column by column.
    is_as_read: bool

    def rows(self, found: LogBatch) -> pa.RecordBatch:
        """What of this batch is given: often all of its rows, or none. Each step costs as much as a small batch, so
        those that change nothing are left out."""
        batch, names = found.batch, self.read
        if self.told:
            told = metadata_of(found, self.told)
            names = (*names, *told)
            batch = pa.RecordBatch.from_arrays([*batch.columns, *told.values()], names=names)
        if self.bounds != EVERYTHING:
            batch = batch.slice(*self._within(found))
        if self.filter is not None:
            batch = batch.filter(self.filter)
        if not self.is_as_read:
            columns = [batch.column(names.index(name)) for name in self.schema.names]
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return batch

    def _within(self, found: LogBatch) -> tuple[int, int]:
        """Which rows lie within the bounds: the first of them, and how many."""
        if not (self.bounds.has_partition(found.partition) and self.bounds.has_time(found.timestamp)):
            return 0, 0
        count = found.batch.num_rows
        end = count if self.bounds.offset_end is None else min(count, self.bounds.offset_end - found.base_offset)
        first = max(0, self.bounds.offset_start - found.base_offset)
        return first, max(0, end - first)


def selection(topic: str, own: pa.Schema, asked: RowsAsked) -> Selection:
    """Raises InvalidRequest if the topic has no such column, or a condition compares one with what it never is."""
    schema = schema_of(topic, own, asked)
    where = ((field_of(topic, own, column), *rest) for column, *rest in asked.where)
    within, left = parted(own, where, asked.within)
    looked_at = {column for column, *_ in asked.where} | set(schema.names)
    read = [name for name in own.names if name in looked_at]
    read = read or own.names[:1]  # else nobody says how many rows there are
    told = frozenset(looked_at.difference(own.names))
    return Selection(
        schema=schema,
        read=tuple(read),
        told=told,
        bounds=within,
        filter=left,
        is_as_read=read == schema.names and not told,
    )


def parted(
    own: pa.Schema, where: Iterable[tuple[pa.Field, str, Any]], within: Bounds
) -> tuple[Bounds, pc.Expression | None]:
    """Part conditions into bounds, narrower than `within`, and what is left to be looked at row by row. own: the
    topic's columns, any of which may have the name of one of METADATA."""
    left = []
    for field, comparison, value in where:
        taken = None
        if field.name not in own.names and comparison in BOUNDING:
            taken = bounds(field.name, BOUNDING[comparison], value)
        if taken is None:
            left.append(row_expression(field, comparison, value))
        else:
            within = both(within, taken)
    return within, reduce(lambda one, other: one & other, left) if left else None


def schema_of(topic: str, own: pa.Schema, asked: RowsAsked) -> pa.Schema:
    """What is given of a topic that has these columns of its own."""
    names = own.names if asked.columns is None else asked.columns
    return pa.schema([field_of(topic, own, name) for name in names])


def field_of(topic: str, own: pa.Schema, name: str) -> pa.Field:
    if name in own.names:  # a topic may have a column of such a name
        return own.field(name)
    if name in SHOWN:
        return METADATA.field(name)
    raise InvalidRequest(f"{topic} has no column {name!r}, it has {', '.join([*own.names, *SHOWN])}: name these")


def conditions(where: Sequence[Any]) -> tuple[Condition, ...]:
    for each in where:
        if not (isinstance(each, tuple) and len(each) == 3 and each[1] in COMPARED):
            raise InvalidRequest(
                f'{each!r} is no condition: it is as ("amount", ">", 5), and compares by {", ".join(COMPARED)}'
            )
        if each[1] in ("in", "not in") and not isinstance(each[2], list | tuple | set | frozenset | range):
            raise InvalidRequest(f"{each!r} names no values to be {each[1]}: give a list of them")
    return tuple(where)


def row_expression(field: pa.Field, comparison: str, value: Any) -> pc.Expression:
    column = pc.field(field.name)
    for each in value if comparison in ("in", "not in") else (value,):
        _require_time(field, each)
    try:
        if comparison in ("in", "not in"):
            found = column.isin(pa.array(list(value), field.type))
            found = found if comparison == "in" else ~found
        else:
            found = COMPARED[comparison](column, pa.scalar(value, field.type))
        pa.table([pa.array([], field.type)], [field.name]).filter(found)  # not all types can be compared
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{field.name} is {field.type}, and {value!r} is none: {error}") from error
    return found


def _require_time(field: pa.Field, value: Any) -> None:
    """Arrow would take a number for any unit, and a time without a zone for one of UTC."""
    if not pa.types.is_timestamp(field.type) or value is None:
        return
    if not isinstance(value, datetime) or (field.type.tz is not None and value.tzinfo is None):
        zone = "" if field.type.tz is None else " with a time zone"
        raise InvalidRequest(f"{field.name} is a time, and {value!r} is none: give a datetime{zone}")
