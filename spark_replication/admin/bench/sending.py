"""A producer of ours, in a process of its own: see Target.sender."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, islice

import msgspec
import pyarrow as pa

from spark_replication.admin.bench.programs import answer
from spark_replication.client.producing.producer import BATCH_BYTES, Producer
from spark_replication.config import settings_from
from spark_replication.engine.client.sending import Ack
from spark_replication.model import Scalar
from spark_replication.transport.security.security import Security, read_security

SCHEMA = pa.schema([("value", pa.binary())])
NS_PER_S = 1_000_000_000
DEADLINE_MS = 300_000  # the first row of a partition makes files on three brokers

Clock = Callable[[], int]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    #: Settings.
    security: Mapping[str, Scalar]
    topic: str
    #: They take turns.
    partitions: int
    row_bytes: int
    #: In a batch.
    rows: int
    joins: bool


def batch_of(row_bytes: int, rows: int) -> pa.RecordBatch:
    """A batch of random rows, which no compression makes smaller."""
    return pa.record_batch([pa.array([os.urandom(row_bytes) for _ in range(rows)], pa.binary())], schema=SCHEMA)


def security_of(settings: Mapping[str, Scalar]) -> Security:
    return read_security(settings_from(settings))


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

    def asked(self, words: Sequence[str]) -> list[int]:
        numbers = list(map(int, words[1:]))
        match words[0]:
            case "fast":
                return [self.fast(*numbers)]
            case "paced":
                return self.paced(*numbers)
            case _:
                since_ns, *partitions = numbers
                return self.since(since_ns, partitions)

    def fast(self, batches: int) -> int:
        answers = Answers(batches)
        began_ns = time.perf_counter_ns()
        for number in islice(self._numbers, batches):
            self._send(number % self._work.partitions).add_done_callback(answers.came)
        self._producer.flush()
        answers.wait()
        return time.perf_counter_ns() - began_ns

    def paced(self, batches_per_s: int, batches: int) -> list[int]:
        """What each took, in the order in which they were sent."""
        first_ns = time.perf_counter_ns()

        def due() -> Iterator[tuple[int, int]]:
            for number in range(batches):
                due_ns = first_ns + number * NS_PER_S // batches_per_s
                time.sleep(max(0, due_ns - time.perf_counter_ns()) / NS_PER_S)
                yield number % self._work.partitions, due_ns

        return self._took_ns(due(), batches, time.perf_counter_ns)

    def since(self, at_ns: int, partitions: Sequence[int]) -> list[int]:
        return self._took_ns(((partition, at_ns) for partition in partitions), len(partitions), time.time_ns)

    def _took_ns(self, due: Iterator[tuple[int, int]], batches: int, clock: Clock) -> list[int]:
        took_ns = [0] * batches
        answers = Answers(batches)

        def answered(number: int, due_ns: int, future: Future[Ack]) -> None:
            took_ns[number] = clock() - due_ns
            answers.came(future)

        for number, (partition, due_ns) in enumerate(due):
            self._send(partition).add_done_callback(partial(answered, number, due_ns))
        self._producer.flush()
        answers.wait()
        return took_ns

    def _send(self, partition: int) -> Future[Ack]:
        return self._producer.send(self._work.topic, self._batch, partition)


@contextmanager
def sending(work: Work) -> Iterator[Sending]:
    joined = BATCH_BYTES if work.joins else 0  # else each send is as large as a batch is to be
    security = security_of(work.security)
    with closing(Producer(work.bootstrap, security=security, batch_bytes=joined, deadline_ms=DEADLINE_MS)) as producer:
        yield Sending(work, producer)


if __name__ == "__main__":
    with sending(msgspec.json.decode(sys.argv[1], type=Work)) as program:
        answer(program.asked)
