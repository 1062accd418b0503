"""A producer in a process of its own: `python -m spark_replication.admin.bench.producing '{…}'`.

It sends the same batch again and again, as often as each line of its input says, and prints what that took: see
Side.producer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from itertools import count, islice

import msgspec
import pyarrow as pa

from spark_replication.admin.bench.talking import answer
from spark_replication.client.producing.producer import Producer
from spark_replication.client.producing.sender import Ack

SCHEMA = pa.schema([("value", pa.binary())])


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    #: They take turns.
    partitions: int
    row_bytes: int
    #: In a batch.
    rows: int


def batch_of(row_bytes: int, rows: int) -> pa.RecordBatch:
    """A batch of random rows, which no compression makes smaller."""
    return pa.record_batch([pa.array([os.urandom(row_bytes) for _ in range(rows)], pa.binary())], schema=SCHEMA)


class Answers:
    """So many answers, on whichever threads they come. Nobody keeps the futures: Python would look through all of them
    again and again."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._came: deque[BaseException | None] = deque()  # what each failed with
        self._all = threading.Event()

    def came(self, future: Future[Ack]) -> None:
        self._came.append(future.exception())
        if len(self._came) == self._expected:
            self._all.set()

    def wait(self) -> None:
        """Wait for all of them. Raises what any of them failed with."""
        self._all.wait()
        for error in filter(None, self._came):
            raise error


class Sending:
    """A producer, and the batch that it sends."""

    def __init__(self, work: Work, producer: Producer) -> None:
        self._work = work
        self._producer = producer
        self._batch = batch_of(work.row_bytes, work.rows)
        self._numbers = count()

    def send(self, batches: int) -> int:
        """Send so many batches, and wait until all are acknowledged: nanoseconds."""
        answers = Answers(batches)
        began_ns = time.perf_counter_ns()
        for number in islice(self._numbers, batches):
            partition = number % self._work.partitions
            self._producer.send(self._work.topic, self._batch, partition).add_done_callback(answers.came)
        self._producer.flush()
        answers.wait()
        return time.perf_counter_ns() - began_ns


@contextmanager
def sending(work: Work) -> Iterator[Sending]:
    with closing(Producer(work.bootstrap, batch_bytes=0)) as producer:  # each send is as large as a batch is to be
        yield Sending(work, producer)


if __name__ == "__main__":
    with sending(msgspec.json.decode(sys.argv[1], type=Work)) as program:
        answer(lambda line: str(program.send(int(line))))
