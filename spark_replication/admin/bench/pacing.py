"""A producer at a fixed rate, in a process of its own: `python -m spark_replication.admin.bench.pacing '{…}'`.

It sends each row when it is due, and prints how many nanoseconds each took from then to its acknowledgement: one row's
wait counts for those behind it, too.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future
from contextlib import closing
from functools import partial

import msgspec

from spark_replication.admin.bench.producing import batch_of
from spark_replication.client.producer import Producer
from spark_replication.client.sender import Ack

NS_PER_S = 1_000_000_000


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    #: They take turns.
    partitions: int
    row_bytes: int
    rows_per_s: int
    warm_up_rows: int
    rows: int


def pace(work: Work) -> list[int]:
    """What the rows after the warm-up took, in the order in which they were sent."""
    batch = batch_of(work.row_bytes, 1)
    took_ns = [0] * (work.warm_up_rows + work.rows)
    failed: list[BaseException] = []

    def answered(number: int, due_ns: int, future: Future[Ack]) -> None:
        took_ns[number] = time.perf_counter_ns() - due_ns
        if (error := future.exception()) is not None:
            failed.append(error)

    with closing(Producer(work.bootstrap)) as producer:
        first_ns = time.perf_counter_ns()
        for number in range(len(took_ns)):
            due_ns = first_ns + number * NS_PER_S // work.rows_per_s
            time.sleep(max(0, due_ns - time.perf_counter_ns()) / NS_PER_S)
            # Nobody keeps the futures: Python would look through all of them again and again, and all threads wait.
            future = producer.send(work.topic, batch, number % work.partitions)
            future.add_done_callback(partial(answered, number, due_ns))
        producer.flush()
    if failed:
        raise failed[0]
    return took_ns[work.warm_up_rows :]


if __name__ == "__main__":
    found = pace(msgspec.json.decode(sys.argv[1], type=Work))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
