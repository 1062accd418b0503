"""One segment: `<base>.arrow`, a plain Arrow IPC stream without its end marker, and `<base>.index`, an entry per batch.

Rules:
- Data is written before its index entry, each by one write at its own place, with no buffer in between (F0). Bytes past
  `data_bytes` and `index_bytes` are torn: they are never read, and the next append overwrites them.
- When files are cut or removed, entries go before their data. A crash in between leaves data without entries, which
  nobody was ever told of, and never entries without data, which would look like a loss (I8).
- When files are made, the index comes first: data without an index would look like a loss, too.
- A segment that a log holds has at least one batch.
- Methods raise the files' own OSError: the log decides what to do about it.
"""

from __future__ import annotations

import errno
from functools import cached_property
from pathlib import Path

from crc32c import crc32c

from spark_replication.model import Offset, TimeMs
from spark_replication.ports import DamagedBatch, LogSlice, Records, StoredSlice
from spark_replication.storage.disk.files import Files
from spark_replication.storage.format.entry_arrays import newest_of_producers
from spark_replication.storage.format.index import (
    ENTRY_BYTES,
    NO_TIMESTAMP,
    Buffer,
    IndexEntry,
    count_to,
    entry_at,
    last_offset_at,
    place_of_offset,
    place_of_time,
    timestamp_max_at,
)
from spark_replication.storage.format.pieces import Batches, batches_between
from spark_replication.storage.log.segment_files import data_path, index_path
from spark_replication.storage.log.segment_memory import SegmentMemory


class Segment:
    """Invariant: the first `data_bytes` and `index_bytes` of its files hold exactly the batches in [base, end)."""

    def __init__(
        self,
        folder: Path,
        base: Offset,
        schema: bytes,
        *,
        end: Offset,
        data_bytes: int,
        index_bytes: int,
        timestamp_max_ms: int,
        files: Files,
        memory: SegmentMemory,
    ) -> None:
        self.folder = folder
        self.base = base
        self.schema = schema
        self.end = end
        self.data_bytes = data_bytes
        self.index_bytes = index_bytes
        #: The latest of its batches' timestamps; NO_TIMESTAMP without any.
        self.timestamp_max_ms = timestamp_max_ms
        self._files = files
        self._memory = memory

    @classmethod
    def create(cls, folder: Path, base: Offset, schema: bytes, files: Files, memory: SegmentMemory) -> Segment:
        """Make a segment that is empty but for its schema. What a crash left under its name is overwritten."""
        segment = cls(
            folder,
            base,
            schema,
            end=base,
            data_bytes=len(schema),
            index_bytes=0,
            timestamp_max_ms=NO_TIMESTAMP,
            files=files,
            memory=memory,
        )
        try:
            files.create(segment.index_path, b"")
            files.create(segment.data_path, schema)
        except OSError:
            segment.remove()
            raise
        return segment

    @cached_property
    def data_path(self) -> Path:
        return data_path(self.folder, self.base)

    @cached_property
    def index_path(self) -> Path:
        return index_path(self.folder, self.base)

    @cached_property
    def schema_crc(self) -> int:
        return crc32c(self.schema)

    @cached_property
    def timestamp_first_ms(self) -> int:
        """When its first batch was appended, which never changes. Only for a segment that has a batch."""
        return entry_at(self._stored_entries(ENTRY_BYTES), 0).timestamp_ms

    def append(self, data: Buffer, entries: bytes, end: Offset) -> None:
        """Append to both files. After an OSError the segment is as it was, and `cut_torn` makes its files so."""
        self._files.write(self.data_path, data, self.data_bytes)
        self._files.write(self.index_path, entries, self.index_bytes)
        self._memory.indexes.extend(self, entries)
        self.data_bytes += len(data)
        self.index_bytes += len(entries)
        self.end = end
        self.timestamp_max_ms = timestamp_max_at(entries, len(entries) // ENTRY_BYTES - 1)

    def cut_torn(self) -> None:
        self._files.truncate(self.index_path, self.index_bytes)
        self._files.truncate(self.data_path, self.data_bytes)

    def newest(self, records: LogSlice) -> None:
        """Remember the batch that was appended last. Nobody may change its bytes."""
        self._memory.newest.appended(self, records)

    def find(self, offset: Offset, *, bytes_max: int, end: Offset) -> Records | None:
        """As many whole batches of this segment as fit, from the one that holds `offset` on, in one range of its
        data."""
        newest = self._memory.newest.get(self)
        if newest is not None and newest.first_offset == offset and newest.next_offset <= end:
            return newest
        return self.find_stored(offset, bytes_max=bytes_max, end=end)

    def find_stored(self, offset: Offset, *, bytes_max: int, end: Offset) -> StoredSlice | None:
        """As `find`, but always in the file."""
        entries = self._entries()
        first = place_of_offset(entries, offset)
        beyond = self.index_bytes // ENTRY_BYTES if end >= self.end else place_of_offset(entries, end)
        if first >= beyond:
            return None
        start = entry_at(entries, first)
        fitting = _fitting(entries, first, beyond, start.position + bytes_max)
        last = entry_at(entries, fitting - 1)
        length = last.position + last.bytes - start.position
        return StoredSlice(
            first_offset=start.base_offset,
            next_offset=last.last_offset + 1,
            segment_base=self.base,
            entries=bytes(memoryview(entries)[first * ENTRY_BYTES : fitting * ENTRY_BYTES]),
            data=self._files.stored(self.data_path, length, start.position),
            schema=self.schema,
        )

    def damaged(self, start: Offset, end: Offset) -> list[DamagedBatch]:
        """See ports.ReplicaLog."""
        entries = self._entries()
        places = range(place_of_offset(entries, start), count_to(entries, end))
        looked = (self._damage_of(entry_at(entries, place)) for place in places)
        return [found for found in looked if found is not None]

    def _damage_of(self, entry: IndexEntry) -> DamagedBatch | None:
        try:
            data = self._files.read(self.data_path, entry.bytes, entry.position)
        except OSError as error:
            why = f"it cannot be read: {error}"
        else:
            if len(data) == entry.bytes and crc32c(data) == entry.crc:
                return None
            cut = len(data) < entry.bytes
            why = f"the file has {len(data)} of its {entry.bytes} bytes" if cut else "it does not have its CRC-32C"
        return DamagedBatch(
            entry.base_offset, entry.last_offset, str(self.data_path), entry.position, entry.bytes, entry.crc, why
        )

    def mend(self, batch: DamagedBatch, data: bytes) -> bool:
        """Write the bytes of this batch again. False if they are not its bytes, or there is no such batch."""
        entries = self._entries()
        place = place_of_offset(entries, batch.base_offset)
        if place == len(entries) // ENTRY_BYTES:
            return False
        entry = entry_at(entries, place)
        wanted = (batch.base_offset, batch.last_offset, len(data), crc32c(data))
        if wanted != (entry.base_offset, entry.last_offset, entry.bytes, entry.crc):
            return False
        self._files.write(self.data_path, data, entry.position)
        return True

    def bytes_from(self, offset: Offset) -> int:
        """The bytes of the batches from the one that holds `offset` on."""
        entries = self._entries()
        place = place_of_offset(entries, offset)
        return self.data_bytes - entry_at(entries, place).position if place < len(entries) // ENTRY_BYTES else 0

    def batches_between(self, start: Offset, end: Offset) -> Batches:
        return batches_between(self._entries(), start, end)

    def boundary(self, offset: Offset) -> Offset:
        """Where the batch that holds `offset` starts; `end` if `offset` is past them all."""
        entries = self._entries()
        place = place_of_offset(entries, offset)
        return entry_at(entries, place).base_offset if place < len(entries) // ENTRY_BYTES else self.end

    def offset_of_time(self, timestamp_ms: int) -> Offset | None:
        if self.timestamp_max_ms < timestamp_ms:
            return None
        entries = self._entries()
        return entry_at(entries, place_of_time(entries, timestamp_ms)).base_offset

    def time_of(self, offset: Offset) -> TimeMs:
        """When the batch that holds `offset` was appended."""
        entries = self._entries()
        return entry_at(entries, place_of_offset(entries, offset)).timestamp_ms

    def newest_of_producers(self, count: int) -> list[IndexEntry]:
        """The last `count` batches of each idempotent producer, in their order."""
        # A copy: a bytearray cannot grow while there is a view of it.
        return newest_of_producers(bytes(self._entries()), count)

    def truncate(self, boundary: Offset) -> None:
        """Cut to `boundary`, the start of one of its batches but the first."""
        entries = self._entries()
        place = place_of_offset(entries, boundary)
        first_gone = entry_at(entries, place)
        assert place > 0, "a segment without batches is removed"
        assert first_gone.base_offset == boundary, "a batch is never cut in two"
        assert last_offset_at(entries, place - 1) + 1 == boundary
        # Memory first: even if the disk refuses, what was to be forgotten is not served.
        self._memory.drop(self)
        self.end, self.data_bytes, self.index_bytes = boundary, first_gone.position, place * ENTRY_BYTES
        self.timestamp_max_ms = timestamp_max_at(entries, place - 1)
        self.cut_torn()

    def remove(self) -> None:
        self._memory.drop(self)
        remove_files(self._files, self.folder, self.base)

    def release(self) -> None:
        """Give back descriptors and memory until the next use."""
        self._memory.drop(self)
        self._files.release(self.data_path)
        self._files.release(self.index_path)

    def _entries(self) -> bytearray:
        found = self._memory.indexes.get(self)
        if found is None:
            found = bytearray(self._stored_entries(self.index_bytes))
            self._memory.indexes.put(self, found)
        return found

    def _stored_entries(self, length: int) -> bytes:
        """The first `length` bytes of the index file."""
        entries = self._files.read(self.index_path, length, 0)
        if len(entries) < length:
            raise OSError(errno.EIO, f"the index has {len(entries)} of {length} bytes")
        return entries


def _fitting(entries: bytearray, first: int, beyond: int, position_max: int) -> int:
    """The place after the last batch, from `first` on, that ends at or below `position_max`: at least `first` + 1, at
    most `beyond`."""
    fitting, above = first + 1, beyond
    middle = beyond  # a reader near the end gets all there is, as a rule: try that first
    while fitting < above:
        last = entry_at(entries, middle - 1)
        if last.position + last.bytes <= position_max:
            fitting = middle
        else:
            above = middle - 1
        middle = (fitting + above + 1) // 2
    return fitting


def cut_files(files: Files, folder: Path, base: Offset, *, data_bytes: int, index_bytes: int) -> None:
    """Cut both files to these sizes. Neither may be shorter."""
    files.truncate(index_path(folder, base), index_bytes)
    files.truncate(data_path(folder, base), data_bytes)


def remove_files(files: Files, folder: Path, base: Offset) -> None:
    """Remove both files. A crash at any point leaves no entry that was not there, and none whose data is gone."""
    index = index_path(folder, base)
    if files.size(index):
        files.truncate(index, 0)
    files.remove(data_path(folder, base))
    files.remove(index)
