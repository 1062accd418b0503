"""A producer at a fixed rate, in a process of its own: `python -m spark_replication.admin.bench.pacing '{…}'`.

One row's wait counts for those behind it, too. See Side.paced for what it reads and prints.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial

import msgspec

from spark_replication.admin.bench.producing import Answers, batch_of
from spark_replication.admin.bench.talking import answer
from spark_replication.client.producing.producer import Producer
from spark_replication.client.producing.sender import Ack

NS_PER_S = 1_000_000_000


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    #: They take turns.
    partitions: int
    row_bytes: int


class Pacing:
    """A producer, and the row that it sends."""

    def __init__(self, work: Work, producer: Producer) -> None:
        self._work = work
        self._producer = producer
        self._batch = batch_of(work.row_bytes, 1)

    def send(self, rows_per_s: int, rows: int) -> list[int]:
        """Nanoseconds, in the order in which the rows were sent."""
        took_ns = [0] * rows
        answers = Answers(rows)
        first_ns = time.perf_counter_ns()
        for number in range(rows):
            due_ns = first_ns + (number * NS_PER_S // rows_per_s if rows_per_s else 0)
            if rows_per_s:
                time.sleep(max(0, due_ns - time.perf_counter_ns()) / NS_PER_S)
            future = self._producer.send(self._work.topic, self._batch, number % self._work.partitions)
            future.add_done_callback(partial(_answered, answers, took_ns, number, due_ns))
        self._producer.flush()
        answers.wait()
        return took_ns if rows_per_s else [max(took_ns)]


def _answered(answers: Answers, took_ns: list[int], number: int, due_ns: int, future: Future[Ack]) -> None:
    took_ns[number] = time.perf_counter_ns() - due_ns
    answers.came(future)


@contextmanager
def pacing(work: Work) -> Iterator[Pacing]:
    with closing(Producer(work.bootstrap)) as producer:
        yield Pacing(work, producer)


if __name__ == "__main__":
    with pacing(msgspec.json.decode(sys.argv[1], type=Work)) as program:
        answer(lambda line: msgspec.json.encode(program.send(*map(int, line.split()))).decode())
