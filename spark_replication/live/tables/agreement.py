"""Whether a table has the rows that its topic's log has, at the offsets that both have: row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from msgspec.structs import replace

from spark_replication.client.reading.log_batch import LogBatch, metadata_of
from spark_replication.client.reading.reader import Reader
from spark_replication.core.tables.table import TableVersion
from spark_replication.live.tables.table_topics import TableTopic
from spark_replication.mirror.delta.reading import named, rows_of
from spark_replication.model import Offset, PartitionNumber
from spark_replication.tables.types import DAY, OFFSET, OURS, PARTITION, fitted
from spark_replication.tables.verifying import TableFault

ROWS_TOGETHER = 1 << 17

PARTS = "not the log's"


def differences(topic: TableTopic, reader: Reader, opened: DeltaTable, version: TableVersion) -> Iterator[TableFault]:
    """The offsets at which the log has other rows than this version of the table. What is in memory are ROWS_TOGETHER
    rows, and a batch."""
    schema = pa.schema([field for field in pa.schema(opened.schema().to_arrow()) if field.name != DAY])
    for partition, end in sorted(version.ends.items()):
        if partition in topic.metadata.numbers:
            for together in _together(topic, reader, partition, version.starts.get(partition, 0), end):
                yield from _compared(together, opened, schema)


def _together(
    topic: TableTopic, reader: Reader, partition: PartitionNumber, start: Offset, end: Offset
) -> Iterator[list[LogBatch]]:
    """start: what the log has below it, the table has given up."""
    found: list[LogBatch] = []
    rows = 0
    with closing(reader.read(topic.name, partition, "earliest", end, topic_id=topic.metadata.topic_id)) as batches:
        for each in batches:
            if each.last_offset < start:
                continue
            found.append(_from(each, start))
            rows += each.batch.num_rows
            if rows >= ROWS_TOGETHER:
                yield found
                found, rows = [], 0
    if found:
        yield found


def _from(found: LogBatch, start: Offset) -> LogBatch:
    """Its rows from this offset on."""
    before = max(0, start - found.base_offset)
    if not before:
        return found
    return replace(found, base_offset=found.base_offset + before, batch=found.batch.slice(before))


def _compared(together: Sequence[LogBatch], opened: DeltaTable, schema: pa.Schema) -> Iterator[TableFault]:
    partition, start, end = together[0].partition, together[0].base_offset, together[-1].last_offset + 1
    where = f"{named(PARTITION)} = {partition} AND {named(OFFSET)} >= {start} AND {named(OFFSET)} < {end}"
    stored = rows_of(opened, None, where).sort_by(OFFSET).select(schema.names).cast(schema).combine_chunks()
    offsets = stored[OFFSET].to_numpy()
    for found in together:
        # By offsets, not by places: a row that is missing, or is there twice, is a fault of its own batch alone.
        first, beyond = np.searchsorted(offsets, (found.base_offset, found.last_offset + 1))
        if not _as_stored(found, schema).equals(stored.slice(first, beyond - first)):
            yield TableFault(partition=partition, what=PARTS, start=found.base_offset, end=found.last_offset + 1)


def _as_stored(found: LogBatch, schema: pa.Schema) -> pa.Table:
    ours = metadata_of(found, OURS.names)
    of_topic = iter(fitted(found.batch, schema))
    return pa.table([ours[name] if name in ours else next(of_topic) for name in schema.names], schema)
