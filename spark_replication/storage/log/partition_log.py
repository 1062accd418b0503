"""One replica's log: the segments of one folder, its epoch history and how far it is committed.

Rules:
- An append moves the log end only after write(2) of the data and then of the index entry has returned (F0).
- A segment is made by the append that needs it, and removed if that append fails: no segment of a log is ever empty.
- A leader begins a segment when the last is full, old, or has another schema than the next batch. A follower begins one
  where its leader did (F2).
- The log's start is the base of its first segment, or the end of an empty log. It is on the disk before anything below
  it goes, so that a crash leaves a log. Where it is to be in the midst of a segment, the tail of that segment is copied
  first (storage.log.segment_copy).
- A write that fails is cut away again, before the next one at the latest.
- A cut is on the disk before anything is written in its place (storage.log.cuts).
- After a failed sync, or a truncation that failed half-way, the log is offline: it serves what it has and takes no
  more. It leaves word of a failed sync for the next process (storage.disk.failed_sync). A process that is killed may
  have no time for that: so if the log is flushed at all, the next process writes what lies above the recovery point
  again before a sync counts for it.
- An epoch is in the history's file before its first bytes are visible (F3).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c

from spark_replication.config import TopicSettings
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.retention import SegmentSize
from spark_replication.errors import CorruptLog, CorruptState, InvalidRequest, OffsetOutOfRange, StorageFailed
from spark_replication.messages.ranges import Piece
from spark_replication.model import Offset, TimeMs
from spark_replication.ports import (
    BatchPlace,
    DamagedBatch,
    Flush,
    LogSlice,
    PreparedBatch,
    Records,
    StoredSlice,
)
from spark_replication.storage.disk.disk_errors import DiskErrors, failed
from spark_replication.storage.disk.failed_sync import forget_failed_sync, save_failed_sync, write_again
from spark_replication.storage.disk.state_files import read_checked, write_checked
from spark_replication.storage.format.batches import check_data, schema_from_bytes
from spark_replication.storage.format.index import (
    NO_PRODUCER,
    Buffer,
    IndexEntry,
    count_below,
    encode_entry,
    number_and_digest,
    numbered,
    whole_prefix,
)
from spark_replication.storage.format.pieces import cut
from spark_replication.storage.log.leftover import Leftover
from spark_replication.storage.log.log_flush import LogFlush
from spark_replication.storage.log.log_start import keep_log_start, save_log_start
from spark_replication.storage.log.recovery import RecoveryReport, WholeLog
from spark_replication.storage.log.segment import Segment
from spark_replication.storage.log.segment_copy import copy_tail

PRODUCERS_FILE = "producers.msgpack"
# The process after a killed one reads and writes again what was not flushed, and at most so much that was.
POINT_BYTES = 8 << 20
# Of a segment. Recovery reads and checks such a part, 64 KiB by default, in 10 us; a point takes 300 us to write.
POINT_SHARE = 4096

log = logging.getLogger(__name__)


class PartitionLog:
    """Not thread-safe: whoever has the partition has its log, too.

    Invariants: segments are contiguous from log_start to log_end; log_start <= high_watermark <= log_end; epochs cover
    [log_start, log_end), and an epoch that begins at log_end has no records yet.
    """

    def __init__(self, recovered: WholeLog, *, settings: TopicSettings, distrust: Callable[[], None]) -> None:
        """For `distrust` see LocalLogs. Raises StorageFailed if the disk refuses what an earlier failed sync calls
        for."""
        self.recovery: RecoveryReport = recovered.report
        self._folder: Path = recovered.folder
        self._files = recovered.files
        self._memory = recovered.memory
        self._segments: list[Segment] = list(recovered.segments)
        # Plain attributes, which others only read: a record on its way asks for them again and again.
        self.epochs = recovered.epochs
        self.high_watermark = recovered.high_watermark
        self.log_start = recovered.log_start
        self.log_end = recovered.report.log_end
        self._epochs_file = recovered.epochs_file
        self._high_watermarks = recovered.high_watermarks
        self._recovery_point = recovered.recovery_point
        self._settings = settings
        self._distrust = distrust
        self._offline = ""
        self._cuts = recovered.cuts
        #: The segment of a failed write that is not cut away yet, and whether that write began the segment.
        self._torn: tuple[Segment, bool] | None = None
        #: A tail that was copied for a start, until that is stored. A start whose save failed may be stored, too.
        self._unstarted: Segment | None = None
        self._leftover = Leftover()
        # An earlier process may have been killed before it flushed: all segments, and the folder, are due for a flush.
        self._flushed_end = self.log_start
        self._folders_unflushed = {self._folder, self._folder.parent}
        self._flushing: LogFlush | None = None
        #: The size of the last segment when the recovery point last rose.
        self._point_bytes = 0
        self._settle_failed_syncs(recovered.flushed_end_before)

    def append(self, batch: PreparedBatch, *, leader_epoch: int, timestamp_ms: int) -> BatchPlace:
        assert leader_epoch == self.epochs.last_epoch, f"epoch {leader_epoch} has not begun here (F3)"
        self._refuse_if_offline()
        try:
            self._settle_cuts()
            segment = self._segment_to_lead(batch.schema, timestamp_ms)
        except OSError as error:
            raise failed("append", self._folder, error) from error
        base_offset = self.log_end
        last_offset = base_offset + batch.rows - 1
        entry = IndexEntry(
            base_offset=base_offset,
            last_offset=last_offset,
            position=segment.data_bytes,
            timestamp_ms=timestamp_ms,
            timestamp_max_ms=max(timestamp_ms, segment.timestamp_max_ms),
            producer=batch.producer,
            sequence=numbered(batch.sequence, batch.digest),
            bytes=len(batch.message),
            crc=batch.crc,
            leader_epoch=leader_epoch,
            producer_epoch=batch.producer_epoch,
            schema_crc=segment.schema_crc,
        )
        entries = encode_entry(entry)
        self._write(segment, batch.message, entries, last_offset + 1)
        segment.newest(
            LogSlice(base_offset, last_offset + 1, segment.base, entries, batch.message, schema=segment.schema)
        )
        return _place(entry)

    def append_slice(self, records: LogSlice) -> list[BatchPlace]:
        self._refuse_if_offline()
        entries = check_data(records)
        continued = self._segment_to_follow(records)
        schema = bytes(records.schema)
        position = continued.data_bytes if continued else len(schema)
        epochs = self._continuation(records, entries, position)
        if count_below(continued.schema_crc if continued else crc32c(schema), records.entries) < len(entries):
            raise CorruptLog(f"segment {records.segment_base} in {self._folder} does not have its leader's schema")
        if continued is None:
            schema_from_bytes(schema, f"segment {records.segment_base} of the leader")
        before = self.epochs
        try:
            self._settle_cuts()
            if epochs != before:
                self._epochs_file.save(epochs)
            segment = continued or self._created(schema)
        except OSError as error:
            raise failed("append", self._folder, error) from error
        try:
            self._write(segment, records.data, bytes(records.entries), entries[-1].last_offset + 1)
        except StorageFailed:
            # Memory still has the history before. Recovery tells which of the two is right, whatever a crash leaves.
            with suppress(OSError):
                self._epochs_file.save(before)
            raise
        self.epochs = epochs
        return [_place(entry) for entry in entries if entry.producer != NO_PRODUCER]

    def find(self, offset: Offset, *, bytes_max: int, end: Offset) -> Records | None:
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRange(f"offset {offset} is outside the log, which is [{self.log_start}, {self.log_end})")
        if offset >= min(end, self.log_end):
            return None
        segment = self._segment_at(offset)
        try:
            return segment.find(offset, bytes_max=bytes_max, end=end)
        except OSError as error:
            raise failed("read", self._folder, error) from error

    def find_stored(self, offset: Offset, *, bytes_max: int) -> StoredSlice | None:
        if not self.log_start <= offset < self.log_end:
            return None
        with self._disk("read"):
            return self._segment_at(offset).find_stored(offset, bytes_max=bytes_max, end=self.log_end)

    def damaged(self, start: Offset, end: Offset) -> list[DamagedBatch]:
        with self._disk("read"):
            within = [each for each in self._segments if each.end > start and each.base < end]
            return [found for each in within for found in each.damaged(start, end)]

    def mend(self, batch: DamagedBatch, data: bytes) -> None:
        self._refuse_if_offline()
        is_here = self.log_start <= batch.base_offset < self.log_end
        with self._disk("mending"):
            # Not synced: a crash leaves any of its blocks old or new, which is damage that is found and mended again.
            if is_here and self._segment_at(batch.base_offset).mend(batch, data):
                return
        raise InvalidRequest(f"these are not the bytes of {batch} in {self._folder}, or it has gone")

    def bytes_from(self, offset: Offset) -> int:
        """See ports.ReplicaLog. Costs a look at each newer segment, and one search in an index."""
        if offset >= self.log_end:
            return 0
        segment = self._segment_at(offset)
        with self._disk("read"):
            within = segment.bytes_from(offset)
        return within + sum(newer.data_bytes for newer in self._segments if newer.base > segment.base)

    def pieces(self, start: Offset, end: Offset, piece_bytes: int) -> tuple[Piece, ...]:
        with self._disk("read"):
            within = [each for each in self._segments if each.end > start and each.base < end]
            return cut((each.batches_between(start, end) for each in within), end, piece_bytes)

    def offset_of_time(self, timestamp_ms: int) -> Offset:
        """The offset of the first batch that was appended at this time or later; log_end if none was.

        The index has the running maximum of its segment's timestamps, which is sorted even where clocks stepped back.
        Where the maximum first reaches a time, the batch's own timestamp does. Segments are searched in order: a later
        one may have earlier timestamps.
        """
        for segment in self._segments:
            with self._disk("read"):
                offset = segment.offset_of_time(timestamp_ms)
            if offset is not None:
                return offset
        return self.log_end

    def time_of(self, offset: Offset) -> TimeMs:
        """See ports.ReplicaLog. Costs one search in an index."""
        with self._disk("read"):
            return self._segment_at(offset).time_of(offset)

    def batch_start(self, offset: Offset) -> Offset:
        """See ports.ReplicaLog. Costs one search in an index."""
        with self._disk("read"):
            return self._segment_at(offset).boundary(offset)

    def begin_epoch(self, epoch: int) -> None:
        self._refuse_if_offline()
        epochs = self.epochs.begun(epoch, self.log_end)
        if epochs != self.epochs:
            with self._disk("begin_epoch"):
                self._epochs_file.save(epochs)
            self.epochs = epochs

    def truncate(self, end: Offset) -> None:
        assert end >= self.log_start, f"{end} is below the log's start"
        self._refuse_if_offline()
        with self._disk("truncate"):
            inside = end < self.log_end
            boundary = self._segment_at(end).boundary(end) if inside else self.log_end
            epochs = self.epochs.truncated(boundary if inside else end)
            if inside:
                self._cut_torn()
                self._cuts.begin()
            self._recovery_point.fall_to(boundary)
            # Before the cut: a crash in between must not find a log below its own checkpoint, which is a loss (I8).
            if self.high_watermark > boundary:
                self._lower_high_watermark(boundary)
            if epochs != self.epochs:
                self._epochs_file.save(epochs)
                self.epochs = epochs
        self._not_flushed_from(boundary)
        try:
            self._cut(boundary)
        except OSError as error:
            self._offline = f"{self._folder} could not be cut to {boundary}: {error}"
            self._refuse_if_offline(error)

    def segments(self) -> list[SegmentSize]:
        return [SegmentSize(each.base, each.end, each.data_bytes, each.timestamp_max_ms) for each in self._segments]

    def forget(self, before: Offset) -> None:
        gone = bisect_right(self._segments[:-1], before, key=lambda segment: segment.end)
        if gone:
            self._lose_head(self._segments[gone:], self._segments[gone].base)

    def drop_below(self, offset: Offset) -> None:
        """See ports.ReplicaLog. Costs a copy of one segment at most."""
        assert self.log_start < offset <= self.log_end, f"{offset} is not within the log"
        self._refuse_if_offline()
        kept = self._segments_from(offset)
        try:
            if kept and kept[0].base < offset:
                kept[0] = self._copied_tail(kept[0], offset)
            self._lose_head(kept, offset)
        except StorageFailed:
            with suppress(OSError):  # if this fails, the next write tries again first
                self._cut_torn()
            raise

    def _copied_tail(self, segment: Segment, base: Offset) -> Segment:
        with self._disk("a new log start"):
            self._cut_torn()
            tail = Segment.create(self._folder, base, segment.schema, self._files, self._memory)
            self._torn = tail, True
            copy_tail(segment, tail, self._files)
            self._torn, self._unstarted = None, tail
        return tail

    def _lose_head(self, kept: list[Segment], start: Offset) -> None:
        self._start_at(start, kept, self.epochs.trimmed(start), max(self.high_watermark, start))

    @property
    def has_leftover(self) -> bool:
        return bool(self._leftover) and not self._offline

    def remove_leftover(self) -> None:
        self._refuse_if_offline()
        with self._disk("removing what the log has forgotten"):
            self._leftover.remove_some()

    def begin_anew(self, log_start: Offset) -> None:
        if log_start <= self.log_end:
            # Cut from the end, the checkpoint lowered first: a crash in between must never look like a loss (I8).
            self.truncate(self.log_start)
            if log_start < self.log_start:
                with self._disk("a new log start"):
                    self._leftover.remove_all()  # else a partly removed segment might continue what is written below it
                    self._recovery_point.fall_to(log_start)
                    self._lower_high_watermark(log_start)
        self._start_at(log_start, [], EpochHistory(), log_start)

    def configure(self, settings: TopicSettings) -> None:
        self._settings = settings

    def checkpoint(self, high_watermark: Offset) -> None:
        if not self.log_start <= high_watermark <= self.log_end:
            raise StorageFailed(
                f"{high_watermark} is outside {self._folder}, which is [{self.log_start}, {self.log_end}), since a "
                "change of it failed half-way. Repair the disk, then restart the broker"
            )
        if high_watermark != self.high_watermark:
            self._high_watermarks.note(self._folder.name, high_watermark)
            self.high_watermark = high_watermark

    def places(self, newest: int) -> Iterator[BatchPlace]:
        for segment in list(self._segments):
            with self._disk("read"):
                entries = segment.newest_of_producers(newest)
            yield from (_place(entry) for entry in entries)

    def save_producers(self, known: bytes) -> None:
        self._refuse_if_offline()
        with self._disk("saving what is known of producers"):
            path = self._folder / PRODUCERS_FILE
            # With the reserve: retention saves this before it makes room.
            self._files.with_reserve(lambda: write_checked(path, known, durable=True, files=self._files))

    def saved_producers(self) -> bytes:
        with self._disk("read"):
            try:
                return read_checked(self._folder / PRODUCERS_FILE, self._files) or b""
            except CorruptState as error:
                log.error("%s. Producers whose batches retention has removed are unknown", error)
                return b""

    @property
    def flushed_end(self) -> Offset:
        return self._flushed_end

    def begin_flush(self) -> Flush | None:
        assert self._flushing is None, "one flush at a time"
        self._refuse_if_offline()
        if self._flushed_end == self.log_end and not self._folders_unflushed:
            return None
        self._flushing = self._due_for_flush()
        return self._flushing

    def end_flush(self, failed: StorageFailed | None) -> None:
        flush, self._flushing = self._flushing, None
        if failed is not None:
            self._sync_failed(failed)
        elif flush is not None:
            self._flushed_end = max(self._flushed_end, flush.end)
            # Once a segment, and once in POINT_BYTES: a file written with every flush would cost more than it saves.
            bases = [segment.base for segment in self._segments[-1:]]
            has_begun = any(self._recovery_point.offset < base <= self._flushed_end for base in bases)
            if has_begun or flush.bytes - self._point_bytes >= POINT_BYTES:
                self._recovery_point.rise_to(self._flushed_end)
                self._point_bytes = flush.bytes

    def flush(self) -> None:
        self._refuse_if_offline()
        if self._flushing is not None:  # nobody says here whether that one has been performed
            self._folders_unflushed.update(self._flushing.folders)
        flush = self._due_for_flush()
        try:
            flush.perform()
        except StorageFailed as failed:
            self._sync_failed(failed)
            raise
        self._flushed_end = flush.end
        unproven = sum(segment.data_bytes for segment in self._segments_from(self._recovery_point.offset))
        if unproven > self._settings.segment_bytes // POINT_SHARE:
            self._recovery_point.rise_to(flush.end)

    def _due_for_flush(self) -> LogFlush:
        paths = self._paths_from(self._flushed_end)
        folders, self._folders_unflushed = self._folders_unflushed, set()
        segment_bytes = self._segments[-1].data_bytes if self._segments else 0
        return LogFlush(self._files, paths, sorted(folders, reverse=True), self.log_end, segment_bytes)

    def _not_flushed_from(self, end: Offset) -> None:
        """Note a cut at `end`: what was flushed above it counts no longer, since other bytes come in its place."""
        self._flushed_end = min(self._flushed_end, end)
        self._point_bytes = 0
        if self._flushing is not None:
            self._flushing.end, self._flushing.bytes = min(self._flushing.end, end), 0

    def _sync_failed(self, failed: StorageFailed) -> None:
        """Take the log offline: nobody knows what is on the disk, and no later sync tells."""
        if not self._offline:
            self._offline = failed.message
            save_failed_sync(self._files, self._folder, self._flushed_end, self._distrust)

    def _settle_failed_syncs(self, flushed_end_before: Offset | None) -> None:
        """Write again what a failed sync of an earlier process leaves in doubt: one that it left word of, or one that
        it may have been killed before it could."""
        doubtful_from = flushed_end_before
        if doubtful_from is None and self._settings.flush != "none":
            doubtful_from = self._recovery_point.offset
        if doubtful_from is None or (flushed_end_before is None and doubtful_from >= self.log_end):
            return
        with self._disk("opening"):
            for segment in self._segments_from(doubtful_from):
                is_whole = segment.base >= doubtful_from  # then its schema message is in doubt, too
                kept = 0 if is_whole else segment.data_bytes - segment.bytes_from(doubtful_from)
                write_again(self._files, segment.data_path, kept)
                write_again(self._files, segment.index_path, 0)
            if flushed_end_before is not None:
                forget_failed_sync(self._files, self._folder)

    def _segments_from(self, offset: Offset) -> list[Segment]:
        """The segments that end above `offset`."""
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.end) :]

    def _paths_from(self, offset: Offset) -> list[Path]:
        return [path for each in self._segments_from(offset) for path in (each.data_path, each.index_path)]

    def _settle_cuts(self) -> None:
        """Bring all cuts to the disk, before a write."""
        self._cut_torn()
        if not self._cuts.pending:
            return
        try:
            self._cuts.sync([path for last in self._segments[-1:] for path in (last.data_path, last.index_path)])
        except OSError as error:
            failed = StorageFailed(f"what was cut off {self._folder} could not be flushed: {error}")
            self._sync_failed(failed)
            raise failed from error

    def close(self) -> None:
        for segment in self._segments:
            segment.release()
        self._leftover.release()
        self._offline = f"{self._folder} is closed"

    def _segment_to_lead(self, schema: bytes, timestamp_ms: int) -> Segment:
        """The segment to which a leader appends the next batch. A new one is not among the log's segments yet."""
        if self._segments:
            last = self._segments[-1]
            is_full = last.data_bytes >= self._settings.segment_bytes
            is_old = timestamp_ms - last.timestamp_first_ms >= self._settings.segment_ms
            if not is_full and not is_old and last.schema == schema:
                return last
        return self._created(schema)

    def _created(self, schema: bytes) -> Segment:
        return Segment.create(self._folder, self.log_end, schema, self._files, self._memory)

    def _segment_to_follow(self, records: LogSlice) -> Segment | None:
        """The segment that these records continue; None if they begin one. Raises CorruptLog if they do neither."""
        last = self._segments[-1] if self._segments else None
        if last is not None and last.base == records.segment_base:
            if records.schema and bytes(records.schema) != last.schema:
                raise CorruptLog(f"the schema of segment {last.base} in {self._folder} is not its leader's")
            return last
        if records.segment_base != self.log_end or not records.schema:
            raise CorruptLog(
                f"records of segment {records.segment_base}, from {records.first_offset}, do not continue "
                f"{self._folder}, which ends at {self.log_end}"
            )
        return None

    def _continuation(self, records: LogSlice, entries: list[IndexEntry], position: int) -> EpochHistory:
        """The epochs once these records are at `position`. Raises CorruptLog unless they continue the log exactly."""
        # Drop an epoch that this replica began as leader, and wrote nothing in: a lower epoch's records may follow.
        epochs = self.epochs.truncated(self.log_end)
        prefix = whole_prefix(
            records.entries,
            base=self.log_end,
            epoch=epochs.last_epoch,
            position=position,
            data_bytes=position + len(records.data),
        )
        if prefix.why or not prefix.kept:
            why = prefix.why or "there are none"
            raise CorruptLog(
                f"records from {records.first_offset} do not continue {self._folder} at {self.log_end}: {why}"
            )
        for entry in entries:
            epochs = epochs.begun(entry.leader_epoch, entry.base_offset)
        return epochs

    def _write(self, segment: Segment, data: Buffer, entries: bytes, end: Offset) -> None:
        created = segment.base == self.log_end
        try:
            segment.append(data, entries, end)
        except OSError as error:
            self._torn = segment, created
            with suppress(OSError):  # if this fails, the next write tries again first
                self._cut_torn()
            raise StorageFailed(
                f"{segment.data_path} took no more: {error}. Free space or repair the disk, then retry"
            ) from error
        if created:
            self._segments.append(segment)
            self._folders_unflushed.add(self._folder)
        self.log_end = end

    def _cut_torn(self) -> None:
        """Undo what changes have left that failed half-way."""
        if self._torn is not None:
            self._cuts.begin()
            segment, created = self._torn
            if created:
                segment.remove()
            else:
                segment.cut_torn()
            self._torn = None
        if self._unstarted is not None:
            keep_log_start(self._files, self._folder, self.log_start)  # whatever start is stored must have its segment
            self._unstarted.remove()
            self._unstarted = None

    def _start_at(self, log_start: Offset, kept: list[Segment], epochs: EpochHistory, high_watermark: Offset) -> None:
        """Move the log's start, and drop all segments but `kept`. Once the start is on the disk it holds, whatever
        fails after that: what is left below is removed later (storage.log.leftover), by the next recovery at the
        latest, which also finds the epochs."""
        self._refuse_if_offline()
        with self._disk("a new log start"):
            if not kept:
                self._cut_torn()
            save_log_start(self._files, self._folder, log_start)
            removed = [segment for segment in self._segments if segment.base < log_start]
            self._segments, self._unstarted = kept, None
            self.log_start = log_start
            self.log_end = kept[-1].end if kept else log_start
            self.epochs, self.high_watermark = epochs, high_watermark
            self._high_watermarks.note(self._folder.name, high_watermark)
            self._not_flushed_from(self.log_end)
            self._flushed_end = max(self._flushed_end, log_start)
            self._leftover.add(removed)
        with suppress(OSError):
            self._epochs_file.save(epochs)
            self._leftover.remove_some()

    def _lower_high_watermark(self, offset: Offset) -> None:
        self._high_watermarks.lower(self._folder.name, offset)
        self.high_watermark = offset

    def _cut(self, boundary: Offset) -> None:
        """Cut the log to `boundary`, the last segment first, so that a crash leaves a log."""
        self.log_end = boundary
        while self._segments and self._segments[-1].base >= boundary:
            self._folders_unflushed.add(self._folder)
            self._segments.pop().remove()
        if self._segments and self._segments[-1].end > boundary:
            self._segments[-1].truncate(boundary)

    def _segment_at(self, offset: Offset) -> Segment:
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1]

    def _refuse_if_offline(self, cause: OSError | None = None) -> None:
        if self._offline:
            raise StorageFailed(
                f"{self._offline}: the log is offline. Repair the disk, then restart the broker"
            ) from cause

    def _disk(self, what: str) -> DiskErrors:
        return DiskErrors(what, self._folder)


def _place(entry: IndexEntry) -> BatchPlace:
    sequence, digest = number_and_digest(entry.sequence)
    return BatchPlace(
        entry.producer,
        entry.producer_epoch,
        sequence,
        entry.base_offset,
        entry.last_offset,
        entry.crc,
        entry.timestamp_ms,
        digest,
    )
