"""The tables that the contract of ports.TopicTable is tried with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from spark_replication.core.tables.table import RowRange
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.model import TableOrigin
from spark_replication.ports import TopicTable, UploadedFile
from spark_replication.process.threads import now_ms
from spark_replication.sim.world.topic_tables import FileOfRows, TableHandle, TableInMemory, TableRow
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.parquet_files import StoredRows, TableFiles
from spark_replication.tables.types import OFFSET, PARTITION

CLUSTER, TOPIC_ID = "a cluster", "a topic's id"


class TableCast(Protocol):
    """One topic's table, and as many writers of it as a story needs."""

    def handle(self, topic_id: str = TOPIC_ID) -> TopicTable:
        """A writer's own, which has seen nothing yet. topic_id: of the topic that it writes for."""

    def upload(self, ranges: Sequence[RowRange]) -> UploadedFile:
        """A file with just these rows."""

    def rows(self) -> list[tuple[int, int]]:
        """What is in the table: of each row its partition and offset, sorted."""


OWNER = TableOwner(cluster_id=CLUSTER, topic="orders", topic_id=TOPIC_ID)
TOPIC = pa.schema([("number", pa.uint32())])
FILE_BYTES = 1 << 20


def origin_of(topic_id: str) -> TableOrigin:
    return TableOrigin(cluster_id=CLUSTER, topic_id=topic_id)


class InMemory:
    def __init__(self) -> None:
        self._table = TableInMemory(origin_of(TOPIC_ID))
        self._tables = {TOPIC_ID: self._table}
        self._files = 0

    def handle(self, topic_id: str = TOPIC_ID) -> TopicTable:
        return TableHandle(self._tables, origin_of(topic_id))

    def upload(self, ranges: Sequence[RowRange]) -> UploadedFile:
        self._files += 1
        rows = (TableRow(each.partition, at, f"row {at}") for each in ranges for at in range(each.start, each.end))
        return FileOfRows(f"file {self._files}", tuple(rows))

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in self._table.rows)


class OfDelta:
    """A table at this place, on a disk or in an object store."""

    def __init__(self, uri: str, store: StoreOptions = PATIENCE) -> None:
        self.uri = uri
        self.store = store

    def handle(self, topic_id: str = TOPIC_ID) -> DeltaTopicTable:
        owner = TableOwner(cluster_id=CLUSTER, topic="orders", topic_id=topic_id)
        return DeltaTopicTable(self.uri, owner, TOPIC, self.store, now_ms=now_ms)

    def upload(self, ranges: Sequence[RowRange]) -> UploadedFile:
        table = self.handle()
        files = TableFiles(table.folder, table.layout(), file_bytes=FILE_BYTES, now_ms=now_ms)
        for each in sorted(ranges, key=lambda each: each.partition):
            numbers = pa.array(range(each.start, each.end), pa.uint32())
            batch = pa.record_batch([numbers], TOPIC)
            files.add(StoredRows(each.partition, each.start, now_ms(), each.last_epoch, batch))
        (file,) = files.close()
        return file

    def rows(self) -> list[tuple[int, int]]:
        opened = self.handle().opened()
        assert opened is not None
        found = rows_of(opened, [PARTITION, OFFSET, "number"])
        assert found["number"].to_pylist() == found[OFFSET].to_pylist()
        return sorted(zip(found[PARTITION].to_pylist(), found[OFFSET].to_pylist(), strict=True))
