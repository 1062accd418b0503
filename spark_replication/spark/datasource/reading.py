"""Reads in a task: the rows of its ranges, as Arrow batches of Spark's schema. Small stored batches are joined: a batch
costs Spark more than a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from spark_replication.client.reading.bounds import EVERYTHING, Bounds
from spark_replication.client.reading.log_batch import metadata_of
from spark_replication.spark.datasource.planning import Range
from spark_replication.spark.datasource.topic import Topic
from spark_replication.spark.datasource.types import as_schema

JOINED_ROWS = 64 << 10
JOINED_BYTES = 4 << 20


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of the rows of a topic."""

    topic: str
    topic_id: str
    #: The columns that are read: at least one, since a batch without columns would not say how many rows it has.
    columns: tuple[str, ...]
    #: Which columns are METADATA's.
    metadata: tuple[str, ...] = ()
    pushed: Bounds = EVERYTHING


def rows_of(topic: Topic, rows: Rows, ranges: Sequence[Range], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of these ranges. `schema` has the columns as Spark has them."""
    for together in _joined(_batches(topic, rows, ranges, schema)):
        yield together[0] if len(together) == 1 else pa.concat_batches(together)


def _batches(topic: Topic, rows: Rows, ranges: Sequence[Range], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for each in ranges:
        for found in topic.read(each, rows.columns, topic_id=rows.topic_id):
            if rows.pushed.has_time(found.timestamp):
                told = metadata_of(found, rows.metadata)
                columns = [told[name] if name in told else found.batch.column(name) for name in schema.names]
                yield as_schema(columns, schema)


def _joined(found: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    together: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in found:
        taken = pa.ipc.get_record_batch_size(batch)
        if together and (rows + batch.num_rows > JOINED_ROWS or size + taken > JOINED_BYTES):
            yield together
            together, rows, size = [], 0, 0
        together.append(batch)
        rows += batch.num_rows
        size += taken
    if together:
        yield together
