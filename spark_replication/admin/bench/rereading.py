"""Reads a topic from its beginning, again and again: `python -m spark_replication.admin.bench.rereading '{…}'`.

lasting says what it prints. It has begun once it has records.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import msgspec

from spark_replication.admin.bench.talking import Done, last
from spark_replication.client.reading.reader import Reader


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    partitions: int
    row_bytes: int
    #: All partitions together; 0: as fast as it goes.
    mb_per_s: int


def reread(work: Work, begun: threading.Event, ended: threading.Event) -> Done:
    """Read each partition on a thread of its own until `ended`."""
    s_a_row = work.partitions * work.row_bytes / (1e6 * work.mb_per_s) if work.mb_per_s else 0.0
    with closing(Reader(work.bootstrap)) as reader, ThreadPoolExecutor(work.partitions) as threads:
        began_s = time.perf_counter()

        def read(partition: int) -> int:
            rows = 0
            while not ended.is_set():
                for found in reader.read(work.topic, partition, "earliest"):
                    begun.set()
                    rows += found.batch.num_rows
                    if ended.wait(max(0.0, began_s + rows * s_a_row - time.perf_counter())):
                        break
            return rows

        rows = sum(threads.map(read, range(work.partitions)))
        return Done(bytes=rows * work.row_bytes, seconds=time.perf_counter() - began_s)


if __name__ == "__main__":
    last(partial(reread, msgspec.json.decode(sys.argv[1], type=Work)))
