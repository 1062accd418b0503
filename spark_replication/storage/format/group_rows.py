"""The rows of the groups' log (ports.GroupRows): what has changed is JSON, so that people can read it as any topic."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_replication.errors import BatchTooLarge, CorruptLog
from spark_replication.model import Offset
from spark_replication.ports import LogSlice, PreparedBatch
from spark_replication.storage.format.batches import TopicSchema, batches_of, check_data, prepare, schema_to_bytes

GROUP, CHANGE = "group", "change"
GROUPS_SCHEMA = pa.schema([pa.field(GROUP, pa.string()), pa.field(CHANGE, pa.string(), nullable=False)])


def groups_schema_text() -> str:
    """The schema as a topic's config has it."""
    return base64.b64encode(schema_to_bytes(GROUPS_SCHEMA)).decode()


class StoredGroupRows:
    def __init__(self, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._schema = TopicSchema(GROUPS_SCHEMA)

    def encode(self, rows: Sequence[tuple[str | None, bytes]]) -> list[PreparedBatch]:
        groups = pa.array([group for group, _ in rows], pa.string())
        changes = pa.array([change for _, change in rows], pa.binary()).cast(pa.string())
        return self._prepared(pa.record_batch([groups, changes], schema=GROUPS_SCHEMA))

    def _prepared(self, batch: pa.RecordBatch) -> list[PreparedBatch]:
        try:
            return [prepare(batch, self._schema, batch_bytes_max=self._batch_bytes_max)]
        except BatchTooLarge:
            if batch.num_rows == 1:
                raise
        half = batch.num_rows // 2
        return self._prepared(batch.slice(0, half)) + self._prepared(batch.slice(half))

    def decode(self, records: LogSlice) -> Iterator[tuple[Offset, str]]:
        check_data(records)
        for entry, batch in batches_of(records):
            if not batch.schema.equals(GROUPS_SCHEMA):
                raise CorruptLog(
                    f"the groups' log has other columns at offset {entry.base_offset}: {batch.schema.names}"
                )
            yield from enumerate(batch.column(CHANGE).to_pylist(), entry.base_offset)
