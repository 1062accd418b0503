"""The tables that the contract of ports.TopicTable is tried with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_replication.core.tables.table import RowRange
from spark_replication.ports import TopicTable, UploadedFile
from spark_replication.sim.world.topic_tables import FileOfRows, TableInMemory, TableRow


class TableCast(Protocol):
    """One topic's table, and as many writers of it as a story needs."""

    def handle(self) -> TopicTable:
        """A writer's own, which has seen nothing yet."""

    def upload(self, ranges: Sequence[RowRange]) -> UploadedFile:
        """A file with just these rows."""

    def rows(self) -> list[tuple[int, int]]:
        """What is in the table: of each row its partition and offset, sorted."""


class InMemory:
    def __init__(self) -> None:
        self._table = TableInMemory()
        self._files = 0

    def handle(self) -> TopicTable:
        return self._table

    def upload(self, ranges: Sequence[RowRange]) -> UploadedFile:
        self._files += 1
        rows = (TableRow(each.partition, at, f"row {at}") for each in ranges for at in range(each.start, each.end))
        return FileOfRows(f"file {self._files}", tuple(rows))

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in self._table.rows)
