"""A log, and what it says of the batches that idempotent producers have numbered: whatever changes one changes both."""

from __future__ import annotations

from spark_replication.core.producers import Place, Producers
from spark_replication.model import Epoch, Offset
from spark_replication.ports import BatchPlace, LogSlice, PreparedBatch, ReplicaLog


class NumberedLog:
    def __init__(self, log: ReplicaLog) -> None:
        self._log = log
        self._producers = Producers(log.log_start)
        for found in log.places():
            self._wrote(found)

    def known(self, batch: PreparedBatch) -> Place | None:
        """Where it is, if it came before; raises if it is not the next of its producer."""
        if batch.producer < 0:
            return None
        return self._producers.check(batch.producer, batch.producer_epoch, batch.sequence)

    def append(self, batch: PreparedBatch, *, leader_epoch: Epoch, timestamp_ms: int) -> Place:
        found = self._log.append(batch, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms)
        place = Place(found.base_offset, found.last_offset)
        if batch.producer >= 0:
            self._producers.wrote(batch.producer, batch.producer_epoch, batch.sequence, place)
        return place

    def append_slice(self, records: LogSlice) -> None:
        for found in self._log.append_slice(records):
            self._wrote(found)

    def truncate(self, end: Offset) -> None:
        if end < self._log.log_start:
            self.begin_anew(end)
        elif end < self._log.log_end:
            self._log.truncate(end)
            self._producers.truncated(end)

    def begin_anew(self, log_start: Offset) -> None:
        self._log.begin_anew(log_start)
        self._producers = Producers(log_start)

    def forget(self, before: Offset) -> None:
        start = self._log.log_start
        self._log.forget(before)
        if self._log.log_start > start:
            self._producers.trimmed(self._log.log_start)

    def _wrote(self, found: BatchPlace) -> None:
        place = Place(found.base_offset, found.last_offset)
        self._producers.wrote(found.producer, found.producer_epoch, found.sequence, place)
