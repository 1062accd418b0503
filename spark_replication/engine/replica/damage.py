"""What a replica's disk does not give back as it was written (D1).

Rules:
- Damage is certain only while somebody has the partition: whoever reads without it may meet bytes that were cut, and
  written anew, meanwhile.
- No timer clears it, and no role: it ends once the batch reads well again, or the log has no such batch any longer.
- Only the bytes that an entry's CRC-32C names may take its batch's place, so it does not matter whose copy they are:
  mending needs no election, changes no ISR, and may happen on leaders and followers alike (engine.broker.mending).

Whoever calls has the partition; `batches` may be read without it.
"""

from __future__ import annotations

from spark_replication.errors import StorageFailed
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import DamagedBatch, Records, ReplicaLog

DAMAGED_MAX = 1_000  # of a replica: a disk that has lost more needs another disk, and the next look finds the rest


class Damage:
    def __init__(self, partition: TopicPartition, log: ReplicaLog) -> None:
        self._partition = partition
        self._log = log
        #: By base offset, rising; DAMAGED_MAX at most.
        self.batches: tuple[DamagedBatch, ...] = ()

    def look(self, start: Offset, end: Offset) -> tuple[DamagedBatch, ...]:
        """Read the batches of [start, end), each by itself. Returns those that are damaged."""
        found = tuple(self._log.damaged(start, end))
        others = (known for known in self.batches if known.last_offset < start or known.base_offset >= end)
        known = sorted((*others, *found), key=lambda batch: batch.base_offset)
        self.batches = tuple(known[:DAMAGED_MAX])
        return found

    def look_again(self) -> tuple[DamagedBatch, ...]:
        """Read what is known as damaged once more. Returns what still is."""
        for batch in self.batches:
            self.look(batch.base_offset, batch.last_offset + 1)
        return self.batches

    def require_none(self, records: Records) -> None:
        """StorageFailed: some of these batches are damaged."""
        found = self.look(records.first_offset, records.next_offset)
        if found:
            raise StorageFailed(
                f"{self._partition} is damaged on this broker's disk, at {found[0]}. It copies these records from "
                "another replica that has them: retry. If this stays, see `health`"
            )

    def mend(self, batch: DamagedBatch, data: bytes) -> None:
        """Write a batch again, and read it. Raises the error that keeps it damaged."""
        try:
            self._log.mend(batch, data)
        finally:
            left = self.look(batch.base_offset, batch.last_offset + 1)
        if left:
            raise StorageFailed(f"{left[0]}, although it was written again: replace this disk")
