"""What of a log's segments holds, as they lie on disk: the longest prefix whose entries and data are sound.

Below the recovery point sizes and entries are checked, but not every byte of the data (storage.log.recovery_point).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from crc32c import crc32c

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.errors import CorruptLog
from spark_replication.model import Offset
from spark_replication.storage.disk.files import Files
from spark_replication.storage.format.batches import schema_from_bytes
from spark_replication.storage.format.entry_arrays import Entries, as_array, continues
from spark_replication.storage.format.index import ENTRY_BYTES, NO_TIMESTAMP, Prefix, whole_prefix
from spark_replication.storage.log.segment_files import data_path, index_path

_READ_BYTES = 8 << 20


class Scan(msgspec.Struct, frozen=True, kw_only=True):
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


class Scans(msgspec.Struct, frozen=True):
    """The segments of a log as they lie on disk."""

    all: list[Scan]
    #: Those that must be cut: the one that breaks off, and all after it.
    cut: list[Scan]
    #: The bases of copies for a start of the log that was never stored (storage.log.segment_copy).
    unstarted: list[Offset]


def scan_all(files: Files, folder: Path, bases: list[Offset], log_start: Offset, *, trusted_to: Offset) -> Scans:
    """Scan all segments. One that begins within the log before it is a copy, since no segment of a log does."""
    found = Scans([], [], [])
    below = _Below(end=log_start, epoch=NO_EPOCH, schema=b"", trusted_to=trusted_to)
    for base in bases:
        if base < below.end:
            found.unstarted.append(base)
            continue
        scan = _scan(files, folder, base, below, broken=bool(found.cut))
        found.all.append(scan)
        if scan.why:
            found.cut.append(scan)
        if scan.kept:
            below = _Below(end=scan.end, epoch=scan.epochs[-1][0], schema=scan.schema, trusted_to=trusted_to)
    return found


def _scan(files: Files, folder: Path, base: Offset, below: _Below, *, broken: bool) -> Scan:
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
    return Scan(
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
