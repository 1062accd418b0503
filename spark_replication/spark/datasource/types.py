"""A topic's columns as Spark has them, and batches cast to those types: Spark's Arrow reader takes no others."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_replication.client.reading.log_batch import METADATA
from spark_replication.errors import InvalidRequest

#: Types that Spark lacks, and for each a type that holds all of its values.
_HELD_BY = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def spark_schema(topic: str, columns: pa.Schema, metadata: Sequence[str] = ()) -> StructType:
    """The schema of these columns in Spark, and of those of METADATA. Raises InvalidRequest, which names the first that
    Spark cannot have."""
    fields = [StructField(field.name, _spark_type(topic, field), field.nullable) for field in columns]
    taken = sorted(set(metadata) & set(columns.names))
    if taken:
        raise InvalidRequest(
            f"{topic} has columns {taken} of its own: leave them out with the option columns, or read it without "
            "includeMetadata, and alone"
        )
    told = (METADATA.field(name) for name in metadata)
    return StructType([*fields, *(StructField(each.name, from_arrow_type(each.type), False) for each in told)])


def _spark_type(topic: str, field: pa.Field):  # type: ignore[no-untyped-def]
    try:
        found = from_arrow_type(_held_by(field.type))
        arrow_schema(StructType([StructField(field.name, found)]))  # refuses a decimal of more than 38 digits
        return found
    except (PySparkException, ValueError) as error:
        raise InvalidRequest(
            f"column {field.name!r} of {topic} is {field.type}, which Spark cannot have: leave it out with the option "
            "columns"
        ) from error


def _held_by(kind: pa.DataType) -> pa.DataType:
    """The type that holds all values of this one in Spark, also within lists and structs."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_held_by(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_held_by(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_held_by(kind.value_type)))
    return _HELD_BY.get(kind, kind)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of batches on their way to Spark."""
    return to_arrow_schema(schema, timezone="UTC")


def as_schema(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns, cast to the schema's types where they differ."""
    cast = [_cast(column, field) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidRequest(
            f"column {field.name!r} is {column.type}, and does not fit {field.type}: {error}"
        ) from error
