"""The schema of a sink: whether a DataFrame fits a topic, checked before any task starts, and its batches as stored."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from spark_replication.client.placing import PARTITION
from spark_replication.errors import SchemaMismatch
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.spark.datasource.types import as_schema, spark_schema
from spark_replication.storage.batches import topic_schema


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
        wanted = {field.name: field for field in spark_schema(found.name, columns, include_metadata=False)}
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
        return cls(found.name, columns, tuple(command.partition for command in found.partitions))

    def as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        there = set(batch.schema.names)
        columns = [
            batch.column(field.name) if field.name in there else pa.nulls(batch.num_rows, field.type)
            for field in self.columns
        ]
        return as_schema(columns, self.columns)


def _same(one: DataType, other: DataType) -> bool:
    """Whether two types are the same, apart from nulls within: these are checked with the rows."""
    return one.simpleString() == other.simpleString()
