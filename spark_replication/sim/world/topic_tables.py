"""Topics' tables in memory: commits and seals are stored or refused as the real ones are.

Nothing here takes time or fails: that is for whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from spark_replication.core.tables.table import (
    RowRange,
    TableVersion,
    extended,
    is_unchanged,
    require_continued,
    require_sealed,
    sealed,
)
from spark_replication.errors import TableChanged, WrongCluster
from spark_replication.model import Epoch, Offset, PartitionNumber, TableOrigin, in_ranges, require
from spark_replication.ports import UploadedFile


class TableRow(NamedTuple):
    """A row, or a stored batch of some."""

    partition: PartitionNumber
    #: Where it begins.
    offset: Offset
    #: What is there, for judges to compare.
    content: object


class FileOfRows(msgspec.Struct, frozen=True):
    """ports.UploadedFile."""

    path: str
    rows: tuple[TableRow, ...]


class TableInMemory:
    """ports.TopicTable, and all of its handles at once."""

    def __init__(self) -> None:
        #: What `load` tells.
        self.version = TableVersion()
        #: By path, in the order of their commits.
        self.files: dict[str, FileOfRows] = {}

    @property
    def rows(self) -> list[TableRow]:
        """All rows that were committed, in the order of their commits."""
        return [row for file in self.files.values() for row in file.rows]

    def load(self) -> TableVersion:
        return self.version

    def commit(self, on: TableVersion, added: Sequence[RowRange], files: Sequence[UploadedFile]) -> TableVersion:
        require_continued(on, added)
        self._refuse_changed(on, [each.partition for each in added])
        for file in files:
            assert isinstance(file, FileOfRows), file
            require(file.path not in self.files, f"{file.path} was committed before")
            self.files[file.path] = file
        self.version = extended(self.version, self._next_number(), added)
        return self.version

    def seal(self, on: TableVersion, epochs: Mapping[PartitionNumber, Epoch]) -> TableVersion:
        require_sealed(on, epochs)
        self._refuse_changed(on, list(epochs))
        self.version = sealed(self.version, self._next_number(), epochs)
        return self.version

    def take_over(self, origin: TableOrigin) -> TableVersion:
        raise WrongCluster(f"each topic has a table of its own here, and none is {origin.topic_id}'s")

    def _next_number(self) -> int:
        return 0 if self.version.number is None else self.version.number + 1

    def _refuse_changed(self, on: TableVersion, partitions: Sequence[PartitionNumber]) -> None:
        if not is_unchanged(on, self.version, partitions):
            raise TableChanged(
                f"partitions {in_ranges(partitions)} have changed between version {on.number} and "
                f"{self.version.number}: load the table again"
            )


def anything_fits(_schema: str, _partition_by: str) -> None:
    """core.tables.fitting.FitsTable of tables in memory."""
