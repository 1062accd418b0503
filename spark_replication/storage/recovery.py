"""Recovers a log after a crash: it keeps the longest prefix whose entries and data hold, and nothing else.

Rules:
- Nothing but the recovery point is cut or rewritten before `before_cut` has returned. There the caller drops its proof
  of a clean start (I8): otherwise a second crash would make the loss look clean.
- What is cut here is a cut like any other (storage.cuts): it is on the disk before the log is written to again.
- A complete entry that is cut was perhaps acknowledged: it is counted. Torn bytes behind the last entry never were.
- What lies below the recovery point is on the disk as it was written: its sizes and entries are checked, but not every
  byte of its data (storage.recovery_point). A recovery that cuts below the point lowers it first.
- The epoch history follows from the entries. Its file only adds an epoch that has no records yet.
- The log starts where log_start.json says, which was on the disk before anything below it went. So segments below were
  being removed, and go without being counted. Where the file is missing, nothing was ever removed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from crc32c import crc32c

from spark_replication.core.replica.epochs import NO_EPOCH, EpochHistory
from spark_replication.errors import CorruptLog, CorruptState, StorageFailed
from spark_replication.model import Offset, Value, decode, encode
from spark_replication.storage.batches import schema_from_bytes
from spark_replication.storage.cuts import CUT_FILE, Cuts
from spark_replication.storage.epochs_file import EPOCHS_FILE, EpochsFile
from spark_replication.storage.failed_sync import read_failed_sync
from spark_replication.storage.files import Files
from spark_replication.storage.high_watermarks import HIGH_WATERMARKS_FILE, HighWatermarks
from spark_replication.storage.index import (
    ENTRY_BYTES,
    NO_TIMESTAMP,
    Entries,
    Prefix,
    as_array,
    continues,
    whole_prefix,
)
from spark_replication.storage.recovery_point import RecoveryPoint
from spark_replication.storage.segment import Segment, cut_files, data_path, index_path, remove_files, segment_bases
from spark_replication.storage.segment_memory import SegmentMemory
from spark_replication.storage.state_files import BESIDE, read_checked, write_checked

LOG_START_FILE = "log_start.json"

_READ_BYTES = 8 << 20


class LogStart(Value, frozen=True, kw_only=True):
    """log_start.json."""

    offset: int


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


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
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


class _Scan(msgspec.Struct, frozen=True, kw_only=True):
    """One segment as it lies on disk, and what of it holds."""

    base: Offset
    kept: int
    end: Offset
    data_kept: int
    data_bytes: int
    index_bytes: int
    timestamp_max_ms: int
    has_index: bool
    schema: bytes
    epochs: tuple[tuple[int, Offset], ...]
    why: str

    @property
    def entries_cut(self) -> int:
        # Without its index nobody can say how many entries the data had: it counts as one.
        return self.index_bytes // ENTRY_BYTES - self.kept if self.has_index else 1

    @property
    def bytes_cut(self) -> int:
        return self.data_bytes - self.data_kept + self.index_bytes - self.kept * ENTRY_BYTES


class _Below(msgspec.Struct, frozen=True, kw_only=True):
    """The log below a segment."""

    end: Offset
    #: Its last one.
    epoch: int
    #: That of its last segment; empty if there is none.
    schema: bytes
    #: The recovery point.
    trusted_to: Offset


def recover(
    folder: Path,
    before_cut: Callable[[], None],
    *,
    files: Files,
    memory: SegmentMemory,
    high_watermarks: HighWatermarks,
) -> Recovered:
    """Cut the log in `folder` to what holds, and return it. Raises StorageFailed if the disk cannot be read or
    written."""
    try:
        return _recover(folder, before_cut, files, memory, high_watermarks)
    except OSError as error:
        raise StorageFailed(
            f"recovery of {folder} failed: {error}. Repair the disk, then restart the broker"
        ) from error


def _recover(
    folder: Path,
    before_cut: Callable[[], None],
    files: Files,
    memory: SegmentMemory,
    high_watermarks: HighWatermarks,
) -> Recovered:
    names = files.file_names(folder)
    if not names:  # a new log: a topic may make ten thousand, and three more looks at each would cost time
        return _empty(folder, files, memory, high_watermarks)
    # A lost checkpoint counts as one at the log's start: a leader finds the high watermark again by its followers.
    rebuilt = [HIGH_WATERMARKS_FILE] if high_watermarks.is_damaged else []
    bases = segment_bases(names)
    log_start = _log_start(files, folder, bases, rebuilt)
    recovery_point = RecoveryPoint.read(folder, files)
    bases_kept = [base for base in bases if base >= log_start]
    scans, cut = _scan_all(files, folder, bases_kept, log_start, trusted_to=recovery_point.offset)
    kept = [scan for scan in scans if scan.kept]
    log_end = kept[-1].end if kept else log_start
    starts = [start for scan in kept for start in scan.epochs]
    epochs_file = EpochsFile(folder, files)
    epochs = _epochs(
        epochs_file, starts, log_start, log_end, cut=any(scan.entries_cut for scan in cut), rebuilt=rebuilt
    )
    checkpoint = max(log_start, high_watermarks.of(folder.name))
    cuts = Cuts(folder, files, pending=CUT_FILE in names)
    flushed_end_before = read_failed_sync(files, folder)
    if flushed_end_before is not None:
        flushed_end_before = max(flushed_end_before, recovery_point.offset)
    why = cut[0].why if cut else ""
    report = RecoveryReport(
        folder=str(folder),
        log_end=log_end,
        batches_kept=sum(scan.kept for scan in kept),
        entries_cut=sum(scan.entries_cut for scan in cut),
        bytes_cut=sum(scan.bytes_cut for scan in cut),
        why=why or ("a sync of it had failed" if flushed_end_before is not None else ""),
        below_high_watermark=checkpoint > log_end,
        rebuilt=tuple(rebuilt),
        sync_failed=flushed_end_before is not None,
    )
    high_watermark = min(checkpoint, log_end)
    recovery_point.fall_to(log_end)
    if cut or rebuilt or report.below_high_watermark:
        before_cut()
        if cut:
            cuts.begin()
        for scan in reversed(cut):
            _cut(files, folder, scan)
        high_watermarks.lower(folder.name, high_watermark)
        epochs_file.save(epochs)
        if LOG_START_FILE in rebuilt:
            save_log_start(files, folder, log_start)
    for base in bases:
        if base < log_start:
            remove_files(files, folder, base)
    for name in names:
        if name.endswith(BESIDE):
            files.remove(folder / name)
    segments = tuple(
        Segment(
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
        for scan in kept
    )
    return Recovered(
        folder=folder,
        files=files,
        memory=memory,
        log_start=log_start,
        segments=segments,
        epochs=epochs,
        epochs_file=epochs_file,
        high_watermark=high_watermark,
        high_watermarks=high_watermarks,
        recovery_point=recovery_point,
        cuts=cuts,
        flushed_end_before=flushed_end_before,
        report=report,
    )


def read_log_start(files: Files, folder: Path) -> Offset:
    """The start of the log; 0 if it was never trimmed, since then there is no such file."""
    path = folder / LOG_START_FILE
    data = read_checked(path, files)
    return decode(data, LogStart, str(path)).offset if data is not None else 0


def save_log_start(files: Files, folder: Path, offset: Offset) -> None:
    """Bring the log's start to the disk before this returns: what lies below is removed next."""
    value = encode(LogStart(offset=offset))
    files.with_reserve(lambda: write_checked(folder / LOG_START_FILE, value, durable=True, files=files))


def _scan_all(
    files: Files, folder: Path, bases: list[Offset], log_start: Offset, *, trusted_to: Offset
) -> tuple[list[_Scan], list[_Scan]]:
    """Scan all segments. Returns all of them, and those that must be cut: the one that breaks off, and all after it."""
    scans: list[_Scan] = []
    cut: list[_Scan] = []
    below = _Below(end=log_start, epoch=NO_EPOCH, schema=b"", trusted_to=trusted_to)
    for base in bases:
        scan = _scan(files, folder, base, below, broken=bool(cut))
        scans.append(scan)
        if scan.why:
            cut.append(scan)
        if scan.kept:
            below = _Below(end=scan.end, epoch=scan.epochs[-1][0], schema=scan.schema, trusted_to=trusted_to)
    return scans, cut


def _scan(files: Files, folder: Path, base: Offset, below: _Below, *, broken: bool) -> _Scan:
    """Scan one segment. With `broken`, something below it did not hold: then all of it must go."""
    schema = below.schema
    data_file, index_file = data_path(folder, base), index_path(folder, base)
    has_index = files.size(index_file) is not None
    index = files.read_whole(index_file) if has_index else b""
    data_bytes = files.size(data_file) or 0
    entries = as_array(index)
    if broken:
        prefix = Prefix(0, "a segment before it is broken")
    elif base != below.end:
        prefix = Prefix(0, f"it starts at {base}, the log before it ends at {below.end}")
    elif data_bytes == 0 or not has_index:
        prefix = Prefix(0, "one of its two files is missing")
    else:
        prefix, schema = _whole_batches(files, data_file, index, data_bytes, below)
    kept = prefix.kept
    last = entries[kept - 1] if kept else None
    data_kept = int(last["position"]) + int(last["bytes"]) if last is not None else 0
    why = prefix.why
    if not why and len(index) > kept * ENTRY_BYTES:
        why = "its last entry is torn"
    if not why and (data_bytes > data_kept or not kept):
        why = "there are bytes without an entry" if kept else "it has no batches"
    return _Scan(
        base=base,
        kept=kept,
        end=int(last["last_offset"]) + 1 if last is not None else base,
        data_kept=data_kept,
        data_bytes=data_bytes,
        index_bytes=len(index),
        timestamp_max_ms=int(last["timestamp_max_ms"]) if last is not None else NO_TIMESTAMP,
        has_index=has_index,
        schema=schema,
        epochs=epoch_starts(entries[:kept]),
        why=f"segment {base:020}: {why}" if why else "",
    )


def epoch_starts(entries: Entries) -> tuple[tuple[int, Offset], ...]:
    """(epoch, offset) where each leader epoch begins among these entries; the first entry begins one."""
    epochs = entries["leader_epoch"]
    changes = [0, *((epochs[1:] != epochs[:-1]).nonzero()[0] + 1).tolist()] if len(epochs) else []
    return tuple((int(epochs[place]), int(entries["base_offset"][place])) for place in changes)


def _whole_batches(files: Files, data_file: Path, index: bytes, data_bytes: int, below: _Below) -> tuple[Prefix, bytes]:
    """What of one segment holds, data included, and its schema message. That is the very object of the segment before,
    if both are equal."""
    schema = below.schema
    trusted = _trusted(as_array(index), below, data_bytes)
    prefix = _whole_entries(index, trusted, below, data_bytes)
    if prefix.kept == 0:
        return prefix, schema
    entries = as_array(index)[: prefix.kept]
    head = files.read(data_file, int(entries["position"][0]), 0)
    named = entries["schema_crc"]
    others = ((named != 0) & (named != crc32c(head))).nonzero()[0]
    if len(others):
        first = int(others[0])
        prefix = Prefix(first, f"its schema does not have the CRC-32C that entry {first} names")
        if first == 0:
            return prefix, schema
        entries = entries[:first]
    if head != schema:
        try:
            schema_from_bytes(head, str(data_file))
        except CorruptLog as error:
            return Prefix(0, error.message), schema
    sound = _sound_data(files, data_file, entries, min(trusted, prefix.kept))
    if sound < prefix.kept:
        prefix = Prefix(sound, f"the batch at offset {int(entries['base_offset'][sound])} does not have its CRC-32C")
    return prefix, schema if head == schema else head


def _trusted(entries: Entries, below: _Below, data_bytes: int) -> int:
    """How many entries, from the first on, are of batches below the recovery point; 0 unless all of them continue the
    log."""
    count = int(entries["last_offset"].searchsorted(below.trusted_to))
    fits = continues(entries[:count], base=below.end, epoch=below.epoch, data_bytes=data_bytes)
    return count if fits else 0


def _whole_entries(index: bytes, trusted: int, below: _Below, data_bytes: int) -> Prefix:
    if not trusted:
        return whole_prefix(index, base=below.end, epoch=below.epoch, data_bytes=data_bytes)
    last = as_array(index)[trusted - 1]
    rest = whole_prefix(
        memoryview(index)[trusted * ENTRY_BYTES :],
        base=int(last["last_offset"]) + 1,
        epoch=int(last["leader_epoch"]),
        position=int(last["position"]) + int(last["bytes"]),
        data_bytes=data_bytes,
    )
    return Prefix(trusted + rest.kept, rest.why)


def _sound_data(files: Files, data_file: Path, entries: Entries, trusted: int) -> int:
    """How many batches, from the first on, have the CRC-32C that their entries name. The first `trusted` are not read.
    The others are read many at a time."""
    positions, sizes, checksums = (entries[name].tolist() for name in ("position", "bytes", "crc"))
    start = trusted
    while start < len(positions):
        beyond = start + 1
        while beyond < len(positions) and positions[beyond] + sizes[beyond] - positions[start] <= _READ_BYTES:
            beyond += 1
        length = positions[beyond - 1] + sizes[beyond - 1] - positions[start]
        data = memoryview(files.read(data_file, length, positions[start]))
        for place in range(start, beyond):
            at = positions[place] - positions[start]
            if crc32c(data[at : at + sizes[place]]) != checksums[place]:
                return place
        start = beyond
    return start


def _cut(files: Files, folder: Path, scan: _Scan) -> None:
    if scan.kept:
        cut_files(files, folder, scan.base, data_bytes=scan.data_kept, index_bytes=scan.kept * ENTRY_BYTES)
    else:
        remove_files(files, folder, scan.base)


def _empty(folder: Path, files: Files, memory: SegmentMemory, high_watermarks: HighWatermarks) -> Recovered:
    return Recovered(
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
