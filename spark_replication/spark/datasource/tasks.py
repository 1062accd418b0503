"""The tasks of readers, and what all readers share: the topic's columns, and the planning of ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_replication.client.reading.bounds import EVERYTHING, Bounds
from spark_replication.client.reading.log_batch import METADATA, TOPIC
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.errors import InvalidRequest
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange
from spark_replication.spark.datasource.options import LogOptions, of_topic
from spark_replication.spark.datasource.planning import Range, in_tasks, piece_bytes, pieces_of
from spark_replication.spark.datasource.reading import Rows, rows_of
from spark_replication.spark.datasource.topic import Topic
from spark_replication.spark.datasource.types import arrow_schema, spark_schema
from spark_replication.storage.format.batches import projected, topic_schema


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads. Spark pickles it."""

    ranges: tuple[Range, ...]
    rows: Rows

    def read(self, options: LogOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
        return rows_of(Topic(of_topic(options, self.rows.topic)), self.rows, self.ranges, arrow_schema(schema))


def topic_columns(found: TopicMetadata, options: LogOptions) -> StructType:
    """The schema of a topic, as Spark has it."""
    columns = projected(_arrow_columns(found), options.columns)
    return spark_schema(found.name, columns, metadata_columns(options))


def metadata_columns(options: LogOptions) -> tuple[str, ...]:
    """The columns of METADATA that are read. Rows of several topics always have the name of their own."""
    if options.include_metadata:
        return tuple(METADATA.names)
    return (TOPIC,) if options.reads_several else ()


def columns_together(found: Sequence[TopicMetadata], options: LogOptions) -> StructType:
    """The schema of the rows of these topics: that of the first, in whose order the others' columns are read. Raises
    InvalidRequest, which names the first difference, if they have not the same columns."""
    first, *others = found
    together = topic_columns(first, options)
    for other in others:
        columns = topic_columns(other, options)
        if difference := _difference(together, columns, first.name, other.name):
            raise InvalidRequest(
                f"{first.name} and {other.name} cannot be read together: {difference}. Read each by itself, or name "
                "columns that are the same in all with the option columns"
            )
        for field in together:
            field.nullable = field.nullable or columns[field.name].nullable
    return together


def _difference(one: StructType, other: StructType, name: str, other_name: str) -> str | None:
    for field in one:
        if field.name not in other.fieldNames():
            return f"column {field.name!r} is in {name} alone"
        if (kind := other[field.name].dataType) != field.dataType:
            ours = field.dataType.simpleString()
            return f"column {field.name!r} is {ours} in {name}, and {kind.simpleString()} in {other_name}"
    more = [field.name for field in other if field.name not in one.fieldNames()]
    return f"column {more[0]!r} is in {other_name} alone" if more else None


def rows_wanted(found: TopicMetadata, options: LogOptions, schema: StructType, pushed: Bounds = EVERYTHING) -> Rows:
    """What is wanted of the topic's rows, by the schema that Spark wants. Raises InvalidRequest, which names a column
    that was asked for and is not there."""
    there = projected(_arrow_columns(found), options.columns)
    names = schema.fieldNames()
    # A column that nobody asks for may be of a type that Spark cannot have.
    asked = pa.schema([field for field in there if field.name in names])
    metadata = metadata_columns(options)
    known = {field.name: field for field in spark_schema(found.name, asked, metadata)}
    for field in schema:
        if field.name not in known:
            has = ", ".join([*there.names, *metadata])
            raise InvalidRequest(f"{found.name} has no column {field.name!r}, it has {has}: name these")
        if known[field.name].dataType != field.dataType:
            raise InvalidRequest(
                f"column {field.name!r} of {found.name} is {known[field.name].dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: leave out .schema(…), and cast it"
            )
    columns = tuple(name for name in names if name not in metadata)
    return Rows(
        topic=found.name,
        topic_id=found.topic_id,
        columns=columns or tuple(there.names[:1]),
        metadata=metadata,
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
    return tasks_of(found, rows, **({} if min_partitions is None else {"together_bytes": 0}))


def tasks_of(found: Mapping[int, FoundRange], rows: Rows, **together: int) -> list[InputPartition]:
    """The tasks that read these ranges, as their leaders have cut them. together: see in_tasks."""
    ranges = [
        one
        for partition, each in sorted(found.items())
        for one in pieces_of(partition, ReadPlace(each.start, each.start_epoch), each.pieces)
    ]
    return [Task(task, rows) for task in in_tasks(ranges, **together)]


def _arrow_columns(found: TopicMetadata) -> pa.Schema:
    return topic_schema(found.config).newest
