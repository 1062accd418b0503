"""Some columns of stored batches.

Where a batch is laid out as the Arrow of this process lays them out, its buffers are copied, and nothing of it is
decoded: that takes a fifth of the time. Other batches are decoded: what is compressed, has views, or was written by an
Arrow that did it differently. Either gives the bytes that Arrow would write of these columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from spark_replication.errors import CorruptLog
from spark_replication.storage.format.batches import schema_to_bytes, segment_schema
from spark_replication.storage.format.ipc_message import Buffer, ColumnCut

PICKS_REMEMBERED = 100  # each may have as many columns as its schema


class ColumnPick:
    """Some columns of the batches of a schema, by their places."""

    def __init__(self, stored: pa.Schema, places: Sequence[int]) -> None:
        schema = pa.schema([stored.field(place) for place in places], metadata=stored.metadata)
        #: The message of their schema.
        self.head = schema_to_bytes(schema)
        self._stored, self._places = stored, places
        example = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in stored.types], schema=stored)
        each = [example.select([place]) for place in range(len(stored))]
        messages = [memoryview(batch.serialize()) for batch in (example, example.select(places), *each)]
        self._cut = ColumnCut.by_examples(messages[0], messages[1], messages[2:], places)

    def of(self, message: memoryview) -> Buffer:
        """The message of a batch with these columns alone, without compression. CorruptLog: it does not parse."""
        cut = None if self._cut is None else self._cut.of(message)
        if cut is not None:
            return cut
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._stored)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise CorruptLog(f"a batch does not parse: {error}") from error
        return memoryview(batch.select(self._places).serialize())


@lru_cache(PICKS_REMEMBERED)
def column_pick(head: bytes, places: tuple[int, ...]) -> ColumnPick:
    return ColumnPick(segment_schema(head), places)
