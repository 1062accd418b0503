"""One segment: `<base>.arrow`, a plain Arrow IPC stream without its end marker, and `<base>.index`, an entry per batch.

Rules:
- Data before index entry, each by write(2) at its own place, no buffer in between (F0). Whatever lies in the files past
  `data_bytes` and `index_bytes` is torn: it is never read, and the next append overwrites it.
- When files are cut or removed, entries go before their data: a crash in between leaves data without entries, which
  nobody was ever told of, and not entries without data, which would look like a loss (I8).
- A segment that a log holds has at least one batch.
Methods raise OSError as the kernel gave it; the log says what to do about it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spark_replication.model import Offset
from spark_replication.ports import LogSlice
from spark_replication.storage.index import (
    ENTRY_BYTES,
    NO_TIMESTAMP,
    Buffer,
    IndexEntry,
    decode_entries,
    entry_at,
    last_offset_at,
    place_of_offset,
    place_of_time,
    timestamp_max_at,
)
from spark_replication.storage.state_files import read_fully, write_fully


def data_path(folder: Path, base: Offset) -> Path:
    return folder / f"{base:020}.arrow"


def index_path(folder: Path, base: Offset) -> Path:
    return folder / f"{base:020}.index"


class _Opened(msgspec.Struct):
    """Descriptors, and the index in memory: it is searched for every fetch, and 80 bytes a batch are few."""

    data: int
    index: int
    entries: bytearray


class Segment:
    """Invariant: the first `data_bytes` and `index_bytes` of its files hold exactly the batches in [base, end)."""

    def __init__(
        self, folder: Path, base: Offset, schema: bytes, *, end: Offset, data_bytes: int, index_bytes: int
    ) -> None:
        self.folder = folder
        self.base = base
        self.schema = schema
        self.end = end
        self.data_bytes = data_bytes
        self.index_bytes = index_bytes
        self._opened: _Opened | None = None

    @classmethod
    def create(cls, folder: Path, base: Offset, schema: bytes) -> Segment:
        """Empty but for its schema. What a crash left under its name is overwritten."""
        segment = cls(folder, base, schema, end=base, data_bytes=len(schema), index_bytes=0)
        try:
            for path, content in ((segment.data_path, schema), (segment.index_path, b"")):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                try:
                    write_fully(handle, content, 0)
                finally:
                    os.close(handle)
        except OSError:
            segment.remove()
            raise
        return segment

    @property
    def data_path(self) -> Path:
        return data_path(self.folder, self.base)

    @property
    def index_path(self) -> Path:
        return index_path(self.folder, self.base)

    @property
    def timestamp_max_ms(self) -> int:
        entries = self._open().entries
        return timestamp_max_at(entries, len(entries) // ENTRY_BYTES - 1) if entries else NO_TIMESTAMP

    def append(self, data: Buffer, entries: bytes, end: Offset) -> None:
        """After an OSError the segment is as it was, and `cut_torn` makes its files so."""
        opened = self._open()
        write_fully(opened.data, data, self.data_bytes)
        write_fully(opened.index, entries, self.index_bytes)
        opened.entries += entries
        self.data_bytes += len(data)
        self.index_bytes += len(entries)
        self.end = end

    def cut_torn(self) -> None:
        opened = self._open()
        os.ftruncate(opened.index, self.index_bytes)
        os.ftruncate(opened.data, self.data_bytes)

    def read(self, offset: Offset, *, bytes_max: int, end: Offset) -> LogSlice | None:
        """Within this segment: as many whole batches as fit, one read of one range."""
        opened = self._open()
        entries = opened.entries
        first = place_of_offset(entries, offset)
        beyond = self.index_bytes // ENTRY_BYTES if end >= self.end else place_of_offset(entries, end)
        if first >= beyond:
            return None
        start = entry_at(entries, first)
        fitting = _fitting(entries, first, beyond, start.position + bytes_max)
        last = entry_at(entries, fitting - 1)
        length = last.position + last.bytes - start.position
        data = read_fully(opened.data, length, start.position)
        if len(data) < length:
            raise OSError(errno.EIO, f"the file is shorter than its index says: {len(data)} of {length} bytes")
        return LogSlice(
            first_offset=start.base_offset,
            next_offset=last.last_offset + 1,
            segment_base=self.base,
            entries=bytes(memoryview(entries)[first * ENTRY_BYTES : fitting * ENTRY_BYTES]),
            data=data,
            schema=self.schema if first == 0 else b"",
        )

    def bytes_from(self, offset: Offset) -> int:
        """Of the batches from the one that holds `offset` on."""
        entries = self._open().entries
        place = place_of_offset(entries, offset)
        return self.data_bytes - entry_at(entries, place).position if place < len(entries) // ENTRY_BYTES else 0

    def boundary(self, offset: Offset) -> Offset:
        """Where the batch that holds `offset` starts; `end` if it is past them all."""
        entries = self._open().entries
        place = place_of_offset(entries, offset)
        return entry_at(entries, place).base_offset if place < len(entries) // ENTRY_BYTES else self.end

    def offset_of_time(self, timestamp_ms: int) -> Offset | None:
        entries = self._open().entries
        place = place_of_time(entries, timestamp_ms)
        return entry_at(entries, place).base_offset if place < len(entries) // ENTRY_BYTES else None

    def entries(self) -> Iterator[IndexEntry]:
        # A copy: the caller may append between two entries, and a bytearray that is being looked at cannot grow.
        return decode_entries(bytes(self._open().entries))

    def truncate(self, boundary: Offset) -> None:
        """Cut to `boundary`, the start of one of its batches but the first."""
        opened = self._open()
        place = place_of_offset(opened.entries, boundary)
        first_gone = entry_at(opened.entries, place)
        assert place > 0, "a segment without batches is removed"
        assert first_gone.base_offset == boundary, "a batch is never cut in two"
        # Memory first: should the disk refuse, what was to be forgotten is not served all the same.
        self.end, self.data_bytes, self.index_bytes = boundary, first_gone.position, place * ENTRY_BYTES
        del opened.entries[self.index_bytes :]
        assert last_offset_at(opened.entries, place - 1) + 1 == boundary
        self.cut_torn()

    def remove(self) -> None:
        self.release()
        remove_files(self.folder, self.base)

    def flush(self) -> None:
        """Data, then index, as they were written. Files that are not open are opened for the moment only."""
        if self._opened is not None:
            os.fdatasync(self._opened.data)
            os.fdatasync(self._opened.index)
            return
        for path in (self.data_path, self.index_path):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(handle)
            finally:
                os.close(handle)

    def release(self) -> None:
        """Give back descriptors and memory until the next use."""
        opened, self._opened = self._opened, None
        if opened is not None:
            os.close(opened.data)
            os.close(opened.index)

    def _open(self) -> _Opened:
        if self._opened is None:
            data = os.open(self.data_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                index = os.open(self.index_path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                os.close(data)
                raise
            try:
                entries = read_fully(index, self.index_bytes, 0)
                if len(entries) < self.index_bytes:
                    raise OSError(errno.EIO, f"the index has {len(entries)} of {self.index_bytes} bytes")
            except OSError:
                os.close(data)
                os.close(index)
                raise
            self._opened = _Opened(data, index, bytearray(entries))
        return self._opened


def _fitting(entries: bytearray, first: int, beyond: int, position_max: int) -> int:
    """How far batches from `first` end at or below `position_max`: past `first` at least, at most to `beyond`."""
    fitting, above = first + 1, beyond
    middle = beyond  # who follows closely gets all there is: try that first
    while fitting < above:
        last = entry_at(entries, middle - 1)
        if last.position + last.bytes <= position_max:
            fitting = middle
        else:
            above = middle - 1
        middle = (fitting + above + 1) // 2
    return fitting


def cut_files(folder: Path, base: Offset, *, data_bytes: int, index_bytes: int) -> None:
    """To these sizes. Never called on files that are shorter."""
    os.truncate(index_path(folder, base), index_bytes)
    os.truncate(data_path(folder, base), data_bytes)


def remove_files(folder: Path, base: Offset) -> None:
    """A crash at any point leaves no entry that was not there, and none whose data is gone."""
    index = index_path(folder, base)
    if index.exists():
        os.truncate(index, 0)
    data_path(folder, base).unlink(missing_ok=True)
    index.unlink(missing_ok=True)
