"""A producer in a process of its own: `python -m spark_replication.admin.bench.producing '{…}'`.

It sends the same batch again and again, first those that do not count, and prints what the others took.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future
from contextlib import closing
from itertools import count, islice

import msgspec
import pyarrow as pa

from spark_replication.client.producer import Producer
from spark_replication.client.sender import Ack

SCHEMA = pa.schema([("value", pa.binary())])


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    #: They take turns.
    partitions: int
    row_bytes: int
    #: In a batch.
    rows: int
    warm_up_batches: int
    batches: int


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, after the warm-up."""

    bytes: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e6


def batch_of(row_bytes: int, rows: int) -> pa.RecordBatch:
    """A batch of random rows, which no compression makes smaller."""
    return pa.record_batch([pa.array([os.urandom(row_bytes) for _ in range(rows)], pa.binary())], schema=SCHEMA)


def produce(work: Work) -> Done:
    batch = batch_of(work.row_bytes, work.rows)
    failed: list[BaseException] = []

    def answered(future: Future[Ack]) -> None:
        if (error := future.exception()) is not None:
            failed.append(error)

    # Each send is as large as a batch is to be.
    with closing(Producer(work.bootstrap, batch_bytes=0)) as producer:
        numbers = count()

        def send(batches: int) -> None:
            """Send so many batches, and wait until all are acknowledged. Nobody keeps the futures: Python would look
            through all of them again and again."""
            for number in islice(numbers, batches):
                producer.send(work.topic, batch, number % work.partitions).add_done_callback(answered)
            producer.flush()
            if failed:
                raise failed[0]

        send(work.warm_up_batches)
        began_s = time.perf_counter()
        send(work.batches)
        took_s = time.perf_counter() - began_s
    return Done(bytes=work.batches * work.rows * work.row_bytes, seconds=took_s)


if __name__ == "__main__":
    found = produce(msgspec.json.decode(sys.argv[1], type=Work))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
