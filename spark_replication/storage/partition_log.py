"""One replica's log: the segments of one folder, its epoch history and its high-watermark checkpoint.

Rules:
- The log end moves after write(2) of data and index entry has returned, and by nothing else (F0).
- A segment is made by the append that needs it, and unmade with it: none of the log's segments is ever empty.
- A leader begins a segment when the last is full or has another schema; a follower where its leader did (F2).
- A write that fails is cut away again. If even that fails the log is offline: it serves what it has and takes no more.
- The history of an epoch is in its file before the epoch's first bytes are visible (F3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_replication.core.epochs import EpochHistory
from spark_replication.errors import CorruptLog, OffsetOutOfRange, StorageFailed
from spark_replication.model import Offset
from spark_replication.ports import BatchPlace, LogSlice, PreparedBatch
from spark_replication.storage.batches import check_data, schema_from_bytes
from spark_replication.storage.index import (
    Buffer,
    IndexEntry,
    as_array,
    decode_entries,
    encode_entry,
    whole_prefix,
)
from spark_replication.storage.recovery import (
    LOG_START,
    Recovered,
    RecoveryReport,
    epoch_starts,
    save_epochs,
    save_high_watermark,
)
from spark_replication.storage.segment import Segment
from spark_replication.storage.state_files import sync_folder

NO_PRODUCER = -1


class PartitionLog:
    """Not thread-safe: its partition's lock guards it.

    Invariants: segments are contiguous from log_start to log_end; log_start <= high_watermark <= log_end; epochs cover
    [log_start, log_end), and an epoch that begins at log_end has no records yet. At most the last segment and the one
    that was read last are open.
    """

    def __init__(self, recovered: Recovered, *, schema: bytes, segment_bytes: int) -> None:
        self.recovery: RecoveryReport = recovered.report
        self._folder: Path = recovered.folder
        self._segments: list[Segment] = list(recovered.segments)
        self._epochs = recovered.epochs
        self._high_watermark = recovered.high_watermark
        self._log_end = recovered.report.log_end
        self._schema = schema
        self._segment_bytes = segment_bytes
        self._read_last: Segment | None = None
        self._offline = ""
        # An earlier process may have been killed before it flushed: all segments, and the folder, are due.
        self._unflushed: Offset = LOG_START
        self._folder_unflushed = True

    @property
    def log_start(self) -> Offset:
        return LOG_START

    @property
    def log_end(self) -> Offset:
        return self._log_end

    @property
    def epochs(self) -> EpochHistory:
        return self._epochs

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark

    @property
    def schema(self) -> bytes:
        """The schema message that the next segment begins with."""
        return self._schema

    def append(self, batch: PreparedBatch, *, leader_epoch: int, timestamp_ms: int) -> BatchPlace:
        assert leader_epoch == self._epochs.last_epoch, f"epoch {leader_epoch} has not begun here (F3)"
        self._refuse_if_offline()
        with self._disk("append"):
            segment, timestamp_max_ms = self._segment_to_lead()
        base_offset = self._log_end
        last_offset = base_offset + batch.rows - 1
        entry = IndexEntry(
            base_offset=base_offset,
            last_offset=last_offset,
            position=segment.data_bytes,
            timestamp_ms=timestamp_ms,
            timestamp_max_ms=max(timestamp_ms, timestamp_max_ms),
            producer=batch.producer,
            sequence=batch.sequence,
            bytes=len(batch.message),
            crc=batch.crc,
            leader_epoch=leader_epoch,
            producer_epoch=batch.producer_epoch,
        )
        self._write(segment, batch.message, encode_entry(entry), last_offset + 1)
        return BatchPlace(batch.producer, batch.producer_epoch, batch.sequence, base_offset, last_offset)

    def append_slice(self, records: LogSlice) -> list[BatchPlace]:
        self._refuse_if_offline()
        check_data(records)
        continued = self._segment_to_follow(records)
        schema = bytes(records.schema)
        position = continued.data_bytes if continued else len(schema)
        end, epochs = self._continuation(records, position)
        if continued is None:
            schema_from_bytes(schema, f"segment {records.segment_base} of the leader")
        with self._disk("append"):
            before = self._epochs
            if epochs != before:
                save_epochs(self._folder, epochs)
            segment = continued or Segment.create(self._folder, self._log_end, schema)
        try:
            self._write(segment, records.data, bytes(records.entries), end)
        except StorageFailed:
            # The history in memory was not touched. Recovery tells which of the two a crash would find.
            with suppress(OSError):
                save_epochs(self._folder, before)
            raise
        self._epochs = epochs
        return [_place(entry) for entry in decode_entries(records.entries) if entry.producer != NO_PRODUCER]

    def read(self, offset: Offset, *, bytes_max: int, end: Offset) -> LogSlice | None:
        if not self.log_start <= offset <= self._log_end:
            raise OffsetOutOfRange(f"offset {offset} is outside the log, which is [{self.log_start}, {self._log_end})")
        if offset >= min(end, self._log_end):
            return None
        segment = self._segment_at(offset)
        with self._disk("read"):
            found = segment.read(offset, bytes_max=bytes_max, end=end)
        self._keep_open(segment)
        return found

    def bytes_from(self, offset: Offset) -> int:
        """Cost: the segments that are newer, and one search in an index."""
        if offset >= self._log_end:
            return 0
        segment = self._segment_at(offset)
        with self._disk("read"):
            within = segment.bytes_from(offset)
        self._keep_open(segment)
        return within + sum(newer.data_bytes for newer in self._segments if newer.base > segment.base)

    def offset_of_time(self, timestamp_ms: int) -> Offset:
        """Of the first batch before which every batch of its segment is older than `timestamp_ms`; log_end if none."""
        for segment in self._segments:
            with self._disk("read"):
                offset = segment.offset_of_time(timestamp_ms)
            self._keep_open(segment)
            if offset is not None:
                return offset
        return self._log_end

    def begin_epoch(self, epoch: int) -> None:
        self._refuse_if_offline()
        epochs = self._epochs.begun(epoch, self._log_end)
        if epochs != self._epochs:
            with self._disk("begin_epoch"):
                save_epochs(self._folder, epochs)
            self._epochs = epochs

    def truncate(self, end: Offset) -> None:
        assert end >= self.log_start, f"{end} is below the log's start"
        self._refuse_if_offline()
        with self._disk("truncate"):
            inside = end < self._log_end
            boundary = self._segment_at(end).boundary(end) if inside else self._log_end
            epochs = self._epochs.truncated(boundary if inside else end)
            # Before the cut: a crash in between must not find a log below its own checkpoint, which is a loss (I8).
            if self._high_watermark > boundary:
                self.checkpoint(boundary)
            if epochs != self._epochs:
                save_epochs(self._folder, epochs)
                self._epochs = epochs
        self._read_last = None
        self._unflushed = min(self._unflushed, boundary)
        try:
            self._cut(boundary)
        except OSError as error:
            self._offline = f"{self._folder} could not be cut to {boundary}: {error}"
            self._refuse_if_offline(error)

    def checkpoint(self, high_watermark: Offset) -> None:
        assert self.log_start <= high_watermark <= self._log_end, f"{high_watermark} is outside the log"
        if high_watermark != self._high_watermark:
            with self._disk("checkpoint"):
                save_high_watermark(self._folder, high_watermark)
            self._high_watermark = high_watermark

    def places(self) -> Iterator[BatchPlace]:
        for segment in list(self._segments):
            with self._disk("read"):
                entries = segment.entries()
            self._keep_open(segment)
            yield from (_place(entry) for entry in entries if entry.producer != NO_PRODUCER)

    def flush(self) -> None:
        """Data, index, and the folder if files came or went. After a failed fdatasync nobody knows what is on disk:
        offline."""
        self._refuse_if_offline()
        try:
            for segment in self._segments:
                if segment.end > self._unflushed:
                    segment.flush()
            if self._folder_unflushed:
                sync_folder(self._folder)
                sync_folder(self._folder.parent)
        except OSError as error:
            self._offline = f"{self._folder} could not be flushed: {error}"
            self._refuse_if_offline(error)
        self._unflushed = self._log_end
        self._folder_unflushed = False

    def close(self) -> None:
        for segment in self._segments:
            segment.release()
        self._offline = f"{self._folder} is closed"

    def _segment_to_lead(self) -> tuple[Segment, int]:
        """Where a leader appends, and the running maximum of its timestamps; a new segment is not the log's own yet."""
        if self._segments:
            last = self._segments[-1]
            if last.data_bytes < self._segment_bytes and last.schema == self._schema:
                return last, last.timestamp_max_ms
        created = Segment.create(self._folder, self._log_end, self._schema)
        return created, created.timestamp_max_ms

    def _segment_to_follow(self, records: LogSlice) -> Segment | None:
        """Where these records go on; None: they start a segment. CorruptLog if they do neither."""
        last = self._segments[-1] if self._segments else None
        if last is not None and last.base == records.segment_base:
            if records.schema and bytes(records.schema) != last.schema:
                raise CorruptLog(f"the schema of segment {last.base} in {self._folder} is not its leader's")
            return last
        if records.segment_base != self._log_end or not records.schema:
            raise CorruptLog(
                f"records of segment {records.segment_base}, from {records.first_offset}, do not continue "
                f"{self._folder}, which ends at {self._log_end}"
            )
        return None

    def _continuation(self, records: LogSlice, position: int) -> tuple[Offset, EpochHistory]:
        """Log end and epochs with these records at `position`; CorruptLog unless they continue the log exactly."""
        # An epoch that this replica began as leader, and wrote nothing in, never was: a lower one's records may follow.
        epochs = self._epochs.truncated(self._log_end)
        prefix = whole_prefix(
            records.entries,
            base=self._log_end,
            epoch=epochs.last_epoch,
            position=position,
            data_bytes=position + len(records.data),
        )
        if prefix.why or not prefix.kept:
            why = prefix.why or "there are none"
            raise CorruptLog(
                f"records from {records.first_offset} do not continue {self._folder} at {self._log_end}: {why}"
            )
        entries = as_array(records.entries)
        for epoch, start in epoch_starts(entries):
            epochs = epochs.begun(epoch, start)
        return int(entries["last_offset"][-1]) + 1, epochs

    def _write(self, segment: Segment, data: Buffer, entries: bytes, end: Offset) -> None:
        created = segment.base == self._log_end
        try:
            segment.append(data, entries, end)
        except OSError as error:
            self._undo(segment, error, created=created)
            raise StorageFailed(
                f"{segment.data_path} took no more: {error}. Free space or repair the disk, then retry"
            ) from error
        if created:
            if self._segments:
                self._segments[-1].release()
            self._segments.append(segment)
            self._folder_unflushed = True
        self._log_end = end

    def _undo(self, segment: Segment, cause: OSError, *, created: bool) -> None:
        try:
            if created:
                segment.remove()
            else:
                segment.cut_torn()
        except OSError as error:
            self._offline = f"{segment.data_path} could not be cut back ({error}) after a failed write ({cause})"

    def _cut(self, boundary: Offset) -> None:
        """Last segment first: whatever a crash leaves is a log."""
        self._log_end = boundary
        while self._segments and self._segments[-1].base >= boundary:
            self._folder_unflushed = True
            self._segments.pop().remove()
        if self._segments and self._segments[-1].end > boundary:
            self._segments[-1].truncate(boundary)

    def _segment_at(self, offset: Offset) -> Segment:
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1]

    def _keep_open(self, segment: Segment) -> None:
        """A full segment that was read stays open until another one is read."""
        before = self._read_last
        if segment is self._segments[-1] or segment is before:
            return
        if before is not None and before is not self._segments[-1]:
            before.release()
        self._read_last = segment

    def _refuse_if_offline(self, cause: OSError | None = None) -> None:
        if self._offline:
            raise StorageFailed(
                f"{self._offline}: the log is offline. Repair the disk, then restart the broker"
            ) from cause

    @contextmanager
    def _disk(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFailed(f"{what} in {self._folder} failed: {error}. Free space or repair the disk") from error


def _place(entry: IndexEntry) -> BatchPlace:
    return BatchPlace(entry.producer, entry.producer_epoch, entry.sequence, entry.base_offset, entry.last_offset)
