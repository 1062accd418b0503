"""A replica's log as a list of records: what storage/ promises (ports.ReplicaLog), without a disk.

Each record counts as one byte, and logs with the same records compare equal. A log can be cut at any record. The
records that a log is made with are batches of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from spark_replication.config import TopicSettings
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.retention import SegmentSize
from spark_replication.decoding import from_msgpack
from spark_replication.errors import InvalidRequest, OffsetOutOfRange, StorageFailed
from spark_replication.messages.ranges import Piece
from spark_replication.model import Offset, TimeMs
from spark_replication.ports import BatchPlace, DamagedBatch, Flush, LogSlice, PreparedBatch, StoredSlice
from spark_replication.sim.world.faulty_files import InMemory


class Record(msgspec.Struct, frozen=True):
    epoch: int
    #: Tells records apart.
    content: str
    #: The place of its batch, if an idempotent producer sent it.
    place: BatchPlace | None = None
    timestamp_ms: int = 0
    #: Whether a batch begins with it.
    is_first: bool = True


class MemoryLog:
    rows_per_segment = 1 << 40

    def __init__(self, log_start: Offset, records: list[Record], epochs: EpochHistory, high_watermark: Offset) -> None:
        self.log_start = log_start
        self.records = records
        self.epochs = epochs
        self.high_watermark = high_watermark
        self._producers = b""

    @classmethod
    def of_runs(cls, runs: list[tuple[int, int, int]], high_watermark: Offset) -> MemoryLog:
        """The log of these runs [first offset, last offset, leader epoch]. Equal offsets of equal epochs hold equal
        records."""
        records = [Record(epoch, f"{epoch}:{o}") for first, last, epoch in runs for o in range(first, last + 1)]
        epochs = EpochHistory.of([(epoch, first) for first, _, epoch in runs])
        return cls(runs[0][0] if runs else 0, records, epochs, high_watermark)

    @property
    def log_end(self) -> Offset:
        return self.log_start + len(self.records)

    @property
    def runs(self) -> list[list[int]]:
        found: list[list[int]] = []
        for offset, record in enumerate(self.records, self.log_start):
            if found and found[-1][2] == record.epoch:
                found[-1][1] = offset
            else:
                found.append([offset, offset, record.epoch])
        return found

    def append(self, batch: PreparedBatch, *, leader_epoch: int, timestamp_ms: int) -> BatchPlace:
        base, last = self.log_end, self.log_end + batch.rows - 1
        numbers = batch.producer, batch.producer_epoch, batch.sequence
        place = BatchPlace(*numbers, base, last, batch.crc, timestamp_ms, batch.digest)
        named = place if batch.producer >= 0 else None
        content = f"{leader_epoch}:{timestamp_ms}:{bytes(batch.message).decode()}"
        self.records.extend(
            Record(leader_epoch, f"{content}:{offset}", named, timestamp_ms, is_first=offset == base)
            for offset in range(base, last + 1)
        )
        return place

    def append_slice(self, records: LogSlice) -> Iterable[BatchPlace]:
        new = from_msgpack(records.data, list[Record])
        self.epochs = self.epochs.truncated(self.log_end)  # an epoch that was begun and never written does not count
        for offset, record in enumerate(new, self.log_end):
            if record.epoch != self.epochs.last_epoch:
                self.epochs = self.epochs.begun(record.epoch, offset)
        self.records.extend(new)
        return _places(new)

    def find(self, offset: Offset, *, bytes_max: int, end: Offset) -> StoredSlice | None:
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRange(f"offset {offset} is outside {self.log_start} to {self.log_end}")
        found = self.records[offset - self.log_start : min(end, offset + bytes_max) - self.log_start]
        if not found:
            return None
        return StoredSlice(
            first_offset=offset,
            next_offset=offset + len(found),
            segment_base=self.log_start,
            entries=b"",
            data=InMemory(msgspec.msgpack.encode(found)),
        )

    def find_stored(self, offset: Offset, *, bytes_max: int) -> StoredSlice | None:
        here = self.log_start <= offset < self.log_end
        return self.find(offset, bytes_max=bytes_max, end=self.log_end) if here else None

    def damaged(self, start: Offset, end: Offset) -> Sequence[DamagedBatch]:
        """Nothing: memory keeps what it has."""
        return ()

    def mend(self, batch: DamagedBatch, data: bytes) -> None:
        raise InvalidRequest(f"nothing here is damaged: {batch}")

    def offset_of_time(self, timestamp_ms: int) -> Offset:
        late = (offset for offset, each in enumerate(self.records, self.log_start) if each.timestamp_ms >= timestamp_ms)
        return next(late, self.log_end)

    def time_of(self, offset: Offset) -> TimeMs:
        return self.records[offset - self.log_start].timestamp_ms

    def bytes_from(self, offset: Offset) -> int:
        return self.log_end - offset

    def pieces(self, start: Offset, end: Offset, piece_bytes: int) -> tuple[Piece, ...]:
        ends = [*range(start + piece_bytes, end, piece_bytes), end]
        return tuple(Piece(end=each, bytes=each - before) for before, each in pairwise([start, *ends]))

    def batch_start(self, offset: Offset) -> Offset:
        firsts = (each for each in range(offset, self.log_start, -1) if self.records[each - self.log_start].is_first)
        return next(firsts, self.log_start)

    def begin_epoch(self, epoch: int) -> None:
        self.epochs = self.epochs.begun(epoch, self.log_end)

    def truncate(self, end: Offset) -> None:
        del self.records[max(end - self.log_start, 0) :]
        self.epochs = self.epochs.truncated(self.log_end)
        self.high_watermark = min(self.high_watermark, self.log_end)

    def segments(self) -> Sequence[SegmentSize]:
        """Segments of `rows_per_segment` records each, at time 0."""
        bounds = [*range(self.log_start, self.log_end, self.rows_per_segment), self.log_end]
        return [SegmentSize(base, end, end - base, 0) for base, end in pairwise(bounds)]

    def forget(self, before: Offset) -> None:
        self.drop_below(max((each.base for each in self.segments() if each.base <= before), default=self.log_start))

    def drop_below(self, offset: Offset) -> None:
        del self.records[: offset - self.log_start]
        self.log_start = offset
        self.epochs = self.epochs.trimmed(offset)
        self.high_watermark = max(self.high_watermark, offset)

    @property
    def has_leftover(self) -> bool:
        return False

    def remove_leftover(self) -> None:
        """Nothing is left: there are no files."""

    def begin_anew(self, log_start: Offset) -> None:
        self.log_start, self.records, self.epochs, self.high_watermark = log_start, [], EpochHistory(), log_start

    def configure(self, settings: TopicSettings) -> None:
        """Nothing here depends on settings."""

    def checkpoint(self, high_watermark: Offset) -> None:
        self.high_watermark = high_watermark

    def places(self, newest: int) -> Iterable[BatchPlace]:
        return _places(self.records)

    def save_producers(self, known: bytes) -> None:
        self._producers = known

    def saved_producers(self) -> bytes:
        return self._producers

    @property
    def flushed_end(self) -> Offset:
        """The log end: everything here counts as flushed."""
        return self.log_end

    def begin_flush(self) -> Flush | None:
        return None

    def end_flush(self, failed: StorageFailed | None) -> None:
        """Do nothing: no flush was begun."""

    def flush(self) -> None:
        """There is nothing to do."""

    def close(self) -> None:
        """Nothing is held open."""


def _places(records: list[Record]) -> list[BatchPlace]:
    """The place of each batch once, oldest first."""
    return list(dict.fromkeys(record.place for record in records if record.place is not None))
