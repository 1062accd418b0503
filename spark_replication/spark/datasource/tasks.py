"""The tasks of readers, and what all readers share: the topic's columns, and the planning of ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.errors import InvalidRequest
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.spark.datasource.filters import EVERYTHING, Pushed
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.planning import Range, in_tasks, piece_bytes, pieces_of
from spark_replication.spark.datasource.reading import Rows, rows_of
from spark_replication.spark.datasource.topic import Topic
from spark_replication.spark.datasource.types import METADATA, arrow_schema, spark_schema
from spark_replication.storage.batches import projected, topic_schema


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads. Spark pickles it."""

    ranges: tuple[Range, ...]
    rows: Rows

    def read(self, options: LogOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
        return rows_of(Topic(options), self.rows, self.ranges, arrow_schema(schema))


def topic_columns(found: TopicMetadata, options: LogOptions) -> StructType:
    """The schema of a topic, as Spark has it."""
    columns = projected(_arrow_columns(found), options.columns)
    return spark_schema(found.name, columns, include_metadata=options.include_metadata)


def rows_wanted(found: TopicMetadata, options: LogOptions, schema: StructType, pushed: Pushed = EVERYTHING) -> Rows:
    """What is wanted of the topic's rows, by the schema that Spark wants. Raises InvalidRequest, which names a column
    that was asked for and is not there."""
    there = projected(_arrow_columns(found), options.columns)
    names = schema.fieldNames()
    # A column that nobody asks for may be of a type that Spark cannot have.
    asked = pa.schema([field for field in there if field.name in names])
    known = {field.name: field for field in spark_schema(found.name, asked, include_metadata=options.include_metadata)}
    for field in schema:
        if field.name not in known:
            has = ", ".join([*there.names, *(METADATA.names if options.include_metadata else ())])
            raise InvalidRequest(f"{found.name} has no column {field.name!r}, it has {has}: name these")
        if known[field.name].dataType != field.dataType:
            raise InvalidRequest(
                f"column {field.name!r} of {found.name} is {known[field.name].dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: leave out .schema(…), and cast it"
            )
    columns = tuple(name for name in names if not (options.include_metadata and name in METADATA.names))
    return Rows(
        topic_id=found.topic_id,
        columns=columns or tuple(there.names[:1]),
        include_metadata=options.include_metadata,
        pushed=pushed,
    )


def planned(
    topic: Topic, rows: Rows, starts: Mapping[int, ReadPlace], ends: Mapping[int, ReadPlace], min_partitions: int | None
) -> list[InputPartition]:
    """The tasks that read from `starts` to `ends`. They are the same for the same ends: every leader has the same
    stored batches, and plans the whole range or nothing."""
    size = piece_bytes(0, None)
    if min_partitions is not None:
        whole = topic.whole(starts, ends, topic_id=rows.topic_id)
        size = piece_bytes(sum(each.bytes for each in whole.values()), min_partitions)
    found = topic.whole(starts, ends, topic_id=rows.topic_id, piece_bytes=size)
    ranges = [
        one
        for partition, each in sorted(found.items())
        for one in pieces_of(partition, ReadPlace(each.start, each.start_epoch), each.pieces)
    ]
    together = {} if min_partitions is None else {"together_bytes": 0}
    return [Task(task, rows) for task in in_tasks(ranges, **together)]


def _arrow_columns(found: TopicMetadata) -> pa.Schema:
    return topic_schema(found.config).newest
