"""The files of a table, and a commit that removes some of them: those that were joined, or given up.

Rules:
- The commit is tried on the last version, as long as all that it removes is still in it: writers, whose commits add
  rows, go on meanwhile. Of two that replace one file the second does nothing.
- A table with features that are not ours is left alone: nobody here knows what else is to be kept of it (rows that are
  marked as deleted, columns under other names).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_replication.tables.delta_table import UPLOAD_AGE_MS_MAX, ParquetUpload, TableOwner, open_table
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.parquet_files import Key, as_text
from spark_replication.tables.types import TIMESTAMP

ATTEMPTS_MAX = 50
_KNOWN_FEATURES = {"timestampNtz"}


class TableFile(NamedTuple):
    """A file of the table."""

    path: str
    bytes: int
    written_ms: int
    #: The values of the columns that the table is partitioned by.
    key: Key
    #: The time of its newest row, as Delta's statistics have it. None: they have none.
    newest_ms: int | None = None


def is_known(opened: DeltaTable) -> bool:
    """Whether the table has no features but those that are ours."""
    return _KNOWN_FEATURES.issuperset(opened.protocol().reader_features or ())


def files_in(opened: DeltaTable) -> list[TableFile]:
    """The files of this version, oldest first."""
    found = pa.table(opened.get_add_actions(flatten=False))
    keys = found["partition"].to_pylist() if "partition" in found.column_names else [{}] * len(found)
    columns = opened.metadata().partition_columns
    files = [
        TableFile(path, size, written_ms, tuple(as_text(key.get(name)) for name in columns), newest_ms)
        for path, size, written_ms, key, newest_ms in zip(
            found["path"].to_pylist(),
            found["size_bytes"].to_pylist(),
            found["modification_time"].to_pylist(),
            keys,
            _newest_ms(found),
            strict=True,
        )
    ]
    return sorted(files, key=lambda file: (file.written_ms, file.path))


def _newest_ms(actions: pa.Table) -> list[int | None]:
    """The time of the newest row of each file."""
    if "max" in actions.column_names and actions.schema.field("max").type.get_field_index(TIMESTAMP) >= 0:
        newest = pc.struct_field(actions["max"], TIMESTAMP)
        if pa.types.is_timestamp(newest.type):
            found: list[int | None] = (
                newest.cast(pa.timestamp("ms", newest.type.tz), safe=False).cast(pa.int64()).to_pylist()
            )
            return found
    return [None] * len(actions)


def replace_files(
    folder: TableFolder,
    owner: TableOwner,
    files: Sequence[TableFile],
    now_ms: Callable[[], int],
    *,
    by: ParquetUpload | None = None,
    transactions: Sequence[Transaction] = (),
) -> bool:
    """Remove these from the table in one commit, whose transactions these are. by: has all of their rows, and comes in
    their place; None: the rows go. False: one of them has gone meanwhile, or others are always faster."""
    properties = CommitProperties(None, 0, list(transactions) or None)
    for _ in range(ATTEMPTS_MAX):
        opened = open_table(folder, owner)
        if opened is None or not set(files) <= set(files_in(opened)):
            return False
        if by is not None and now_ms() - by.written_ms > UPLOAD_AGE_MS_MAX:
            return False
        columns = opened.metadata().partition_columns
        try:
            opened.create_write_transaction(
                [*_added(by), *(_removed(file, columns, now_ms(), is_change=by is None) for file in files)],
                mode="append",
                schema=opened.schema(),
                partition_by=columns,
                commit_properties=properties,
            )
        except CommitFailedError:
            continue  # whatever the reason is: it is tried so often, and left to the next time
        folder.sync_version(opened.version() + 1)
        return True
    return False


def _added(by: ParquetUpload | None) -> list[AddAction]:
    if by is None:
        return []
    return [AddAction(by.path, by.bytes, dict(by.partition_values), by.written_ms, False, by.statistics)]


def _removed(file: TableFile, columns: Sequence[str], now_ms: int, *, is_change: bool) -> RemoveAction:
    """is_change: it takes rows along."""
    return RemoveAction(file.path, is_change, now_ms, file.bytes, dict(zip(columns, file.key, strict=True)))
