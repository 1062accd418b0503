"""The drill's load, each a process of its own: `produce` numbered rows with acks=all, or `follow` them as they come.

Each acknowledged or read row goes to a file as it happens, in a line: `partition number offset seconds`. SIGTERM ends
either process, after what is in flight.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import TextIO

import pyarrow as pa

import spark_replication as sr
from spark_replication.admin.drill.figures import Line
from spark_replication.client.finding.settings_file import read_settings
from spark_replication.engine.client.sending import Ack
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.transport.security.security import read_security

SCHEMA = pa.schema([("number", pa.int64())])
BATCHES_PER_S = 50  # of each partition
DEADLINE_MS = 60_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.admin.drill.load")
    parser.add_argument("what", choices=("produce", "follow"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--config", required=True, help="TOML file of settings: those of security count")
    parser.add_argument("--data-dir", required=True, help="of the cluster")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--record", required=True, help="the file that the lines go to")
    options = parser.parse_args()
    security = read_security(read_settings(options.config, {"data.dir": options.data_dir}))
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    with open(options.record, "w", buffering=1) as lines:  # noqa: PTH123 (a path from the command line)
        record = Record(lines)
        if options.what == "produce":
            with sr.Producer(options.bootstrap, security=security, deadline_ms=DEADLINE_MS) as producer:
                produce(producer, options.topic, options.partitions, record, stopping)
        else:
            reader = sr.Reader(options.bootstrap, security=security)
            follow(reader, options.topic, options.partitions, record, stopping)
    return 1 if record.failed else 0


class Record:
    def __init__(self, lines: TextIO) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self.failed = False

    def add(self, partition: int, number: int, offset: int) -> None:
        with self._lock:
            self._lines.write(f"{partition} {number} {offset} {time.time():.4f}\n")

    def fail(self, error: BaseException) -> None:
        self.failed = True
        sys.stderr.write(f"{error}\n")


def lines_of(recorded: str) -> Iterator[Line]:
    """The lines that a Record has written. It may be writing meanwhile."""
    for text in recorded.splitlines():
        words = text.split(" ")
        if len(words) == 4 and words[3]:
            yield Line(int(words[0]), int(words[1]), int(words[2]), float(words[3]))


def produce(producer: sr.Producer, topic: str, partitions: int, record: Record, stopping: threading.Event) -> None:
    def acknowledged(partition: int, number: int, future: Future[Ack]) -> None:
        error = future.exception()
        if error is None:
            record.add(partition, number, future.result().base_offset)
        else:
            record.fail(error)

    number = 0
    while not stopping.wait(1 / BATCHES_PER_S):
        batch = pa.record_batch([pa.array([number])], schema=SCHEMA)
        for partition in range(partitions):
            future = producer.send(topic, batch, partition=partition)
            future.add_done_callback(partial(acknowledged, partition, number))
        number += 1


def follow(reader: sr.Reader, topic: str, partitions: int, record: Record, stopping: threading.Event) -> None:
    def one(partition: int) -> None:
        try:
            for found in reader.read(topic, partition=partition, follow=True):
                for offset, number in enumerate(found.batch.column(0).to_pylist(), found.base_offset):
                    record.add(partition, number, offset)
        except sr.errors.ReplicationError as error:
            record.fail(error)

    for partition in range(partitions):
        threading.Thread(target=one, args=(partition,), daemon=True).start()
    stopping.wait()


if __name__ == "__main__":
    sys.exit(main())
