"""A partition's folder, looked at from outside: read, never locked, cut or repaired. A broker may write it meanwhile.

Rules:
- The index is read before the data, so that the data that it names is there. Bytes behind the last entry are no damage:
  they are of an append under way, or of one that a crash has torn, and nobody was told of them.
- The index is read and not mapped: what was checked must not change, and retention cuts an index to nothing before it
  removes it. Data is removed whole, which a map outlives.
- Data is mapped as far as the index says, once the file is known to be that long. If the file is cut after that, or its
  disk fails, the kernel ends a process that looks at the map there (SIGBUS), which nobody can catch. Below the high
  watermark only an unclean election makes a broker cut. Whoever looks for damage, or must not be ended by it, does not
  map: what is read is a copy, and what cannot be read is an error.
- Files may be damaged: whatever does not hold raises CorruptLog or CorruptState. But only `verify` looks at the rows,
  by their CRC-32C: without it damaged rows are handed out as they are.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import start_of
from spark_replication.errors import CorruptLog, OffsetOutOfRange, StorageFailed
from spark_replication.model import Offset, Start
from spark_replication.ports import LogSlice
from spark_replication.storage.directory.broker_directory import IDENTITY_FILE
from spark_replication.storage.disk.files import Files, LocalFiles
from spark_replication.storage.format.batches import are_versions, check_data, in_pieces, projected, schema_from_bytes
from spark_replication.storage.format.index import (
    ENTRY_BYTES,
    NO_TIMESTAMP,
    IndexEntry,
    count_below,
    count_to,
    decode_entries,
    entry_at,
    field_of_each,
    last_offset_at,
    place_of_offset,
    place_of_time,
    whole_prefix,
)
from spark_replication.storage.log.high_watermarks import read_high_watermarks
from spark_replication.storage.log.log_start import read_log_start
from spark_replication.storage.log.segment_files import data_path, index_path, segment_bases

RUN_BYTES = 4 << 20  # of data that is taken at a time

_FILES = LocalFiles(open_files_max=1)

Data = Callable[[int, int], bytes | memoryview]  # reads a file: from a position on, so many bytes
Run = tuple[LogSlice, list[pa.RecordBatch]]  # a batch for each entry
Found = tuple[Offset, int, int, pa.RecordBatch]  # offset of the first row, leader epoch, timestamp in ms, batch


class StoredSegment:
    """One segment as it lay in its folder when it was opened, with the schema that heads it.

    Invariant: its entries hold, one after the other from `base` to `end`, and their data was there.
    """

    def __init__(self, folder: Path, base: Offset, *, epoch: int, mapped: bool) -> None:
        """`epoch` is the last one of the log before it. If `mapped`, its batches are views of a map, else of what was
        read."""
        self.base = base
        self._path = data_path(folder, base)
        self._mapped = mapped
        with _read_of(base):
            index = index_path(folder, base).read_bytes()
            self._data_bytes = self._path.stat().st_size if index else 0
        prefix = whole_prefix(index, base=base, epoch=epoch, data_bytes=self._data_bytes)
        #: What is wrong with what comes after the entries; empty if nothing is.
        self.why = f"segment {base:020}: {prefix.why}" if prefix.why else ""
        self._index_bytes = len(index)
        self._index = index[: prefix.kept * ENTRY_BYTES]
        self._count = prefix.kept
        last = entry_at(index, prefix.kept - 1) if prefix.kept else None
        self.end = last.last_offset + 1 if last else base
        #: NO_EPOCH without batches.
        self.last_epoch = last.leader_epoch if last else NO_EPOCH
        self._end_position = last.position + last.bytes if last else 0
        self._timestamp_max_ms = last.timestamp_max_ms if last else NO_TIMESTAMP

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of its batches. Only for a segment that has any."""
        with self._data() as data:
            head = data(0, entry_at(self._index, 0).position)
            if count_below(crc32c(head), self._index) < self._count:
                raise CorruptLog(f"segment {self.base:020}: its schema does not have the CRC-32C that its entries name")
            return schema_from_bytes(head, f"segment {self.base:020}")

    @property
    def bytes_behind(self) -> tuple[int, int]:
        """How many bytes of its data and of its index lie behind the last entry that holds."""
        return self._data_bytes - self._end_position, self._index_bytes - len(self._index)

    def check_whole(self) -> None:
        """Raise CorruptLog if something after its end does not hold."""
        if self.why:
            raise CorruptLog(self.why)

    def offset_of_time(self, timestamp_ms: int) -> Offset | None:
        """Where the first batch that was appended at this time or later starts; None if none was."""
        if self._timestamp_max_ms < timestamp_ms:
            return None
        return entry_at(self._index, place_of_time(self._index, timestamp_ms)).base_offset

    def batches(self, *, verify: bool) -> Iterator[tuple[IndexEntry, pa.RecordBatch]]:
        for records, batches in self.runs(self.base, self.end, verify=verify):
            yield from zip(decode_entries(records.entries), batches, strict=True)

    def runs(self, start: Offset, end: Offset, *, verify: bool) -> Iterator[Run]:
        """Whole batches, from the one that holds `start` to the last that begins below `end`. Many come at once, since
        what a small one costs is Python. With `verify` their checksums are checked, too. The sound batches of a run
        with damage come before its CorruptLog."""
        first = place_of_offset(self._index, start)
        beyond = count_to(self._index, end)
        if first >= beyond:
            return
        for records in self._slices(first, beyond, bytes_max=RUN_BYTES):
            try:
                found = self._run(records, verify=verify)
            except CorruptLog as error:
                count = len(records.entries) // ENTRY_BYTES
                if count > 1:
                    yield from self._one_by_one(first, first + count, verify=verify)
                raise CorruptLog(f"segment {self.base:020}: {error.message}") from error
            first += len(found[1])
            yield found

    def _one_by_one(self, first: int, beyond: int, *, verify: bool) -> Iterator[Run]:
        for records in self._slices(first, beyond, bytes_max=1):
            try:
                yield self._run(records, verify=verify)
            except CorruptLog as error:
                raise CorruptLog(f"segment {self.base:020}: {error.message}") from error

    def _run(self, records: LogSlice, *, verify: bool) -> Run:
        if verify:
            check_data(records)
        return records, _decoded(records, self.schema, validate=verify)

    def _slices(self, first: int, beyond: int, *, bytes_max: int) -> Iterator[LogSlice]:
        """The entries from `first` to below `beyond`, with their data, in slices of at least one entry each."""

        def end_at(place: int) -> int:
            entry = entry_at(self._index, place)
            return entry.position + entry.bytes

        with self._data() as data:
            while first < beyond:
                start = entry_at(self._index, first)
                fitting = bisect_right(range(first, beyond), start.position + bytes_max, key=end_at)
                after = first + max(1, fitting)
                yield LogSlice(
                    first_offset=start.base_offset,
                    next_offset=last_offset_at(self._index, after - 1) + 1,
                    segment_base=self.base,
                    entries=self._index[first * ENTRY_BYTES : after * ENTRY_BYTES],
                    data=data(start.position, end_at(after - 1) - start.position),
                )
                first = after

    @contextmanager
    def _data(self) -> Iterator[Data]:
        if self._mapped:
            view = self._view
            yield lambda position, length: view[position : position + length]
            return
        with _read_of(self.base):
            file = self._path.open("rb")
        with file:
            yield lambda position, length: self._read(file.fileno(), position, length)

    @cached_property
    def _view(self) -> memoryview:
        """The map of its data. Batches refer to it: it goes with the last of them."""
        with _read_of(self.base), self._path.open("rb") as file:
            try:
                return memoryview(mmap.mmap(file.fileno(), self._end_position, access=mmap.ACCESS_READ))
            except ValueError as error:
                raise CorruptLog(f"segment {self.base:020}: its data has been cut: {error}") from error

    def _read(self, number: int, position: int, length: int) -> bytes:
        with _read_of(self.base):
            data = os.pread(number, length, position)
        if len(data) < length:
            raise CorruptLog(f"segment {self.base:020}: its data has been cut to {position + len(data)} bytes")
        return data


def _decoded(records: LogSlice, schema: pa.Schema, *, validate: bool) -> list[pa.RecordBatch]:
    """The batches of a slice. Raises CorruptLog unless they fill it, each with as many rows as its entry says."""
    source = pa.BufferReader(pa.py_buffer(records.data))
    messages = pa.ipc.MessageReader.open_stream(source)
    where = f"a batch from offset {records.first_offset} to {records.next_offset - 1}"
    try:
        batches = [
            pa.ipc.read_record_batch(messages.read_next_message(), schema)
            for _ in range(len(records.entries) // ENTRY_BYTES)
        ]
        if validate:
            for batch in batches:
                batch.validate()
    except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
        raise CorruptLog(f"{where} does not parse: {error}") from error
    spans = zip(*(field_of_each(records.entries, name) for name in ("base_offset", "last_offset")), strict=True)
    rows = [last - base + 1 for base, last in spans]
    if source.tell() != len(records.data) or [batch.num_rows for batch in batches] != rows:
        raise CorruptLog(f"{where} is not as long as its entry says")
    return batches


def segments_in(folder: Path, bases: Sequence[Offset], end: Offset, *, mapped: bool) -> Iterator[StoredSegment]:
    """The segments with these bases. Raises CorruptLog unless each begins where the one before it ends, the first at
    `end`. A copy for a start that was never stored is left out (storage.log.segment_copy)."""
    epoch = NO_EPOCH
    for base in bases:
        if base < end:
            continue
        if base != end:
            raise CorruptLog(f"segment {base:020}: it starts at offset {base}, the log before it ends at {end}")
        segment = StoredSegment(folder, base, epoch=epoch, mapped=mapped)
        yield segment
        end, epoch = segment.end, max(epoch, segment.last_epoch)


def bases_in(folder: Path) -> list[Offset]:
    """The bases of the segments that are there, rising."""
    try:
        return segment_bases(_FILES.file_names(folder))
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be read: {error}. Name the folder of a partition") from error


class StoredLog:
    """The batches of a partition's folder. If `mapped`, each is a view of its segment's map, and keeps that: nothing is
    copied."""

    def __init__(self, folder: Path, *, mapped: bool) -> None:
        self._folder = folder
        self._mapped = mapped

    @property
    def log_start(self) -> Offset:
        return self._told(read_log_start)

    @property
    def is_in_broker_directory(self) -> bool:
        """Whether the folder is in a broker's directory. Elsewhere nobody says what of it is committed."""
        return (self._folder.parent / IDENTITY_FILE).exists()

    @property
    def high_watermark(self) -> Offset:
        """The high watermark as it was checkpointed: brokers know of a later one. What lies beyond it may yet be
        truncated."""
        return max(self.log_start, self._told(_read_high_watermark))

    def _told(self, read: Callable[[Files, Path], Offset]) -> Offset:
        try:
            return read(_FILES, self._folder)
        except OSError as error:
            raise StorageFailed(f"{self._folder} cannot be read: {error}. Check its owner, or the disk") from error

    def read(
        self,
        start: Start,
        stop: Offset | None,
        *,
        end: Offset | None,
        columns: Sequence[str] | None = None,
        newest: pa.Schema | None = None,
        verify: bool = False,
    ) -> Iterator[Found]:
        """Batches from `start` to `stop`, cut to what was asked for.

        Only what lies below `end` may be seen; with None, all that is there. The batches get the schema `newest`, with
        nulls in columns that older segments lack. Without it each has the schema of its own segment; but if columns are
        named, `newest` is the last segment's.
        """
        bases = bases_in(self._folder)
        log_start = self.log_start
        bases = [base for base in bases if base >= log_start]  # segments below are being removed
        if end is None:
            end = self._log_end(bases, log_start)
        first = start_of(
            start,
            log_start=log_start,
            end=end,
            offset_of_time=lambda at: self._offset_of_time(at, bases, log_start, end),
        )
        if first < log_start or (first > end and first > self._log_end(bases, log_start)):
            raise OffsetOutOfRange(f"offset {first} is outside the log in {self._folder}, which is from {log_start} on")
        return self._read(bases, first, end if stop is None else min(end, stop), columns, newest, verify=verify)

    def _read(
        self,
        bases: Sequence[Offset],
        offset: Offset,
        end: Offset,
        columns: Sequence[str] | None,
        newest: pa.Schema | None,
        *,
        verify: bool,
    ) -> Iterator[Found]:
        if offset >= end:
            return
        try:
            if newest is None and columns is not None:
                newest = self._last(bases).schema
            wanted = projected(newest, columns) if newest is not None else None
            for segment in self._segments(bases, offset):
                choose: Choice = _alone
                if newest is not None and segment.end > segment.base:
                    choose = _choice(segment, newest, wanted)
                for records, batches in segment.runs(offset, end, verify=verify):
                    for base, last, epoch, timestamp_ms, stored in zip(*_columns(records), batches, strict=True):
                        first, beyond = offset, min(last + 1, end)
                        if base < first or beyond <= last:
                            stored = stored.slice(first - base, beyond - first)  # noqa: PLW2901
                        for batch in choose(stored):
                            first, offset = offset, offset + batch.num_rows
                            yield first, epoch, timestamp_ms, batch
                if offset >= end:
                    return
                segment.check_whole()
        except CorruptLog as error:
            if self.log_start > offset:
                raise OffsetOutOfRange(
                    f"retention took the log below {self.log_start} before {offset} was read"
                ) from error
            raise
        raise CorruptLog(f"the log in {self._folder} ends at {offset}, before {end}: read it from another replica")

    def _segments(self, bases: Sequence[Offset], offset: Offset) -> Iterator[StoredSegment]:
        """The segments from the one that holds `offset` on."""
        place = max(0, bisect_right(bases, offset) - 1)
        found = bases[place:]
        return segments_in(self._folder, found, min(offset, found[0]) if found else offset, mapped=self._mapped)

    def _offset_of_time(self, time_ms: int, bases: Sequence[Offset], log_start: Offset, end: Offset) -> Offset:
        """Where the first batch that was appended at this time or later starts; `end` if none was. Costs the indexes of
        the segments up to that batch."""
        for segment in segments_in(self._folder, bases, log_start, mapped=self._mapped):
            offset = segment.offset_of_time(time_ms)
            if offset is not None:
                return offset
            if segment.end >= end:
                break
            segment.check_whole()
        return end

    def _last(self, bases: Sequence[Offset]) -> StoredSegment:
        """The newest segment with batches: one that is being made has none yet."""
        for base in reversed(bases):
            segment = StoredSegment(self._folder, base, epoch=NO_EPOCH, mapped=self._mapped)
            if segment.end > base:
                return segment
            segment.check_whole()
        raise CorruptLog(f"{self._folder} holds no batches: read it from another replica")

    def _log_end(self, bases: Sequence[Offset], log_start: Offset) -> Offset:
        if not bases:
            return log_start
        last = StoredSegment(self._folder, bases[-1], epoch=NO_EPOCH, mapped=self._mapped)
        last.check_whole()
        return last.end


def _read_high_watermark(files: Files, folder: Path) -> Offset:
    return read_high_watermarks(files, folder.parent).get(folder.name, 0)


def _columns(records: LogSlice) -> Iterator[list[int]]:
    """Base offset, last offset, epoch and timestamp of each batch."""
    names = ("base_offset", "last_offset", "leader_epoch", "timestamp_ms")
    return (field_of_each(records.entries, name) for name in names)


#: Makes of a stored batch what is shown of it, in pieces.
Choice = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]


def _alone(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    return (batch,)


def _choice(segment: StoredSegment, newest: pa.Schema, wanted: pa.Schema) -> Choice:
    """What is wanted of the newest version, with nulls for columns that came later than this segment."""
    stored = segment.schema
    if not are_versions(stored, newest):
        raise CorruptLog(f"segment {segment.base:020}: its schema is no earlier version of the newest one")
    places = [newest.get_field_index(name) for name in wanted.names]
    if max(places, default=-1) < len(stored):
        return lambda batch: (batch.select(places),)
    return lambda batch: in_pieces(batch, places, wanted)


@contextmanager
def _read_of(base: Offset) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptLog(f"segment {base:020}: one of its two files is missing: {error}") from error
    except OSError as error:
        raise StorageFailed(f"segment {base:020} cannot be read: {error}. Check its owner, or the disk") from error
