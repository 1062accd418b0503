"""Small files of a table, written anew as larger ones, in one commit that removes and adds (TB3).

Rules:
- No transaction is named, and no row is changed, added or left out: writers go on meanwhile (`replacing`).
- Oldest first: within a partition the offsets of a joined file rise, as they do in the files that it is made of.
- Files in folders are others' work.
- What is written for a commit that may have been stored is never removed, but swept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from spark_replication.tables.delta_table import ParquetUpload, TableOwner, open_table
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.parquet_files import GROUP_BYTES, Key, OpenFile
from spark_replication.tables.replacing import TableFile, files_in, is_known, replace_files

JOINED_MIN = 16
BATCH_ROWS = 64 << 10


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
            if not replace_files(folder, owner, sources, now_ms, by=made):
                break
            joined += len(sources)
        return joined


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
