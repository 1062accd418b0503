"""Recovers a log after a crash: it keeps the longest prefix whose entries and data hold, and nothing else.

Rules:
- Nothing but the recovery point is cut or rewritten before `before_cut` has returned. There the caller drops its proof
  of a clean start (I8): otherwise a second crash would make the loss look clean.
- What is cut here is a cut like any other (storage.log.cuts): it is on the disk before the log is written to again.
- A complete entry that is cut was perhaps acknowledged: it is counted. Torn bytes behind the last entry never were.
- What lies below the recovery point is on the disk as it was written: its sizes and entries are checked, but not every
  byte of its data (storage.log.recovery_point). A recovery that cuts below the point lowers it first.
- The epoch history follows from the entries. Its file only adds an epoch that has no records yet.
- The log starts where log_start.json says, which was on the disk before anything below it went. So segments below were
  being removed, and go without being counted. Where the file is missing, nothing was ever removed. A copy that was
  made for a start which the file does not name goes likewise (storage.log.segment_copy).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.errors import CorruptState, StorageFailed
from spark_replication.model import Offset
from spark_replication.storage.disk.failed_sync import read_failed_sync
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.state_files import BESIDE
from spark_replication.storage.format.index import (
    ENTRY_BYTES,
)
from spark_replication.storage.log.cuts import CUT_FILE, Cuts
from spark_replication.storage.log.epochs_file import EPOCHS_FILE, EpochsFile
from spark_replication.storage.log.high_watermarks import HIGH_WATERMARKS_FILE, HighWatermarks
from spark_replication.storage.log.log_start import LOG_START_FILE, read_log_start, save_log_start
from spark_replication.storage.log.recovery_point import RecoveryPoint
from spark_replication.storage.log.scanning import Scan, scan_all
from spark_replication.storage.log.segment import Segment, cut_files, remove_files
from spark_replication.storage.log.segment_files import segment_bases
from spark_replication.storage.log.segment_memory import SegmentMemory


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery found in one log."""

    folder: str
    log_end: Offset
    batches_kept: int
    #: Complete entries, each of which may have been acknowledged.
    entries_cut: int = 0
    bytes_cut: int = 0
    #: The reason for the first cut, else for `sync_failed` or `failed`; empty if there is none.
    why: str = ""
    #: Whether the log ends below its own checkpoint.
    below_high_watermark: bool = False
    #: The small files that were damaged and were made anew.
    rebuilt: tuple[str, ...] = ()
    #: Whether the disk refused: then nobody knows what the log holds.
    failed: bool = False
    #: Whether a sync of an earlier process failed: then not all that is read here is known to be on the disk.
    sync_failed: bool = False

    @property
    def lossless(self) -> bool:
        """Whether nothing that may have been acknowledged is gone (I8). Without a readable checkpoint, or log start,
        nobody can say so."""
        vouching = {HIGH_WATERMARKS_FILE, LOG_START_FILE}
        refused = self.failed or self.sync_failed
        lost = refused or self.entries_cut or self.below_high_watermark
        return not lost and not vouching.intersection(self.rebuilt)


class WholeLog(msgspec.Struct, frozen=True, kw_only=True):
    """The log of a folder, made whole."""

    folder: Path
    files: Files
    memory: SegmentMemory
    log_start: Offset
    segments: tuple[Segment, ...]
    epochs: EpochHistory
    epochs_file: EpochsFile
    high_watermark: Offset
    high_watermarks: HighWatermarks
    recovery_point: RecoveryPoint
    cuts: Cuts
    #: Up to where the log was on the disk before a sync failed (see RecoveryReport.sync_failed); None if none failed.
    flushed_end_before: Offset | None
    report: RecoveryReport


def recover(
    folder: Path,
    before_cut: Callable[[], None],
    *,
    files: Files,
    memory: SegmentMemory,
    high_watermarks: HighWatermarks,
) -> WholeLog:
    """Cut the log in `folder` to what holds, and return it. Raises StorageFailed if the disk cannot be read or
    written."""
    try:
        return _recover(folder, before_cut, files, memory, high_watermarks)
    except OSError as error:
        raise StorageFailed(
            f"recovery of {folder} failed: {error}. Repair the disk, then restart the broker"
        ) from error


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """A folder as it was found, before anything in it is changed."""

    folder: Path
    names: list[str]
    #: The bases of segments that are no part of the log, and never were since it starts where it does.
    leftover: list[Offset]
    log_start: Offset
    #: Segments of which something holds.
    kept: list[Scan]
    #: The one that breaks off, and all after it.
    cut: list[Scan]
    epochs: EpochHistory
    #: The small files that are damaged.
    rebuilt: tuple[str, ...]
    #: The high watermark that was last written.
    checkpoint: Offset
    recovery_point: RecoveryPoint
    flushed_end_before: Offset | None

    @property
    def log_end(self) -> Offset:
        return self.kept[-1].end if self.kept else self.log_start

    @property
    def is_whole(self) -> bool:
        return not (self.cut or self.rebuilt or self.checkpoint > self.log_end)

    @property
    def report(self) -> RecoveryReport:
        sync_failed = self.flushed_end_before is not None
        why = self.cut[0].why if self.cut else ""
        return RecoveryReport(
            folder=str(self.folder),
            log_end=self.log_end,
            batches_kept=sum(scan.kept for scan in self.kept),
            entries_cut=sum(scan.entries_cut for scan in self.cut),
            bytes_cut=sum(scan.bytes_cut for scan in self.cut),
            why=why or ("a sync of it had failed" if sync_failed else ""),
            below_high_watermark=self.checkpoint > self.log_end,
            rebuilt=self.rebuilt,
            sync_failed=sync_failed,
        )


def _recover(
    folder: Path,
    before_cut: Callable[[], None],
    files: Files,
    memory: SegmentMemory,
    high_watermarks: HighWatermarks,
) -> WholeLog:
    names = files.file_names(folder)
    if not names:  # a new log: a topic may make ten thousand, and three more looks at each would cost time
        return _empty(folder, files, memory, high_watermarks)
    epochs_file = EpochsFile(folder, files)
    found = _look(folder, names, files, epochs_file, high_watermarks)
    cuts = Cuts(folder, files, pending=CUT_FILE in names)
    high_watermark = min(found.checkpoint, found.log_end)
    found.recovery_point.fall_to(found.log_end)
    if not found.is_whole:
        before_cut()
        if found.cut:
            cuts.begin()
        for scan in reversed(found.cut):
            _cut(files, folder, scan)
        high_watermarks.lower(folder.name, high_watermark)
        epochs_file.save(found.epochs)
        if LOG_START_FILE in found.rebuilt:
            save_log_start(files, folder, found.log_start)
    _remove_leftovers(found, files)
    return WholeLog(
        folder=folder,
        files=files,
        memory=memory,
        log_start=found.log_start,
        segments=tuple(_segment(folder, scan, files, memory) for scan in found.kept),
        epochs=found.epochs,
        epochs_file=epochs_file,
        high_watermark=high_watermark,
        high_watermarks=high_watermarks,
        recovery_point=found.recovery_point,
        cuts=cuts,
        flushed_end_before=found.flushed_end_before,
        report=found.report,
    )


def _look(
    folder: Path, names: list[str], files: Files, epochs_file: EpochsFile, high_watermarks: HighWatermarks
) -> _Look:
    # A lost checkpoint counts as one at the log's start: a leader finds the high watermark again by its followers.
    rebuilt = [HIGH_WATERMARKS_FILE] if high_watermarks.is_damaged else []
    bases = segment_bases(names)
    log_start = _log_start(files, folder, bases, rebuilt)
    recovery_point = RecoveryPoint.read(folder, files)
    bases_kept = [base for base in bases if base >= log_start]
    scans = scan_all(files, folder, bases_kept, log_start, trusted_to=recovery_point.offset)
    kept = [scan for scan in scans.all if scan.kept]
    log_end = kept[-1].end if kept else log_start
    starts = [start for scan in kept for start in scan.epochs]
    epochs = _epochs(
        epochs_file, starts, log_start, log_end, cut=any(scan.entries_cut for scan in scans.cut), rebuilt=rebuilt
    )
    flushed_end_before = read_failed_sync(files, folder)
    if flushed_end_before is not None:
        flushed_end_before = max(flushed_end_before, recovery_point.offset)
    return _Look(
        folder=folder,
        names=names,
        leftover=[base for base in bases if base < log_start] + scans.unstarted,
        log_start=log_start,
        kept=kept,
        cut=scans.cut,
        epochs=epochs,
        rebuilt=tuple(rebuilt),
        checkpoint=max(log_start, high_watermarks.of(folder.name)),
        recovery_point=recovery_point,
        flushed_end_before=flushed_end_before,
    )


def _remove_leftovers(found: _Look, files: Files) -> None:
    """What a process that was killed had begun to remove, or to write beside."""
    for base in found.leftover:
        remove_files(files, found.folder, base)
    for name in found.names:
        if name.endswith(BESIDE):
            files.remove(found.folder / name)


def _segment(folder: Path, scan: Scan, files: Files, memory: SegmentMemory) -> Segment:
    return Segment(
        folder,
        scan.base,
        scan.schema,
        end=scan.end,
        data_bytes=scan.data_kept,
        index_bytes=scan.kept * ENTRY_BYTES,
        timestamp_max_ms=scan.timestamp_max_ms,
        files=files,
        memory=memory,
    )


def _cut(files: Files, folder: Path, scan: Scan) -> None:
    if scan.kept:
        cut_files(files, folder, scan.base, data_bytes=scan.data_kept, index_bytes=scan.kept * ENTRY_BYTES)
    else:
        remove_files(files, folder, scan.base)


def _empty(folder: Path, files: Files, memory: SegmentMemory, high_watermarks: HighWatermarks) -> WholeLog:
    return WholeLog(
        folder=folder,
        files=files,
        memory=memory,
        log_start=0,
        segments=(),
        epochs=EpochHistory(),
        epochs_file=EpochsFile(folder, files),
        high_watermark=0,
        high_watermarks=high_watermarks,
        recovery_point=RecoveryPoint(folder, files),
        cuts=Cuts(folder, files, pending=False),
        flushed_end_before=None,
        report=RecoveryReport(folder=str(folder), log_end=0, batches_kept=0),
    )


def _epochs(
    file: EpochsFile,
    starts: list[tuple[int, Offset]],
    log_start: Offset,
    log_end: Offset,
    *,
    cut: bool,
    rebuilt: list[str],
) -> EpochHistory:
    """The epoch history, from the entries. An epoch without records comes from the file, and only if no records were
    cut just now."""
    merged: list[tuple[int, Offset]] = []
    for epoch, start in starts:
        if not merged or merged[-1][0] != epoch:
            merged.append((epoch, start))
    history = EpochHistory.of(merged)
    try:
        stored = file.read()
    except (CorruptState, ValueError):
        rebuilt.append(EPOCHS_FILE)
        return history
    stored = stored.trimmed(log_start)  # the file is written after the log's head has gone
    if EpochHistory(start for start in stored if start.start < log_end) != history:
        rebuilt.append(EPOCHS_FILE)
        return history
    begun = [start for start in stored if start.start == log_end]
    return history if cut or not begun else history.begun(begun[0].epoch, log_end)


def _log_start(files: Files, folder: Path, bases: list[Offset], rebuilt: list[str]) -> Offset:
    """The start of the log. If its file is damaged, the base of the first segment: nobody can say whether there was
    more."""
    try:
        return read_log_start(files, folder)
    except CorruptState:
        rebuilt.append(LOG_START_FILE)
        return bases[0] if bases else 0
