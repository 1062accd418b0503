"""Batches whose rows say where they belong, and what a log gives back of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from spark_replication.config import TopicSettings
from spark_replication.model import Offset
from spark_replication.ports import LogSlice, PreparedBatch
from spark_replication.storage.disk.files import Files, LocalFiles
from spark_replication.storage.format.batches import TopicSchema, batches_of, check_data, prepare
from spark_replication.storage.log.high_watermarks import HighWatermarks
from spark_replication.storage.log.partition_log import PartitionLog
from spark_replication.storage.log.recovery import WholeLog, recover
from spark_replication.storage.log.segment_memory import SegmentMemory

SCHEMA = pa.schema([pa.field("row", pa.int64()), pa.field("text", pa.string())])
TOPIC = TopicSchema(SCHEMA)
WIDER = SCHEMA.append(pa.field("late", pa.int8()))
WIDENED = TopicSchema(WIDER, (2,))


class StoryLog(PartitionLog):
    """It has its broker's high watermarks to itself, in its own folder unless `log_in` is told of another."""

    def __init__(self, recovered: WholeLog, *, settings: TopicSettings, distrust: Callable[[], None]) -> None:
        super().__init__(recovered, settings=settings, distrust=distrust)
        self._saving = recovered.high_watermarks

    def checkpoint(self, high_watermark: Offset) -> None:
        """And saved, so that it outlives this process."""
        super().checkpoint(high_watermark)
        self._saving.save(durable=False)


Open = Callable[..., StoryLog]


def log_in(
    folder: Path,
    *,
    segment_bytes: int = 1 << 20,
    segment_ms: int = 1 << 40,
    before_cut: Callable[[], None] = lambda: None,
    distrust: Callable[[], None] = lambda: None,
    files: Files | None = None,
    directory: Path | None = None,
    batch_bytes_max: int = 1 << 20,
    flush: Literal["none", "interval", "always"] = "none",
) -> StoryLog:
    """The log in `folder`, recovered."""
    files = files or LocalFiles(open_files_max=10)
    recovered = recover(
        folder,
        before_cut,
        files=files,
        memory=SegmentMemory(index_bytes_max=1 << 20, batch_bytes_max=batch_bytes_max),
        high_watermarks=HighWatermarks(directory or folder, files),
    )
    settings = TopicSettings(segment_bytes=segment_bytes, segment_ms=segment_ms, flush=flush)
    return StoryLog(recovered, settings=settings, distrust=distrust)


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = list(range(first, first + count))
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"row {n}" for n in numbers])], schema=SCHEMA)


def prepared(
    first: int, count: int = 2, *, topic: TopicSchema = TOPIC, producer: int = -1, sequence: int = -1
) -> PreparedBatch:
    return prepare(
        rows(first, count),
        topic,
        batch_bytes_max=1 << 20,
        producer=producer,
        producer_epoch=0 if producer >= 0 else -1,
        sequence=sequence,
    )


def files_of(folder: Path) -> dict[str, bytes]:
    """The segments' files, byte for byte."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("0*"))}


def read(log: PartitionLog, offset: int, *, bytes_max: int, end: int) -> LogSlice | None:
    """Found, and read at once."""
    found = log.find(offset, bytes_max=bytes_max, end=end)
    return None if found is None else found.loaded()


def read_rows(log: PartitionLog, start: int = 0) -> list[int]:
    """Every row from the batch that holds `start`."""
    return [row for batch in read_batches(log, start) for row in batch.column("row").to_pylist()]


def read_batches(log: PartitionLog, start: int = 0) -> Iterator[pa.RecordBatch]:
    """As a reader gets them: slice by slice."""
    while (records := read(log, start, bytes_max=1 << 12, end=log.log_end)) is not None:
        check_data(records)
        yield from (batch for _, batch in batches_of(records))
        start = records.next_offset
