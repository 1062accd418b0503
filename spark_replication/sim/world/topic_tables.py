"""Topics' tables in memory: commits and seals are stored or refused as the real ones are.

Nothing here takes time or fails: that is for whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from spark_replication.core.tables.restoring import carried_over, is_to_be_taken_over
from spark_replication.core.tables.table import (
    RowRange,
    TableVersion,
    extended,
    is_unchanged,
    require_continued,
    require_sealed,
    sealed,
)
from spark_replication.errors import StorageFailed, TableChanged, WrongCluster
from spark_replication.model import Epoch, Offset, PartitionNumber, TableOrigin, in_ranges, require
from spark_replication.ports import UploadedFile

NOBODYS = TableOrigin(cluster_id="none", topic_id="none")


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

    def __init__(self, owner: TableOrigin = NOBODYS) -> None:
        self.owner = owner
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
        raise WrongCluster(f"who asks is not known here: a TableHandle takes over what is {origin.topic_id}'s")

    def be_taken_over(self, by: TableOrigin, origin: TableOrigin) -> None:
        """WrongCluster: it is neither's."""
        if is_to_be_taken_over(self.owner, by, origin, "the table in memory"):
            self.version = replace(carried_over(self.version), number=self._next_number())
            self.owner = by

    def _next_number(self) -> int:
        return 0 if self.version.number is None else self.version.number + 1

    def _refuse_changed(self, on: TableVersion, partitions: Sequence[PartitionNumber]) -> None:
        if not is_unchanged(on, self.version, partitions):
            raise TableChanged(
                f"partitions {in_ranges(partitions)} have changed between version {on.number} and "
                f"{self.version.number}: load the table again"
            )


class TableHandle:
    """ports.TopicTable of one topic: what another has taken over is refused."""

    def __init__(self, tables: dict[str, TableInMemory], owner: TableOrigin) -> None:
        """tables: all that there are, by the topic_ids that have or had them."""
        self._tables = tables
        self._owner = owner

    @property
    def _table(self) -> TableInMemory:
        found = self._tables.setdefault(self._owner.topic_id, TableInMemory(self._owner))
        if found.owner != self._owner:
            raise WrongCluster(f"the table is {found.owner.topic_id}'s by now")
        return found

    def load(self) -> TableVersion:
        return self._table.load()

    def commit(self, on: TableVersion, added: Sequence[RowRange], files: Sequence[UploadedFile]) -> TableVersion:
        return self._table.commit(on, added, files)

    def seal(self, on: TableVersion, epochs: Mapping[PartitionNumber, Epoch]) -> TableVersion:
        return self._table.seal(on, epochs)

    def take_over(self, origin: TableOrigin) -> TableVersion:
        found = self._tables.get(origin.topic_id)
        if found is None or found.version.number is None:
            raise StorageFailed("there is no table any more")
        found.be_taken_over(self._owner, origin)
        self._tables[self._owner.topic_id] = found
        return found.load()


def anything_fits(_schema: str, _partition_by: str) -> None:
    """core.tables.fitting.FitsTable of tables in memory."""
