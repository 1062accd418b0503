"""A producer that an outage meets, in a process of its own: `python -m spark_replication.admin.bench.resuming '{…}'`.

See Side.resuming for what it reads and prints.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future
from contextlib import ExitStack

import msgspec

from spark_replication.admin.bench.producing import batch_of
from spark_replication.client.producing.producer import Producer
from spark_replication.client.producing.sender import Ack

ROW_BYTES = 1 << 10
DEADLINE_MS = 300_000  # the first row of a partition makes files on three brokers


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    partitions: int


class _Writer:
    def __init__(self, work: Work, running: ExitStack) -> None:
        self._topic = work.topic
        self._batch = batch_of(ROW_BYTES, 1)
        self._producer = running.enter_context(Producer(work.bootstrap, deadline_ms=DEADLINE_MS))

    def send(self, partition: int) -> Future[Ack]:
        return self._producer.send(self._topic, self._batch, partition)


def resume(writer: _Writer, killed_ns: int, partitions: list[int]) -> list[int]:
    """Nanoseconds from the kill until each of these partitions has acknowledged a row."""
    took_ns: list[int] = []

    def answered(_: Future[Ack]) -> None:
        took_ns.append(time.time_ns() - killed_ns)

    sent = [writer.send(partition) for partition in partitions]
    for future in sent:
        future.add_done_callback(answered)
    for future in sent:
        future.result()
    return took_ns


def main() -> None:
    work = msgspec.json.decode(sys.argv[1], type=Work)
    with ExitStack() as running:
        writer = _Writer(work, running)
        for future in [writer.send(partition) for partition in range(work.partitions)]:
            future.result()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        killed_ns, *partitions = map(int, sys.stdin.readline().split())
        sys.stdout.write(msgspec.json.encode(resume(writer, killed_ns, partitions)).decode() + "\n")


if __name__ == "__main__":
    main()
