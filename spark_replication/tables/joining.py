"""Small files of a table, written anew as larger ones, in one commit that removes and adds (TB3).

Rules:
- No transaction is named, and no row is changed, added or left out: writers go on meanwhile. The commit is tried on the
  last version, as long as all that it removes is still in it.
- Oldest first: within a partition the offsets of a joined file rise, as they do in the files that it is made of.
- Files in folders are others' work, and so is a table with features that are not ours: nobody here knows what else is
  to be kept of them (rows that are marked as deleted, columns under other names).
- What is written for a commit that may have been stored is never removed, but swept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_replication.tables.delta_table import UPLOAD_AGE_MS_MAX, ParquetUpload, TableOwner, open_table
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.parquet_files import GROUP_BYTES, Key, OpenFile, as_text
from spark_replication.tables.types import TIMESTAMP

JOINED_MIN = 16
BATCH_ROWS = 64 << 10
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


def join(
    folder: TableFolder,
    owner: TableOwner,
    file_bytes: int,
    now_ms: Callable[[], int],
    at_least: int = JOINED_MIN,
) -> int:
    """Join files that are far smaller than file_bytes, if there are `at_least`. Returns how many were."""
    with folder.translated("join files"):
        opened = open_table(folder, owner)
        if opened is None or not is_known(opened):
            return 0
        small = _small(files_in(opened), file_bytes)
        if len(small) < at_least:
            return 0
        joined = 0
        for sources in _together(small, file_bytes):
            made = _written(folder, opened, sources, now_ms)
            if not _committed(folder, owner, sources, made, now_ms):
                break
            joined += len(sources)
        return joined


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


def _small(files: Iterable[TableFile], file_bytes: int) -> list[TableFile]:
    return [file for file in files if 2 * file.bytes < file_bytes and "/" not in file.path]


def _together(small: Iterable[TableFile], file_bytes: int) -> Iterator[list[TableFile]]:
    """Which files become one, in their order: of one partition value, and as large as a file is to be."""
    of_keys: dict[Key, list[TableFile]] = defaultdict(list)
    for file in small:
        of_keys[file.key].append(file)
    for files in of_keys.values():
        taken: list[TableFile] = []
        for file in files:
            taken.append(file)
            if sum(each.bytes for each in taken) >= file_bytes:
                yield taken
                taken = []
        if len(taken) > 1:
            yield taken


def _written(
    folder: TableFolder, opened: DeltaTable, sources: Sequence[TableFile], now_ms: Callable[[], int]
) -> ParquetUpload:
    columns = opened.metadata().partition_columns
    whole = pa.schema(Schema.from_arrow(opened.schema()))
    schema = pa.schema([field for field in whole if field.name not in columns])
    file = OpenFile(folder, schema)
    for rows in _groups(folder, sources, schema):
        file.write(rows)
    return file.closed(now_ms(), dict(zip(columns, sources[0].key, strict=True)))


def _groups(folder: TableFolder, sources: Iterable[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of these files, GROUP_BYTES at a time."""
    group: list[pa.RecordBatch] = []
    group_bytes = 0
    for source in sources:
        with folder.opened(source.path) as file:
            for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(BATCH_ROWS, use_threads=False):
                group.append(_widened(batch, schema))
                group_bytes += batch.nbytes
                if group_bytes >= GROUP_BYTES:
                    yield from pa.Table.from_batches(group).combine_chunks().to_batches()
                    group, group_bytes = [], 0
    if group:
        yield from pa.Table.from_batches(group).combine_chunks().to_batches()


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows as the table has them: a file may be older than the table's last columns."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema)


def _committed(
    folder: TableFolder,
    owner: TableOwner,
    sources: Sequence[TableFile],
    made: ParquetUpload,
    now_ms: Callable[[], int],
) -> bool:
    for _ in range(ATTEMPTS_MAX):
        opened = open_table(folder, owner)
        if opened is None or not set(sources) <= set(files_in(opened)):
            return False
        if now_ms() - made.written_ms > UPLOAD_AGE_MS_MAX:
            return False
        values = dict(made.partition_values)
        added = AddAction(made.path, made.bytes, values, made.written_ms, False, made.statistics)
        removed = [RemoveAction(source.path, False, now_ms(), source.bytes, values) for source in sources]
        try:
            opened.create_write_transaction(
                [added, *removed],
                mode="append",
                schema=opened.schema(),
                partition_by=opened.metadata().partition_columns,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            continue  # whatever the reason is: it is tried so often, and left to the next time
        folder.sync_version(opened.version() + 1)
        return True
    return False
