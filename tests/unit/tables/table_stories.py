"""Topics, and what is written of them, for stories about one table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from spark_replication.core.tables.table import RowRange, TableVersion
from spark_replication.process.threads import now_ms
from spark_replication.tables.delta_table import DeltaTopicTable, ParquetUpload
from spark_replication.tables.parquet_files import StoredRows, TableFiles
from spark_replication.tables.replacing import files_in

FILE_BYTES = 8 << 20


def rows(partition: int, start: int, end: int, epoch: int = 0) -> RowRange:
    return RowRange(partition=partition, start=start, end=end, last_epoch=epoch, confirmed_epoch=epoch)


def uploads(table: DeltaTopicTable, stored: Iterable[StoredRows], file_bytes: int = FILE_BYTES) -> list[ParquetUpload]:
    files = TableFiles(table.folder, table.layout(), file_bytes=file_bytes, now_ms=now_ms)
    for each in stored:
        files.add(each)
    return files.close()


def numbers(added: RowRange, schema: pa.Schema) -> StoredRows:
    """Rows whose columns all are their offset."""
    column = pa.array(range(added.start, added.end))
    batch = pa.record_batch([column.cast(field.type) for field in schema], schema)
    return StoredRows(added.partition, added.start, now_ms(), added.last_epoch, batch)


def commit(table: DeltaTopicTable, schema: pa.Schema, *added: RowRange, on: TableVersion | None = None) -> TableVersion:
    files = uploads(table, [numbers(each, schema) for each in added])
    return table.commit(table.load() if on is None else on, added, files)


def opened(table: DeltaTopicTable) -> DeltaTable:
    found = table.opened()
    assert found is not None
    return found


def contents(table: DeltaTopicTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = opened(table).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def files_of(table: DeltaTopicTable) -> list[str]:
    return [file.path for file in files_in(opened(table))]


def data_files(uri: str) -> set[str]:
    return {str(path.relative_to(uri)) for path in Path(uri).rglob("*.parquet") if "_delta_log" not in path.parts}


def made_older(path: Path, by_ms: int) -> None:
    then = path.stat().st_mtime - by_ms / 1000
    os.utime(path, (then, then))


def checkpointed(uri: str) -> None:
    """As after weeks: nothing of the log is left but a checkpoint."""
    opened = DeltaTable(uri)
    opened.create_checkpoint()
    for each in (Path(uri) / "_delta_log").glob("*.json"):
        if each.stem != f"{opened.version():020}":
            each.unlink()
