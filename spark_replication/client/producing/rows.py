"""What may be sent, as one batch: an Arrow batch or table as it is, everything else by the topic's schema.

- A pyarrow RecordBatch or Table goes as it is: it has exactly the topic's columns and types.
- Of whatever else has `__arrow_c_stream__` or `__arrow_c_array__`, of a polars or pandas DataFrame, a dict of columns
  or a list of dicts, each column gets the topic's type, if no value is lost by that. pandas' index is left out.

A column that is missing is null where it may be. One that the topic lacks is refused, as a value that does not fit is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_replication.errors import InvalidRequest

#: See above. pyarrow has no types.
Rows = Any

KINDS = "a pyarrow RecordBatch or Table, a DataFrame, a dict of columns or a list of dicts"


def one_batch(rows: Rows, topic: str, schema: pa.Schema | None) -> pa.RecordBatch:
    """`schema` is the topic's newest; None if it has none. The batch has at least one row."""
    batch = rows if isinstance(rows, pa.RecordBatch) else _combined(_table(rows, topic, schema))
    if batch is None or batch.num_rows == 0:
        raise InvalidRequest("a batch without rows has no offsets: send at least one row")
    return batch


def _combined(table: pa.Table) -> pa.RecordBatch | None:
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise InvalidRequest(f"a table of {table.num_rows} rows does not fit one batch: send parts of it")
    return batches[0] if batches else None


def _table(rows: Rows, topic: str, schema: pa.Schema | None) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    found = _columns(rows)
    if found is None:
        raise InvalidRequest(f"{type(rows).__name__} cannot be sent: give {KINDS}")
    if not any(map(len, found.values())):
        return pa.table({})
    if schema is None:
        return _made("these rows", lambda: pa.table(found))
    unknown = [name for name in found if name not in schema.names]
    if unknown:
        raise InvalidRequest(f"column {unknown[0]!r} is not in {topic}, which has {', '.join(schema.names)}")
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidRequest(f"the columns are not equally long: {lengths}")
    count = next(iter(lengths.values()), 0)
    columns = [_column(found.get(field.name), field, topic, count) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _columns(rows: Rows) -> Mapping[str, Any] | None:
    """Return the values of each column, or Arrow's array of them. None if these are no rows."""
    if isinstance(rows, Mapping):
        return rows
    if isinstance(rows, (list, tuple)):
        if not all(isinstance(row, Mapping) for row in rows):
            return None
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}
    if hasattr(rows, "iloc"):  # pandas: its own stream would bring the index along
        table = _made("the frame", lambda: pa.Table.from_pandas(rows, preserve_index=False))
    elif hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        table = _made("the rows", lambda: pa.table(rows))
    else:
        return None
    return {name: table.column(place) for place, name in enumerate(table.column_names)}


def _column(values: Any, field: pa.Field, topic: str, count: int) -> pa.Array:
    if values is None:
        if not field.nullable:
            raise InvalidRequest(f"column {field.name!r} of {topic} is missing, and holds no nulls")
        return pa.nulls(count, field.type)
    is_arrow = isinstance(values, (pa.Array, pa.ChunkedArray))
    column = _made(
        f"column {field.name!r} of {topic}",
        lambda: values.cast(field.type) if is_arrow else _of_values(values, field.type),
    )
    if column.null_count and not field.nullable:
        raise InvalidRequest(f"column {field.name!r} of {topic} has {column.null_count} nulls, and holds none")
    return column


def _of_values(values: Any, kind: pa.DataType) -> pa.Array:
    made = pa.array(values, kind)
    try:
        plain = pa.array(values)
    except pa.ArrowException:  # values of several types, which this one takes
        return made
    if pa.types.is_floating(plain.type) or pa.types.is_temporal(plain.type):
        plain.cast(kind)  # raises if a fraction would be lost, which `array` cuts off
    return made


def _made(what: str, make: Any) -> Any:
    try:
        return make()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{what} cannot be sent: {error}") from error
