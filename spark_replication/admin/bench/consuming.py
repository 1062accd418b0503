"""A reader in a process of its own: `python -m spark_replication.admin.bench.consuming '{…}'`.

It reads all partitions of a topic, each on a thread, whenever a line of its input asks, and prints what that took: see
Side.consumer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import msgspec

from spark_replication.admin.bench.talking import answer
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import ReplicationError


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    partitions: int
    #: In all partitions together.
    rows: int


class Reading:
    def __init__(self, work: Work, reader: Reader, threads: ThreadPoolExecutor) -> None:
        self._work = work
        self._reader = reader
        self._threads = threads

    def read(self) -> int:
        """Read all there is: nanoseconds."""
        began_ns = time.perf_counter_ns()
        rows = sum(self._threads.map(self._rows, range(self._work.partitions)))
        took_ns = time.perf_counter_ns() - began_ns
        if rows != self._work.rows:
            raise ReplicationError(f"{rows} rows were read, not {self._work.rows}")
        return took_ns

    def _rows(self, partition: int) -> int:
        return sum(found.batch.num_rows for found in self._reader.read(self._work.topic, partition, "earliest"))


@contextmanager
def reading(work: Work) -> Iterator[Reading]:
    with closing(Reader(work.bootstrap)) as reader, ThreadPoolExecutor(work.partitions) as threads:
        yield Reading(work, reader, threads)


if __name__ == "__main__":
    with reading(msgspec.json.decode(sys.argv[1], type=Work)) as program:
        answer(lambda _: str(program.read()))
