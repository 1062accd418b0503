"""Reads all logs of a broker, little by little, and finds what their disk has lost while other replicas still have it
(D1).

A step reads a few batches of one partition, and keeps nothing but the place: the partition is taken to find them, not
while they are read. What a pass meets is what was there as it came to the partition: it ends, however fast producers
are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import CorruptLog, StorageFailed
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import LogSlice, StoredSlice

PARTITIONS_PER_STEP_MAX = 100  # of those that have nothing (more) to read


class Scrub:
    def __init__(
        self, replicas: Callable[[], Mapping[TopicPartition, Partition]], check: Callable[[LogSlice], object]
    ) -> None:
        """check: raises CorruptLog if some of these batches do not have their CRC-32C."""
        self._replicas = replicas
        self._check = check
        #: The partitions that are still to be read, the next one last.
        self._names: list[TopicPartition] = []
        self._begin_partition()

    def _begin_partition(self) -> None:
        self._next: Offset = 0
        #: Where the log ended when its partition was begun; None before that.
        self._end: Offset | None = None

    def begin(self) -> None:
        """Begin a pass."""
        self._names = sorted(self._replicas(), reverse=True)
        self._begin_partition()

    def step(self, bytes_max: int) -> int | None:
        """Read so many bytes, or one batch. Returns how many were read; None if the pass has ended."""
        for _ in range(PARTITIONS_PER_STEP_MAX):
            if not self._names:
                return None
            partition = self._replicas().get(self._names[-1])
            records = None if partition is None else self._found(partition, bytes_max)
            if partition is not None and records is not None:
                self._next = records.next_offset
                self._read(partition, records)
                return len(records.data)
            self._names.pop()
            self._begin_partition()
        return 0

    def _found(self, partition: Partition, bytes_max: int) -> StoredSlice | None:
        with partition as replica:
            log = replica.log
            self._end = log.log_end if self._end is None else self._end
            start = max(self._next, log.log_start)
            try:
                return log.find_stored(start, bytes_max=bytes_max) if start < self._end else None
            except StorageFailed as error:  # of its index
                replica.disk_trouble.refused(replica.part, error)
                return None

    def _read(self, partition: Partition, records: StoredSlice) -> None:
        try:
            self._check(records.loaded())
        except (CorruptLog, StorageFailed):
            with partition as replica:
                try:
                    replica.damage.look(records.first_offset, records.next_offset)
                except StorageFailed as error:
                    replica.disk_trouble.refused(replica.part, error)
