"""A broker's disk: what production's ReplicaLog promises, and what a crash makes of it.

Data and index entry are two writes: a process that is killed between them leaves data that no entry names, and recovery
cuts it. A killed process loses nothing that was written; a host that loses power loses any part of what was not
flushed, and a cut that was not flushed may be undone. Files that are replaced atomically are the old or the new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec

from spark_replication.core.epochs import EpochHistory
from spark_replication.errors import CorruptLog, OffsetOutOfRange, StorageFailed
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import BatchPlace, LogSlice, PreparedBatch, ReplicaLog
from spark_replication.sim.world import Killed

Replica = tuple[TopicPartition, str]  # with the topic_id


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch of one row. content: who wrote it as what, so that a lost, doubled or resurrected one is seen."""

    epoch: int
    content: bytes
    producer: int
    producer_epoch: int
    sequence: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])


class Image(msgspec.Struct):
    """The files of one replica. indexed: how many of its records have an index entry."""

    records: list[Record]
    indexed: int
    epochs: EpochHistory
    high_watermark: Offset


class LogFiles:
    """now: as the kernel has them; flushed: as they survive a loss of power at least.

    agreed: how many records from the first are known to be the committed ones: checkers raise it, a cut lowers it.
    """

    def __init__(self) -> None:
        self.now = Image([], 0, EpochHistory(), 0)
        self.flushed = Image([], 0, EpochHistory(), 0)
        self.agreed = 0

    @property
    def end(self) -> Offset:
        return self.now.indexed

    def flush(self) -> None:
        now = self.now
        self.flushed = Image(list(now.records), now.indexed, now.epochs, now.high_watermark)

    def lose_power(self, rng: random.Random) -> None:
        """Some mixture of what was flushed and what was written since."""
        old, new = self.flushed, self.now
        kept = rng.randint(0, len(new.records)) if rng.random() < 0.8 else len(new.records)
        same = _common(old.records, new.records)
        kept = max(kept, same)
        # A cut that never reached the disk: the old tail lies behind the new records again.
        tail = old.records[kept:] if rng.random() < 0.5 else []
        records = new.records[:kept] + tail
        self.now = Image(
            records,
            len(records),
            rng.choice((old.epochs, new.epochs)),
            rng.choice((old.high_watermark, new.high_watermark)),
        )
        self.agreed = min(self.agreed, kept)


def _common(old: list[Record], new: list[Record]) -> int:
    same = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        same += 1
    return same


class Report(msgspec.Struct, frozen=True):
    """What recovery found in one log (core.clean_chain.Recovery)."""

    folder: str
    why: str
    lossless: bool


class Disk:
    """full: nothing can be written. tear: the next append is killed between its two writes. slowed: before a write."""

    def __init__(self) -> None:
        self.logs: dict[Replica, LogFiles] = {}
        self.quarantined: list[tuple[Replica, LogFiles]] = []
        self.started: tuple[str, int] | None = None  # the start record: boot id and epoch
        self.clean_shutdown: int | None = None
        self.full = False
        self.tear = False
        self.slowed: Callable[[], None] = lambda: None

    def drop_proofs(self) -> None:
        self.started = self.clean_shutdown = None

    def recover(self) -> list[Report]:
        """Every log made whole; the proofs go before anything that may have been acknowledged is cut."""
        reports = []
        for replica, files in sorted(self.logs.items(), key=lambda item: item[0]):
            image = files.now
            kept = _whole(image)
            why = f"{image.indexed - kept} entries do not hold" if kept < image.indexed else ""
            below = image.high_watermark > kept
            if why or below:
                self.drop_proofs()
            del image.records[kept:]
            image.indexed = kept
            image.epochs = _recovered_epochs(image, cut=bool(why))
            image.high_watermark = min(image.high_watermark, kept)
            files.agreed = min(files.agreed, kept)
            reports.append(Report(f"{replica[0]}.{replica[1]}", why, not why and not below))
        return reports

    def lose_power(self, rng: random.Random) -> None:
        for _, files in sorted(self.logs.items(), key=lambda item: item[0]):
            files.lose_power(rng)

    def write(self) -> None:
        """Before anything is written."""
        if self.full:
            raise StorageFailed("the disk is full: free space, then restart the broker")
        self.slowed()

    def between_writes(self) -> None:
        if self.tear:
            self.tear = False
            raise Killed


def _whole(image: Image) -> int:
    """How many records hold: each with an entry, leader epochs never falling."""
    epoch = -1
    for place, record in enumerate(image.records[: image.indexed]):
        if record.epoch < epoch:
            return place
        epoch = record.epoch
    return image.indexed


def _recovered_epochs(image: Image, *, cut: bool) -> EpochHistory:
    """From the records; an epoch without any only from its file, and only if its records were not cut just now."""
    history = EpochHistory()
    for offset, record in enumerate(image.records):
        if record.epoch != history.last_epoch:
            history = history.begun(record.epoch, offset)
    end = len(image.records)
    if EpochHistory(start for start in image.epochs if start.start < end) != history:
        return history
    begun = [start for start in image.epochs if start.start == end]
    return history if cut or not begun else history.begun(begun[0].epoch, end)


class DiskLog:
    """ports.ReplicaLog over LogFiles."""

    def __init__(self, disk: Disk, files: LogFiles) -> None:
        self._disk = disk
        self.files = files

    @property
    def log_start(self) -> Offset:
        return 0

    @property
    def log_end(self) -> Offset:
        return len(self.files.now.records)

    @property
    def epochs(self) -> EpochHistory:
        return self.files.now.epochs

    @property
    def high_watermark(self) -> Offset:
        return self.files.now.high_watermark

    def append(self, batch: PreparedBatch, *, leader_epoch: int, timestamp_ms: int) -> BatchPlace:
        self._disk.write()
        image = self.files.now
        offset = len(image.records)
        record = Record(leader_epoch, bytes(batch.message), batch.producer, batch.producer_epoch, batch.sequence)
        image.records.append(record)
        self._disk.between_writes()
        image.indexed = len(image.records)
        return _place(record, offset)

    def append_slice(self, records: LogSlice) -> Iterable[BatchPlace]:
        self._disk.write()
        image = self.files.now
        base = len(image.records)
        if records.first_offset != base:
            raise CorruptLog(f"records from {records.first_offset} do not continue a log that ends at {base}")
        new = _decoder.decode(records.data)
        # An epoch that this replica began as leader, and wrote nothing in, never was.
        epochs = image.epochs.truncated(base)
        for offset, record in enumerate(new, base):
            epochs = epochs.begun(record.epoch, offset)
        image.epochs = epochs
        image.records.extend(new)
        self._disk.between_writes()
        image.indexed = len(image.records)
        return [_place(record, offset) for offset, record in enumerate(new, base) if record.producer >= 0]

    def read(self, offset: Offset, *, bytes_max: int, end: Offset) -> LogSlice | None:
        if not 0 <= offset <= self.log_end:
            raise OffsetOutOfRange(f"offset {offset} is outside 0 to {self.log_end}")
        found = self.files.now.records[offset : min(end, offset + bytes_max)]
        if not found:
            return None
        return LogSlice(
            first_offset=offset,
            next_offset=offset + len(found),
            segment_base=0,
            entries=b"",
            data=_encoder.encode(found),
        )

    def bytes_from(self, offset: Offset) -> int:
        return max(self.log_end - offset, 0)

    def begin_epoch(self, epoch: int) -> None:
        self._disk.write()
        self.files.now.epochs = self.epochs.begun(epoch, self.log_end)

    def truncate(self, end: Offset) -> None:
        self._disk.write()
        image = self.files.now
        image.high_watermark = min(image.high_watermark, end)
        image.epochs = image.epochs.truncated(end)
        del image.records[end:]
        image.indexed = min(image.indexed, end)
        self.files.agreed = min(self.files.agreed, end)

    def checkpoint(self, high_watermark: Offset) -> None:
        self._disk.write()
        self.files.now.high_watermark = high_watermark

    def places(self) -> Iterable[BatchPlace]:
        return [_place(record, offset) for offset, record in enumerate(self.files.now.records) if record.producer >= 0]

    def flush(self) -> None:
        self._disk.write()
        self.files.flush()

    def close(self) -> None:
        """Nothing is held open."""


def _place(record: Record, offset: Offset) -> BatchPlace:
    return BatchPlace(record.producer, record.producer_epoch, record.sequence, offset, offset)


class DiskLogs:
    """ports.ReplicaLogs."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, partition: TopicPartition, topic_id: str, schema: bytes, segment_bytes: int) -> ReplicaLog:
        files = self._disk.logs.get((partition, topic_id))
        if files is None:
            self._disk.write()
            files = self._disk.logs[partition, topic_id] = LogFiles()
        return DiskLog(self._disk, files)

    def found(self) -> list[Replica]:
        return sorted(self._disk.logs)

    def quarantine(self, partition: TopicPartition, topic_id: str) -> None:
        files = self._disk.logs.pop((partition, topic_id), None)
        if files is not None:
            self._disk.quarantined.append(((partition, topic_id), files))
