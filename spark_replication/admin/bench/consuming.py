"""A reader in a process of its own: `python -m spark_replication.admin.bench.consuming '{…}'`.

It reads all partitions of a topic, each on a thread, and prints what everything after the warm-up took.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec

from spark_replication.admin.bench.producing import Done
from spark_replication.client.reader import Reader


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    partitions: int
    row_bytes: int
    #: In all partitions together.
    rows: int
    #: The first of them, which do not count.
    warm_up_rows: int


class _Count:
    """Rows of all threads, and when the warm-up was over."""

    def __init__(self, warm_up_rows: int) -> None:
        self._lock = threading.Lock()
        self._warm_up_rows = warm_up_rows
        self.rows = 0
        self.warm_rows = 0
        self.warm_s: float | None = None

    def came(self, rows: int) -> None:
        with self._lock:
            self.rows += rows
            if self.warm_s is None and self.rows >= self._warm_up_rows:
                self.warm_rows, self.warm_s = self.rows, time.perf_counter()


def consume(work: Work) -> Done:
    count = _Count(work.warm_up_rows)
    with closing(Reader(work.bootstrap)) as reader, ThreadPoolExecutor(work.partitions) as threads:

        def read(partition: int) -> None:
            for found in reader.read(work.topic, partition, "earliest"):
                count.came(found.batch.num_rows)

        list(threads.map(read, range(work.partitions)))
        ended_s = time.perf_counter()
    assert count.rows == work.rows, f"{count.rows} rows were read, not {work.rows}"
    assert count.warm_s is not None, "the warm-up is shorter than what there is"
    return Done(bytes=(count.rows - count.warm_rows) * work.row_bytes, seconds=ended_s - count.warm_s)


if __name__ == "__main__":
    found = consume(msgspec.json.decode(sys.argv[1], type=Work))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
