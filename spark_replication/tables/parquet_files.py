"""The Parquet files of one commit, written beside a topic's table before it.

Rules:
- Rows come in the order of (_partition, _offset), and lie in the files as they came. One file may hold several
  partitions, and a partition several files.
- What is held in memory is one group of rows, whatever is written: a group is written once it has GROUP_BYTES.
- A file is closed once it is as large as `table.file.bytes` says. Of a table that is partitioned, one file of each
  partition value is open, FILES_OPEN_MAX at most; Delta keeps such a column beside the file, where an empty text is
  null.
- Nothing is done row by row. A GB of Arrow's bytes takes two thirds of the processor's time that write_deltalake takes,
  and as much as pyarrow's Parquet of ready columns (2.7, 4.1 and 2.6 s on a busy machine, zstd and statistics in all):
  whole numbers are written as differences, which saves a tenth of the bytes, too, and dictionaries are only for our
  columns that hardly change (with dictionaries for all: 3.4 s).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_replication.errors import StorageFailed
from spark_replication.model import EpochOrNone, Offset, PartitionNumber, require
from spark_replication.tables.delta_table import ParquetUpload, TableLayout
from spark_replication.tables.folder import Sink, TableFolder
from spark_replication.tables.statistics import FloatingColumn, statistics, with_bounds
from spark_replication.tables.types import DAY, LEADER_EPOCH, OFFSET, OURS, PARTITION, TIMESTAMP, fitted

GROUP_BYTES = 16 << 20
FILES_OPEN_MAX = 32
_DAY_MS = 86_400_000
_US_PER_MS = 1_000

Key = tuple[str | None, ...]


class StoredRows(NamedTuple):
    """A stored batch of a topic, or a part of one: contiguous rows."""

    partition: PartitionNumber
    first_offset: Offset
    #: When its leader appended it, and at which epoch.
    timestamp_ms: int
    leader_epoch: EpochOrNone
    batch: pa.RecordBatch


class TableFiles:
    """Not thread-safe."""

    def __init__(self, folder: TableFolder, layout: TableLayout, *, file_bytes: int, now_ms: Callable[[], int]) -> None:
        self._folder = folder
        self._layout = layout
        self._file_bytes = file_bytes
        self._now_ms = now_ms
        self._group: list[StoredRows] = []
        self._group_bytes = 0
        self._next = (-1, -1)
        self._open: dict[Key, OpenFile] = {}
        self._written: list[ParquetUpload] = []

    def add(self, rows: StoredRows) -> None:
        """StorageFailed: none of these files will be of use."""
        require(
            (rows.partition, rows.first_offset) >= self._next,
            f"partition {rows.partition} from {rows.first_offset} comes after {self._next}",
        )
        self._next = (rows.partition, rows.first_offset + len(rows.batch))
        self._group.append(rows)
        self._group_bytes += rows.batch.nbytes
        if self._group_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> list[ParquetUpload]:
        """End the files: all that was added is in them, durably. StorageFailed: as for `add`."""
        self._write_group()
        for key in list(self._open):
            self._close(key)
        return self._written

    def drop(self) -> None:
        """Remove the files of a commit that was not made, and never will be. What cannot be removed is swept later."""
        paths = [*(file.path for file in self._open.values()), *(written.path for written in self._written)]
        for file in self._open.values():
            with contextlib.suppress(StorageFailed), self._folder.translated("end a file"):
                file.given_up()
        for path in paths:
            with contextlib.suppress(StorageFailed), self._folder.translated("remove a file that is in no commit"):
                self._folder.remove(path)
        self._open, self._written, self._group = {}, [], []

    def _write_group(self) -> None:
        group, self._group, self._group_bytes = self._group, [], 0
        with self._folder.translated("store a file"):
            for rows in table_batches(group, self._layout.schema):
                for key, part in _by_key(rows, self._layout.partition_by):
                    self._write(key, part)

    def _write(self, key: Key, rows: pa.RecordBatch) -> None:
        if key not in self._open:
            if len(self._open) == FILES_OPEN_MAX:
                self._close(next(iter(self._open)))
            self._open[key] = OpenFile(self._folder, rows.schema)
        self._open[key].write(rows)
        if self._open[key].bytes >= self._file_bytes:
            self._close(key)

    def _close(self, key: Key) -> None:
        with self._folder.translated("store a file"):
            self._written.append(
                self._open[key].closed(self._now_ms(), dict(zip(self._layout.partition_by, key, strict=True)))
            )
        del self._open[key]


class OpenFile:
    """A file under way, whose rows have this schema."""

    def __init__(self, folder: TableFolder, schema: pa.Schema) -> None:
        self.path = f"{uuid.uuid4()}.parquet"
        self.sink = _Counting(folder.create(self.path))
        self._schema = schema
        self._floating = {field.name: FloatingColumn() for field in schema if pa.types.is_floating(field.type)}
        self._footers: list[pq.FileMetaData] = []
        self._rows = 0
        constant = [name for name in (PARTITION, TIMESTAMP, LEADER_EPOCH) if name in schema.names]
        self._writer = pq.ParquetWriter(
            self.sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=constant,
            column_encoding={name: "DELTA_BINARY_PACKED" for name in _whole_numbers(schema) if name not in constant},
            coerce_timestamps="us",
            write_statistics=with_bounds(schema),
            # Readers take the columns' types from Parquet: Arrow's own would say the same again.
            store_schema=False,
            metadata_collector=self._footers,
        )

    @property
    def bytes(self) -> int:
        return self.sink.bytes

    def write(self, rows: pa.RecordBatch) -> None:
        for name, known in self._floating.items():
            self._floating[name] = known.with_rows(rows.column(name))
        self._writer.write_batch(rows, row_group_size=len(rows))
        self._rows += len(rows)

    def given_up(self) -> None:
        self._writer.is_open = False  # or it would write a footer, now or as it is collected
        self.sink.close()

    def closed(self, now_ms: int, partition_values: dict[str, str | None]) -> ParquetUpload:
        self._writer.close()
        self.sink.close()
        return ParquetUpload(
            path=self.path,
            bytes=self.sink.bytes,
            written_ms=now_ms,
            row_count=self._rows,
            statistics=statistics(self._footers[0], self._schema, self._floating),
            partition_values=partition_values,
        )


class _Counting:
    """A sink, as pyarrow writes to it."""

    def __init__(self, sink: Sink) -> None:
        self.closed = False
        self.bytes = 0
        self._sink = sink

    def write(self, data: bytes | memoryview) -> int:
        self.bytes += len(data)
        return self._sink.write(data)

    def flush(self) -> None: ...

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._sink.close()


def _whole_numbers(schema: pa.Schema) -> Iterator[str]:
    for field in schema:
        if pa.types.is_integer(field.type) or pa.types.is_temporal(field.type):
            yield field.name


def table_batches(group: Sequence[StoredRows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """These rows as the table has them. Batches of one schema are made one first: small batches cost as large ones."""
    for found, run in groupby(group, lambda rows: rows.batch.schema):
        taken = list(run)
        table = pa.Table.from_batches([rows.batch for rows in taken], found)
        if len(taken) > 1:
            table = table.combine_chunks()
        ours = _ours(taken, schema)
        at = 0
        for batch in table.to_batches():
            columns = dict(zip(_names_of_topic(schema), fitted(batch, schema), strict=True))
            columns |= {name: column.slice(at, len(batch)) for name, column in ours.items()}
            at += len(batch)
            yield pa.record_batch([columns[name] for name in schema.names], schema)


def _names_of_topic(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in OURS.names and name != DAY]


def _ours(run: Sequence[StoredRows], schema: pa.Schema) -> dict[str, pa.Array]:
    """The columns of the table that the topic does not have."""
    counts = np.array([len(rows.batch) for rows in run])
    places = np.arange(counts.sum(), dtype=np.int64)
    # What is to be added to a row's place to be its offset: the same for all rows of a batch.
    ahead = np.array([rows.first_offset for rows in run], np.int64) - (np.cumsum(counts) - counts)
    times_ms = np.array([rows.timestamp_ms for rows in run], np.int64)
    of_batches = {
        PARTITION: np.array([rows.partition for rows in run], np.int32),
        OFFSET: ahead,
        TIMESTAMP: times_ms * _US_PER_MS,
        LEADER_EPOCH: np.array([rows.leader_epoch for rows in run], np.int32),
        DAY: (times_ms // _DAY_MS).astype(np.int32),
    }
    found = {}
    for name in (*OURS.names, DAY):
        if name in schema.names:
            values = np.repeat(of_batches[name], counts) + (places if name == OFFSET else 0)
            found[name] = pa.array(values).view(schema.field(name).type)
    return found


def _by_key(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each value of these columns, without the columns: a partitioned table has them beside its files."""
    if not columns:
        yield (), rows
        return
    rest = rows.drop_columns(list(columns))
    codes, values = np.zeros(len(rows), np.int64), []
    for name in columns:
        encoded = pc.dictionary_encode(rows.column(name), null_encoding="encode")
        values.append([as_text(value) for value in encoded.dictionary.to_pylist()])
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    for code in np.unique(codes):
        key: list[str | None] = []
        left = int(code)
        for each in reversed(values):
            left, place = divmod(left, len(each))
            key.append(each[place])
        yield tuple(reversed(key)), rest.take(pa.array(np.flatnonzero(codes == code)))


def as_text(value: object) -> str | None:
    """A value of a column that the table is partitioned by, as Delta writes it."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
