"""Load with a memory: what was acknowledged must be read, once, at its offset, whatever was killed meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import pairwise
from types import TracebackType

import msgspec
import pyarrow as pa

import spark_replication as sr
from spark_replication.transport.security.security import NO_SECURITY, Security

SCHEMA = pa.schema([("number", pa.int64())])
DEADLINE_S = 60.0
PAUSE_S = 0.02  # a load is there to be interrupted: it leaves the processors to whoever is to take over


class Acknowledged(msgspec.Struct, frozen=True):
    partition: int
    number: int
    offset: int
    at: float


class Load:
    """A producer for each partition, each sending the next number a moment after the last is acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, security: Security = NO_SECURITY) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[Exception] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._security = security
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(partitions)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, rows: int, timeout_s: float = DEADLINE_S) -> None:
        """So many more rows of every partition."""
        before = Counter(found.partition for found in list(self.acknowledged))

        def grown() -> bool:
            now = Counter(found.partition for found in self.acknowledged)
            return bool(self.errors) or all(now[p] >= before[p] + rows for p in range(self._partitions))

        with self._progress:
            in_time = self._progress.wait_for(grown, timeout_s)
        assert not self.errors, self.errors
        assert in_time, f"fewer than {rows} more rows of every partition within {timeout_s} s"

    def longest_wait_s(self, since: float) -> float:
        """Of any partition, between two acknowledgements."""
        waits = []
        for partition in range(self._partitions):
            times = [found.at for found in self.acknowledged if found.partition == partition]
            waits += [after - before for before, after in pairwise(times) if after >= since]
        return max(waits)

    def check_history(self) -> None:
        """Every acknowledged row is there once, at its offset, and rows are in the order in which they were sent."""
        for partition in range(self._partitions):
            read: dict[int, int] = {}
            for found in sr.Reader(self._bootstrap, security=self._security).read(self._topic, partition=partition):
                for offset, number in enumerate(found.batch.column(0).to_pylist(), found.base_offset):
                    assert offset not in read, f"offset {offset} was read twice"
                    read[offset] = number
            sent = [found for found in self.acknowledged if found.partition == partition]
            lost = [found for found in sent if read.get(found.offset) != found.number]
            assert not lost, f"{len(lost)} acknowledged rows are not at their offsets, the first: {lost[0]}"
            assert list(read) == list(range(len(read)))
            unordered = [(offset, *pair) for offset, pair in enumerate(pairwise(read.values())) if pair[1] <= pair[0]]
            assert not unordered, f"doubled or out of order (offset, its row, the next one's): {unordered[:20]}"

    def _produce(self, partition: int) -> None:
        number = 0
        try:
            with sr.Producer(self._bootstrap, security=self._security) as producer:
                while not self._stopping.is_set():
                    batch = pa.record_batch([pa.array([number])], schema=SCHEMA)
                    ack = producer.send(self._topic, batch, partition=partition).result(DEADLINE_S)
                    with self._progress:
                        found = Acknowledged(partition, number, ack.base_offset, time.monotonic())
                        self.acknowledged.append(found)
                        self._progress.notify_all()
                    number += 1
                    self._stopping.wait(PAUSE_S)
        except Exception as error:  # noqa: BLE001 (told to the test's thread)
            with self._progress:
                self.errors.append(error)
                self._progress.notify_all()
