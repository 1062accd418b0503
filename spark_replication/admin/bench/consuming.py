"""A reader of ours, in a process of its own: see Target.consumer. It reads each partition on a thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import msgspec
import pyarrow as pa
from crc32c import crc32c
from pyarrow import flight

from spark_replication.admin.bench.programs import answer
from spark_replication.admin.bench.sending import security_of
from spark_replication.admin.bench.side import Door
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.local_reader import LocalReader
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import ReplicationError
from spark_replication.messages.envelope import to_json
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Scalar

ROUTE_MS = 30_000

#: The batches of a partition.
Batches = Callable[[int], Iterable[pa.RecordBatch]]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    #: Settings.
    security: Mapping[str, Scalar]
    topic: str
    partitions: int
    #: In all partitions together.
    rows: int
    row_bytes: int
    door: Door
    looks: bool
    #: The folder of each partition, as a broker of this host has it.
    folders: Sequence[str]


class Reading:
    def __init__(self, work: Work, batches: Batches, threads: ThreadPoolExecutor) -> None:
        self._work = work
        self._batches = batches
        self._threads = threads

    def asked(self, words: Sequence[str]) -> list[int]:
        return [self.read(int(words[0]))]

    def read(self, mb_per_s: int) -> int:
        """Read all there is: nanoseconds."""
        work = self._work
        s_a_row = work.partitions * work.row_bytes / (1e6 * mb_per_s) if mb_per_s else 0.0
        began_s = time.perf_counter()

        def one(partition: int) -> int:
            rows = 0
            for batch in self._batches(partition):
                if work.looks:
                    look_at(batch)
                rows += batch.num_rows
                if s_a_row:
                    time.sleep(max(0.0, began_s + rows * s_a_row - time.perf_counter()))
            return rows

        rows = sum(self._threads.map(one, range(work.partitions)))
        took_ns = int(1e9 * (time.perf_counter() - began_s))
        if rows != work.rows:
            raise ReplicationError(f"{rows} rows were read, not {work.rows}")
        return took_ns


def look_at(batch: pa.RecordBatch) -> None:
    """A map that nobody looks into would cost nothing."""
    crc32c(batch.column(0).buffers()[-1])


@contextmanager
def reading(work: Work) -> Iterator[Reading]:
    with ExitStack() as running:
        threads = running.enter_context(ThreadPoolExecutor(work.partitions))
        yield Reading(work, _batches(work, running), threads)


def _batches(work: Work, running: ExitStack) -> Batches:
    security = security_of(work.security)
    match work.door:
        case "reader":
            reader = running.enter_context(Reader(work.bootstrap, security=security))
            return lambda partition: (found.batch for found in reader.read(work.topic, partition, "earliest"))
        case "flight":
            routes = Routes(work.bootstrap, security)
            running.callback(routes.close)
            clients = []
            for partition in range(work.partitions):
                route = routes.route(work.topic, partition, Deadline(ROUTE_MS))
                clients.append(running.enter_context(security.client(route.address)))
            return lambda partition: (chunk.data for chunk in _got(clients[partition], work.topic, partition))
        case "files":
            # What was just written is committed, but may lie above the checkpoint.
            readers = [LocalReader(folder) for folder in work.folders]
            return lambda partition: (found.batch for found in readers[partition].read(uncommitted=True))


def _got(client: flight.FlightClient, topic: str, partition: int) -> flight.FlightStreamReader:
    return client.do_get(flight.Ticket(to_json(ReadTicket(topic=topic, partition=partition))))


if __name__ == "__main__":
    with reading(msgspec.json.decode(sys.argv[1], type=Work)) as program:
        answer(program.asked)
