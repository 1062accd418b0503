"""The oldest files of a table are removed from it, as `table.retention.*` say (`core.tables.retaining`), in one commit.

Rules:
- The commit names where partitions begin from then on. A version that has all of these files still begins where the
  one before did (`replacing`).
- A reader of an earlier version has its files for as long as those of others: they are swept (`upkeep`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from spark_replication.core.tables.retaining import AgedFile, RowsOfPartition, TableRetention, beyond_limits, given_up
from spark_replication.core.tables.table import TableVersion
from spark_replication.model import Offset, PartitionNumber
from spark_replication.tables.delta_table import TableOwner, last_version
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.replacing import TableFile, files_in, is_known, replace_files
from spark_replication.tables.table_log import TableLog
from spark_replication.tables.types import OFFSET, PARTITION

BATCH_ROWS = 64 << 10
FILES_MAX = 1_000  # at a time: what each has is read


def retain(folder: TableFolder, owner: TableOwner, retention: TableRetention, now_ms: Callable[[], int]) -> int:
    """Remove from the table what is beyond these limits. Returns how many files were: 0, too, if somebody else has done
    so meanwhile."""
    if not retention.is_on:
        return 0
    with folder.translated("give up its oldest rows"):
        found = last_version(folder, owner, TableLog(folder))
        if found is None or not is_known(found[0]):
            return 0
        opened, version = found
        files = {file.path: file for file in files_in(opened)}
        aged = [AgedFile(file.path, file.bytes, file.newest_ms) for file in files.values()]
        due = beyond_limits(aged, retention, now_ms())[:FILES_MAX]
        if not due:
            return 0
        columns = opened.metadata().partition_columns
        of_files = {file.path: _rows_of(folder, files[file.path], columns) for file in due}
        going = given_up(of_files, _starts_of(opened, version))
        removed = [files[path] for path in going.paths]
        starts = [owner.start(*each) for each in going.starts.items()]
        if not removed or not replace_files(folder, owner, removed, now_ms, transactions=starts):
            return 0
        return len(removed)


def _rows_of(
    folder: TableFolder, source: TableFile, partition_columns: list[str]
) -> Mapping[PartitionNumber, RowsOfPartition]:
    values = dict(zip(partition_columns, source.key, strict=True))
    counts: dict[PartitionNumber, int] = defaultdict(int)
    ends: dict[PartitionNumber, Offset] = {}
    with folder.opened(source.path) as file:
        for rows in _places(pq.ParquetFile(file, pre_buffer=False), values):
            for partition, count, last in _of_partitions(rows):
                counts[partition] += count
                ends[partition] = max(last + 1, ends.get(partition, 0))
    return {partition: RowsOfPartition(counts[partition], end) for partition, end in ends.items()}


def _places(file: pq.ParquetFile, values: Mapping[str, str | None]) -> Iterator[pa.Table]:
    """Where the rows of the file lie. values: of the columns that the table is partitioned by, which no file has."""
    told = [name for name in (PARTITION, OFFSET) if name not in values]
    for batch in file.iter_batches(BATCH_ROWS, columns=told, use_threads=False):
        yield pa.table(
            {
                name: batch.column(name) if name in told else pa.repeat(int(str(values[name])), len(batch))
                for name in (PARTITION, OFFSET)
            }
        )


def _of_partitions(rows: pa.Table) -> Iterator[tuple[PartitionNumber, int, Offset]]:
    """How many of these rows each partition has, and the last offset of them."""
    found = rows.group_by(PARTITION).aggregate([(OFFSET, "count"), (OFFSET, "max")])
    columns = (found[name].to_pylist() for name in (PARTITION, f"{OFFSET}_count", f"{OFFSET}_max"))
    yield from zip(*columns, strict=True)


def _starts_of(opened: DeltaTable, version: TableVersion) -> Mapping[PartitionNumber, Offset]:
    """Where the table has the first row of each partition. What an earlier release began is looked at."""
    if version.starts.keys() >= version.ends.keys():
        return version.starts
    query = (
        QueryBuilder()
        .register("rows", opened)
        .execute(f'SELECT "{PARTITION}", MIN("{OFFSET}") FROM rows GROUP BY "{PARTITION}"')
    )
    found = pa.RecordBatchReader.from_stream(query).read_all()
    return {**dict(zip(found[0].to_pylist(), found[1].to_pylist(), strict=True)), **version.starts}
