"""A log together with what it says of idempotent producers: every change changes both, also if the disk refuses midway.

What is known of producers comes from the batches of the index, on top of what was saved before retention removed older
ones. The saved part is believed below the log's start alone, so that it need not be cut with the log.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from spark_replication.config import Settings
from spark_replication.core.replica.producers import REMEMBERED, KnownProducer, Newest, OffsetSpan, Producers
from spark_replication.decoding import UNDECODABLE, from_msgpack
from spark_replication.errors import CorruptLog
from spark_replication.model import Epoch, Offset
from spark_replication.ports import BatchPlace, LogSlice, PreparedBatch, ReplicaLog

_encoder = msgspec.msgpack.Encoder()


class NumberedLog:
    def __init__(self, log: ReplicaLog, settings: Settings) -> None:
        self._log = log
        self._expire_ms = settings.producer_id_expiration_ms
        self._count_max = settings.partition_producers_max
        # A log that still has its head needs no saved part.
        self._producers = self._known_by(log.saved_producers() if log.log_start else b"")
        for found in log.places(REMEMBERED):
            self._wrote(found)

    def configure(self, settings: Settings) -> None:
        self._expire_ms = self._producers.expire_ms = settings.producer_id_expiration_ms
        self._count_max = self._producers.count_max = settings.partition_producers_max

    def known(self, batch: PreparedBatch) -> OffsetSpan | None:
        """Where the batch is stored already; None if it is new. Raises if it is not the next of its producer."""
        if batch.producer < 0:
            return None
        return self._producers.check(
            batch.producer,
            batch.producer_epoch,
            batch.sequence,
            rows=batch.rows,
            crc=batch.crc,
            digest=batch.digest,
        )

    def newest(self, producer: int) -> Newest | None:
        """The newest batches of a producer; None if it is not known."""
        return self._producers.newest(producer)

    def append(self, batch: PreparedBatch, *, leader_epoch: Epoch, timestamp_ms: int) -> OffsetSpan:
        found = self._log.append(batch, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms)
        return self._wrote(found)

    def append_slice(self, records: LogSlice) -> None:
        for found in self._log.append_slice(records):
            self._wrote(found)

    def truncate(self, end: Offset) -> None:
        if end < self._log.log_start:
            self.begin_anew(end, b"")
        elif end < self._log.log_end:
            try:
                self._log.truncate(end)
            finally:
                self._producers.truncated(self._log.log_end)

    def begin_anew(self, log_start: Offset, known: bytes) -> None:
        """Empty the log, which then starts there. known: what the leader knows of producers below that start; empty:
        nothing."""
        self._known_by(known, log_start)  # raises before anything has changed if it cannot be read
        if known or self._log.saved_producers():
            self._log.save_producers(known)
        try:
            self._log.begin_anew(log_start)
        finally:
            if self._log.log_start == self._log.log_end:
                self._producers = self._known_by(known)
            else:
                self._producers.truncated(self._log.log_end)

    def learn(self, known: bytes) -> None:
        """Take over what the leader knows of producers below the start of this log, which is empty."""
        if known != self._log.saved_producers():
            producers = self._known_by(known)  # raises before anything has changed if it cannot be read
            self._log.save_producers(known)
            self._producers = producers

    def forget(self, before: Offset) -> None:
        """Remove whole segments below `before`. What is known of producers outlives their batches."""
        segments = self._log.segments()
        if len(segments) >= 2 and segments[0].end <= before:
            self._lose_head(before, self._log.forget)

    def drop_below(self, offset: Offset) -> None:
        """Remove everything below `offset`, where a batch begins or the log ends. What is known of producers outlives
        their batches."""
        self._lose_head(offset, self._log.drop_below)

    def _lose_head(self, below: Offset, lose: Callable[[Offset], None]) -> None:
        if self._producers:
            self._log.save_producers(self.known_below(below))
        start = self._log.log_start
        try:
            lose(below)
        finally:
            if self._log.log_start > start:
                self._producers.trimmed()

    def known_below(self, offset: Offset) -> bytes:
        return _encoder.encode(self._producers.below(offset))

    def _known_by(self, known: bytes, log_start: Offset | None = None) -> Producers:
        start = self._log.log_start if log_start is None else log_start
        try:
            told = from_msgpack(known, list[KnownProducer]) if known else []
            return Producers.of(told, start, expire_ms=self._expire_ms, count_max=self._count_max)
        except (*UNDECODABLE, ValueError) as error:
            raise CorruptLog(f"what is known of producers below {start} cannot be read: {error}") from error

    def _wrote(self, found: BatchPlace) -> OffsetSpan:
        place = OffsetSpan(found.base_offset, found.last_offset)
        if found.producer >= 0:
            self._producers.wrote(
                found.producer,
                found.producer_epoch,
                found.sequence,
                place,
                crc=found.crc,
                timestamp_ms=found.timestamp_ms,
                digest=found.digest,
            )
        return place
