"""The columns of a topic's table, and rows of the topic as rows of the table (TB8). Pure.

Rules:
- Delta has fewer types than Arrow. A column is cast where nothing is lost; other types are refused before there is a
  table, and the refusal names the column and a cast that a person can make.
- A timestamp or a date that Delta cannot hold (beyond the year 294,000) is stored as the nearest that it can: a row
  that waited for a person would stop the table.
- All columns are nullable, since a topic's later columns are null in its earlier rows. Names alone tell columns apart:
  no metadata of Arrow's fields gets into Delta, where some would mean something else.
- A widened topic gains columns at its end, and so does its table: behind ours. Only names tell where a column is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_replication.errors import InvalidSchema

PARTITION, OFFSET, TIMESTAMP, LEADER_EPOCH = "_partition", "_offset", "_timestamp", "_leader_epoch"
#: The day of _timestamp. Only a table that is partitioned by it has it.
DAY = "_day"
OURS = pa.schema(
    [
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
        (LEADER_EPOCH, pa.int32()),
    ]
)
DECIMAL_DIGITS_MAX = 38
_AS_IT_IS = {
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(),
}  # fmt: skip
_CAST = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_PARTITIONED_BY = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32()}
#: Of the types that are refused, what to cast them to.
_ADVICE = (
    (pa.types.is_time, "timestamp('us') or int64"),
    (pa.types.is_duration, "int64"),
    (pa.types.is_float16, "float32"),
    (pa.types.is_interval, "int64 or string"),
    (pa.types.is_null, "the type that it is to have"),
    (pa.types.is_dictionary, "its value type"),
    (pa.types.is_run_end_encoded, "its value type"),
    (pa.types.is_union, "a struct of its cases"),
    (pa.types.is_decimal, f"decimal128 of {DECIMAL_DIGITS_MAX} digits at most, none of them left out, or string"),
    (pa.types.is_timestamp, "timestamp('us')"),
    (pa.types.is_date64, "date32"),
    # pyarrow's own cast of them empties the last list.
    (pa.types.is_list_view, "a list"),
    (pa.types.is_large_list_view, "a list"),
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
# Values of these units have no place in the type that the table has, beyond these limits.
_MICROSECONDS_MAX = (1 << 63) - 1
_DAYS_MAX = (1 << 31) - 1
_DAY_MS = 86_400_000
_LIMITS = {"s": _MICROSECONDS_MAX // 1_000_000, "ms": _MICROSECONDS_MAX // 1_000}


def table_schema(topic: pa.Schema, partition_by: Sequence[str] = ()) -> pa.Schema:
    """The schema of the table of a topic with this schema, partitioned by these columns. A table that is older than the
    topic's last columns has them behind ours. InvalidSchema: there is no such table."""
    _require_names(topic.names)
    fields = [pa.field(field.name, column_type(field.type, field.name)) for field in topic]
    day = [pa.field(DAY, pa.date32())] if DAY in partition_by else []
    schema = pa.schema([*fields, *OURS, *day])
    for name in partition_by:
        if schema.get_field_index(name) < 0:
            raise InvalidSchema(
                f"there is no column {name!r} to partition the table by: there are {', '.join(topic.names)}"
            )
        if schema.field(name).type not in _PARTITIONED_BY:
            raise InvalidSchema(
                f"no table is partitioned by {schema.field(name).type}, as column {name!r} is: name another"
            )
    return schema


def column_type(found: pa.DataType, column: str, *, within: str = "") -> pa.DataType:
    """The type that a column of this type has in the table. within: names what it is a part of, for messages."""
    where = f"{within}.{column}" if within else column
    if found in _AS_IT_IS:
        return found
    if found in _CAST:
        return _CAST[found]
    if any(is_list(found) for is_list in _LISTS):
        return pa.list_(column_type(found.value_type, "element", within=where))
    if pa.types.is_struct(found):
        names = [field.name for field in found]
        _require_distinct(names, f"column {where!r}")
        return pa.struct([(each.name, column_type(each.type, each.name, within=where)) for each in found])
    if pa.types.is_map(found):
        key, value = (
            column_type(kind, name, within=where)
            for name, kind in (("key", found.key_type), ("value", found.item_type))
        )
        return pa.map_(key, value)
    if pa.types.is_fixed_size_binary(found):
        return pa.binary()
    cast = _cast_of_numbers(found, is_within=bool(within))
    if cast is not None:
        return cast
    advice = next((advice for is_it, advice in _ADVICE if is_it(found)), "another type")
    raise InvalidSchema(f"column {where!r} is {found}, which a Delta table cannot hold: cast it to {advice}")


def _cast_of_numbers(found: pa.DataType, *, is_within: bool) -> pa.DataType | None:
    """The type of a timestamp, a date or a decimal. Those that `_within_limits` must look at are whole columns."""
    if pa.types.is_timestamp(found) and (found.unit == "us" or (found.unit in _LIMITS and not is_within)):
        return pa.timestamp("us", None if found.tz is None else "UTC")
    if pa.types.is_date64(found) and not is_within:
        return pa.date32()
    if pa.types.is_decimal(found) and 0 <= found.scale <= found.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(found.precision, found.scale)
    return None


def _require_names(names: Sequence[str]) -> None:
    for name in names:
        if name.lower() in {PARTITION, OFFSET, TIMESTAMP, LEADER_EPOCH, DAY}:
            raise InvalidSchema(f"column {name!r} has the name of one that each table has: give it another name")
    _require_distinct(names, "the topic")


def _require_distinct(names: Sequence[str], owner: str) -> None:
    """Readers of Delta tables do not tell upper case from lower case."""
    seen: set[str] = set()
    for name in names:
        if not name:
            raise InvalidSchema(f"{owner} has a column without a name: give it one")
        if name.lower() in seen:
            raise InvalidSchema(
                f"{owner} has two columns that a Delta table takes for one, {name!r} in whatever case: give one "
                "another name"
            )
        seen.add(name.lower())


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """The columns of the topic's rows as a table with this schema has them, without ours. A column that the batch lacks
    is null."""
    return [
        _cast(batch.column(field.name), field.type)
        if batch.schema.get_field_index(field.name) >= 0
        else pa.nulls(len(batch), field.type)
        for field in schema
        if field.name not in OURS.names and field.name != DAY
    ]


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    return _within_limits(column).cast(wanted)


def _within_limits(column: pa.Array) -> pa.Array:
    found = column.type
    if pa.types.is_timestamp(found) and found.unit in _LIMITS:
        low, high = -_LIMITS[found.unit], _LIMITS[found.unit]
    elif pa.types.is_date64(found):
        low, high = -_DAYS_MAX * _DAY_MS, _DAYS_MAX * _DAY_MS
    else:
        return column
    numbers = column.view(pa.int64())
    seen: dict[str, Any] = pc.min_max(numbers).as_py()
    if seen["min"] is None or (low <= seen["min"] and seen["max"] <= high):
        return column
    # skip_nulls: a null would become a limit.
    bounded = pc.min_element_wise(pc.max_element_wise(numbers, low, skip_nulls=False), high, skip_nulls=False)
    return bounded.view(found)
