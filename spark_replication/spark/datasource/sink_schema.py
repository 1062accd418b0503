"""The schema of a sink: whether a DataFrame fits a topic, checked before any task starts, and its batches as stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from spark_replication.errors import InvalidRequest, SchemaMismatch
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.records import PARTITION
from spark_replication.spark.datasource.types import as_schema, spark_schema
from spark_replication.storage.format.batches import topic_schema


@dataclass(frozen=True)
class SinkSchema:
    """The schema and the partitions of a topic when the query was planned."""

    topic: str
    columns: pa.Schema
    partitions: tuple[int, ...]

    @classmethod
    def of(cls, found: TopicMetadata, rows: StructType, partition_by: tuple[str, ...]) -> SinkSchema:
        """The sink's schema for these rows. Raises SchemaMismatch, which names the first column that does not fit."""
        columns = topic_schema(found.config).newest
        wanted = {field.name: field for field in spark_schema(found.name, columns)}
        there = {field.name: field.dataType for field in rows}
        for name, kind in there.items():
            if name == PARTITION and name not in wanted and kind.typeName() in ("byte", "short", "integer", "long"):
                continue
            if name not in wanted:
                raise SchemaMismatch(
                    f"column {name!r} is not in {found.name}, which has {', '.join(wanted)}: drop it, or widen that"
                )
            if not _same(kind, wanted[name].dataType):
                raise SchemaMismatch(
                    f"column {name!r} is {kind.simpleString()}, and {wanted[name].dataType.simpleString()} in "
                    f"{found.name}: cast it"
                )
        for name, field in wanted.items():
            if name not in there and not field.nullable:
                raise SchemaMismatch(f"column {name!r} of {found.name} takes no nulls, and is not in the rows: add it")
        for name in partition_by:
            if name not in there:
                raise SchemaMismatch(f"partitionBy names {name!r}, and the rows have {', '.join(there)}: name these")
        return cls(found.name, columns, found.numbers)

    def as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        there = set(batch.schema.names)
        columns = [
            batch.column(field.name) if field.name in there else pa.nulls(batch.num_rows, field.type)
            for field in self.columns
        ]
        stored = as_schema(columns, self.columns)
        for field, column, kept in zip(self.columns, columns, stored.columns, strict=True):
            if pa.types.is_float16(field.type) and not _are_equal(column, kept.cast(column.type)):
                raise InvalidRequest(
                    f"column {field.name!r} has values that {field.type} does not hold, and would be rounded: round "
                    "them before, or have a wider column"
                )
            if _has_nulls_within(kept):
                raise InvalidRequest(
                    f"column {field.name!r} has nulls within, where {field.type} takes no null: leave them out"
                )
        return stored


def _same(one: DataType, other: DataType) -> bool:
    """Whether two types are the same, apart from nulls within: these are checked with the rows."""
    return one.simpleString() == other.simpleString()


def _are_equal(one: pa.Array, other: pa.Array) -> bool:
    """Whether two columns of floating point have the same values, where NaN is one."""
    left, right = (column.to_numpy(zero_copy_only=False).astype(np.float64) for column in (one, other))
    return bool(np.array_equal(left, right, equal_nan=True))


def _has_nulls_within(column: pa.Array) -> bool:
    """Whether a list or struct within takes no null, and has one. Arrow's casts look at structs alone."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_refused(column.drop_null().flatten(), kind.value_field)
    if pa.types.is_map(kind):
        there = column.drop_null()
        first, last = (there.offsets[place].as_py() for place in (0, -1))
        return _is_refused(there.items.slice(first, last - first), kind.item_field)
    if pa.types.is_struct(kind):
        return any(_is_refused(part, field) for part, field in zip(column.drop_null().flatten(), kind, strict=True))
    return False


def _is_refused(values: pa.Array, field: pa.Field) -> bool:
    return bool(not field.nullable and values.null_count) or _has_nulls_within(values)
