"""A Delta table as one cluster's controllers write it, by delta-rs: no Spark, no JVM.

Rules:
- A write is made on one version of the table, and stored only if that is still the last; otherwise it is made again, on
  a newer one. So what the write rests on (whose table it is, which rows there are, the low-water mark) holds as it is
  stored.
- A property of the table names its cluster. Another cluster's table is refused, and left as it is (M6).
- Tombstones may go once the low-water mark, a property too, has risen to them. From then on no row from below the mark
  is inserted, however late its writer comes (M2), except by a writer that knows everything that was stored at the mark,
  or later.
- Earlier versions are kept for as long as `history` says. A property of the table says so to everybody who tidies it.
- Each appended batch has a number, and the table keeps the last: a batch is there once, however often it is written.
- So has a set of rows that replaces all others: that of its writer's term. It does not replace what a later term wrote.
- Columns that the table lacks are added, empty (M6).
- If the folder of the tables is to have a mode, it has that before anything is written below it. delta-rs knows of no
  modes of files, so that folder alone says who reaches them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from spark_replication.errors import StorageFailed, WrongCluster
from spark_replication.mirror.delta.aside import TableTask, Work, done_aside
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.delta.paths import is_remote
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.mirror.tables.columns import Table
from spark_replication.mirror.tables.history import (
    HISTORY,
    RETENTION_OF_DATA,
    RETENTION_OF_LOG,
    StoredFile,
    as_interval,
    from_interval,
    is_due,
    retention,
)
from spark_replication.process.files import own_directory

OWNER = "spark_replication.cluster_id"
LOW_WATER = "spark_replication.low_water_zxid"
APPENDED = "spark_replication.appended"  # the transaction by which a table keeps the last number
REPLACED = "spark_replication.replaced"
ATTEMPTS_MAX = 50
NOT_ALL = -1
COMMITS_PER_CHECKPOINT = 100
WRITES_UNTIDY = 60
# delta-rs must not repeat a write by itself: a concurrent write may have changed what this one rests on.
_ONCE = CommitProperties(max_commit_retries=0)
_SMALL = WriterProperties(compression="ZSTD", compression_level=1)  # a third fewer bytes than delta-rs' own choice

Live = TypeVar("Live")


class DeltaFile(Generic[Live]):
    """Not thread-safe: one thread uses it. Other writers may write the same table, in this process or another."""

    def __init__(
        self,
        table: Table[Live],
        uri: str,
        cluster_id: str,
        store: StoreOptions = PATIENCE,
        *,
        folder_mode: int | None = None,
    ) -> None:
        """folder_mode: the permissions of the folder that has the table and its fellows. None: as they are."""
        self.uri = uri
        self._folder_mode = folder_mode
        self._store = dict(store)
        self._table = table
        self._cluster_id = cluster_id
        self._open: DeltaTable | None = None
        self._writes = 0

    def merge(self, rows_for: Callable[[DeltaTable], pa.Table], *, as_of: int = NOT_ALL) -> None:
        """Merge rows into the table, of each key the one that counts. StorageFailed: nothing was changed, or all of
        it.

        rows_for: makes the rows for the version that they are merged into, at most one of a key. as_of: the zxid at
        which the rows are everything that was stored, so that they are compared with the table as it is now, whoever
        has written it.
        """
        if as_of != NOT_ALL:
            self._open = None

        def merge(opened: DeltaTable) -> None:
            told = rows_for(opened)
            if not len(told):
                return
            low_water = _low_water(opened)
            above = None if as_of >= low_water else f"told.zxid > {low_water}"
            self._writes += 1
            becomes = {name: f"told.{name}" for name in self._table.schema.names}
            (
                opened.merge(
                    told,
                    " AND ".join(f"stored.{name} = told.{name}" for name in self._table.key),
                    source_alias="told",
                    target_alias="stored",
                    commit_properties=_ONCE,
                    writer_properties=_SMALL,
                )
                .when_matched_update({**becomes, **self._table.special}, self._table.counts)
                .when_not_matched_insert(becomes, above)
                .execute()
            )

        self._written(merge)

    def append(self, rows_for: Callable[[DeltaTable, int], tuple[pa.Table, int]]) -> None:
        """Append rows. StorageFailed: as for `merge`.

        rows_for(opened, last): makes the rows that come after the number `last`, for this version of the table, and
        returns them with their last number.
        """

        def append(opened: DeltaTable) -> None:
            last = opened.transaction_version(APPENDED)
            rows, number = rows_for(opened, -1 if last is None else last)
            if not len(rows):
                return
            self._writes += 1
            once = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(APPENDED, number)])
            write_deltalake(opened, rows, mode="append", commit_properties=once, writer_properties=_SMALL)

        self._written(append)

    def replace(self, rows: pa.Table, term: int) -> None:
        """Put these rows in the place of all that there are, unless a later term has. StorageFailed: as for `merge`."""

        def replace(opened: DeltaTable) -> None:
            last = opened.transaction_version(REPLACED)
            if last is not None and last > term:
                return
            if not len(rows) and not len(rows_of(opened, self._table.key)):
                return
            self._writes += 1
            once = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(REPLACED, term)])
            write_deltalake(opened, rows, mode="overwrite", commit_properties=once, writer_properties=_SMALL)

        self._written(replace)

    def read(self, columns: Iterable[str], where: str | None = None) -> pa.Table:
        """Rows of the table as it is now, whoever has written it."""
        with self._translated():
            self._open = None
            return rows_of(self._opened(), columns, where)

    def remove(self, predicate: str) -> None:
        def remove(opened: DeltaTable) -> None:
            opened.delete(predicate, commit_properties=_ONCE)

        self._written(remove)

    def forget(self, zxid: int) -> None:
        """Remove tombstones up to this zxid."""
        if not self._aside("forget", zxid):
            self.forget_here(zxid)

    def tidy(self, history_bytes: int) -> None:
        """Compact small files, and remove what is older than the history that is kept (M3)."""
        self._writes = 0  # if it fails, it is tried again after as many writes
        if not self._aside("tidy", history_bytes):
            self.tidy_here(history_bytes)

    def _aside(self, work: Work, argument: int) -> bool:
        """Have another process do it if the table is in an object store. False: this process has to."""
        if not is_remote(self.uri):
            return False
        self._open = None
        done_aside(
            TableTask(
                table=self._table.name,
                uri=self.uri,
                cluster_id=self._cluster_id,
                store=self._store,
                work=work,
                argument=argument,
            )
        )
        return True

    def forget_here(self, zxid: int) -> None:
        """As `forget`, by this process."""

        def raise_low_water(opened: DeltaTable) -> None:
            if _low_water(opened) < zxid:
                opened.alter.set_table_properties({LOW_WATER: str(zxid)}, raise_if_not_exists=False)

        def delete(opened: DeltaTable) -> None:
            opened.delete(f"deleted AND zxid <= {min(zxid, _low_water(opened))}", commit_properties=_ONCE)

        self._written(raise_low_water)
        self._written(delete)

    def tidy_here(self, history_bytes: int) -> None:
        """As `tidy`, by this process."""

        def compact(opened: DeltaTable) -> None:
            opened.optimize.compact(commit_properties=_ONCE, writer_properties=_SMALL)

        def keep(opened: DeltaTable) -> None:
            properties = opened.metadata().configuration
            wanted = retention(
                self._files(opened), history_bytes, datetime.now(UTC), keeps_versions=self._table.keeps_versions
            )
            due = {name: time for name, time in wanted.items() if is_due(from_interval(properties.get(name)), time)}
            if due:
                told = {name: as_interval(time) for name, time in due.items()}
                opened.alter.set_table_properties(told, raise_if_not_exists=False)

        def remove(opened: DeltaTable) -> None:
            opened.vacuum(dry_run=False, enforce_retention_duration=False, full=True, commit_properties=_ONCE)
            opened.create_checkpoint()
            opened.cleanup_metadata()

        self._written(compact)
        self._written(keep)
        self._written(remove)

    @property
    def is_untidy(self) -> bool:
        """Whether so much was written since the table was tidied that it should be done soon."""
        return self._writes >= WRITES_UNTIDY

    def open(self) -> None:
        """Make sure that the table is there, ours, and has all columns. Every write does so, too."""
        self._written(lambda _opened: None)

    def _written(self, write: Callable[[DeltaTable], None]) -> None:
        with self._translated():
            for _ in range(ATTEMPTS_MAX):
                try:
                    write(self._opened())
                    return
                except CommitFailedError:
                    self._open = None
            raise StorageFailed(f"{self.uri} was written by others {ATTEMPTS_MAX} times meanwhile: it is tried again")

    def _opened(self) -> DeltaTable:
        if self._open is None:
            if self._folder_mode is not None:
                own_directory(Path(self.uri).parent, self._folder_mode)
            try:
                found = DeltaTable(self.uri, storage_options=self._store)
            except TableNotFoundError:
                found = self._created()
            self._claim(found)
            self._widen(found)
            self._open = found
        return self._open

    def _created(self) -> DeltaTable:
        return DeltaTable.create(
            self.uri,
            self._table.schema,
            mode="ignore",
            name=self._table.name,
            description=self._table.comment,
            configuration={
                OWNER: self._cluster_id,
                "delta.enableChangeDataFeed": "true",
                "delta.checkpointInterval": str(COMMITS_PER_CHECKPOINT),
                **{name: as_interval(HISTORY) for name in (RETENTION_OF_DATA, RETENTION_OF_LOG)},
            },
            raise_if_key_not_exists=False,
            storage_options=self._store,
        )

    def _claim(self, found: DeltaTable) -> None:
        """Make sure that the table is this cluster's."""
        owner = found.metadata().configuration.get(OWNER)
        if owner != self._cluster_id:
            whose = "name no cluster" if owner is None else f"are cluster {owner}'s"
            raise WrongCluster(
                f"the tables at {self.uri} {whose}, and this is cluster {self._cluster_id}: they stay as they are. "
                "Name another place (mirror.path), or remove them"
            )

    def _widen(self, found: DeltaTable) -> None:
        there = set(_names(found))
        wanted = Schema.from_arrow(self._table.schema)
        missing = [field for field in wanted.fields if field.name not in there]
        if missing:
            found.alter.add_columns(missing)

    def _files(self, opened: DeltaTable) -> list[StoredFile]:
        folder = PyFileSystem(DeltaStorageHandler(opened.table_uri, self._store))
        found = folder.get_file_info(FileSelector("", recursive=True))
        return [StoredFile(each.path, each.size, each.mtime) for each in found if each.type is FileType.File]

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, pa.ArrowException, OSError) as error:
            self._open = None
            reason = " ".join(str(error).splitlines()[:2]) or type(error).__name__
            raise StorageFailed(
                f"the mirror at {self.uri} was not written: {reason}. Check that this process can write to mirror.path"
            ) from error


def stored_columns(opened: DeltaTable, *names: str) -> list[list[Any]]:
    table = rows_of(opened, names)
    return [table[name].to_pylist() for name in names]


def _names(found: DeltaTable) -> list[str]:
    return [field.name for field in found.schema().fields]


def _low_water(opened: DeltaTable) -> int:
    return int(opened.metadata().configuration.get(LOW_WATER) or -1)
