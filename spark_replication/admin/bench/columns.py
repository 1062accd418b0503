"""Some columns of a topic, and all of it as a table: what crosses the wire, and how fast it is, beside all columns and
beside what a Reader gives. Each reader is a process of its own: see programs.

`python -m spark_replication.admin.bench.columns WORK` is one of these.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Literal, NamedTuple

import msgspec
import numpy
import pyarrow as pa

from spark_replication.admin.bench.harness import Harness, Measure, Measured, Round, Row
from spark_replication.admin.bench.ours import Ours
from spark_replication.admin.bench.probes import received_bytes
from spark_replication.admin.bench.programs import answer, command_of, kept
from spark_replication.admin.bench.sending import DEADLINE_MS, Answers
from spark_replication.admin.bench.side import counted, size
from spark_replication.admin.bench.zookeeper_view import HEALTHY_TIMEOUT_S
from spark_replication.client.producing.producer import Producer
from spark_replication.client.reading.reader import Reader
from spark_replication.client.reading.topic_rows import topic
from spark_replication.errors import ReplicationError

COLUMNS = 20
NAMES = [f"column{place:02}" for place in range(COLUMNS)]
ROW_BYTES = COLUMNS * 8  # a column has numbers, or texts of four letters and where each begins
ROWS = Measure("rows", "million a second", "more")
WIRE = Measure("received", "bytes a row")
BROKER_CPU, CLIENT_CPU = Measure("brokers", "CPU µs/1,000 rows"), Measure("client", "CPU µs/1,000 rows")

#: table: `to_arrow` of sr.topic. batches: its `to_reader`. reader: a Reader with a thread for each partition, as `bench
#: consume` has, which drops what it reads; or keeps it (kept), as a table does.
Way = Literal["table", "batches", "reader", "kept"]
READ: Sequence[tuple[int, Way]] = (
    (1, "batches"),
    (5, "batches"),
    (1, "table"),
    (COLUMNS, "batches"),
    (COLUMNS, "table"),
)


class Share(NamedTuple):
    """A side: so many columns, read in this way."""

    name: str
    of: Ours
    columns: int
    way: Way


def batch_of(rows: int) -> pa.RecordBatch:
    """Whole numbers, others, and texts, in turns."""
    random = numpy.random.default_rng(0)
    made: Sequence[Callable[[], pa.Array]] = (
        lambda: pa.array(random.integers(0, 1 << 40, rows)),
        lambda: pa.array(random.random(rows)),
        lambda: pa.array([f"{number:04}" for number in random.integers(0, 10_000, rows)]),
    )
    return pa.record_batch([made[place % len(made)]() for place in range(COLUMNS)], names=NAMES)


class ReadColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Read a topic of `mib` again and again, which was written a moment before and is in memory: see `filled`."""

    batch_bytes: int
    partitions: int
    mib: int
    #: How many columns its first side reads, and how.
    columns: int = COLUMNS
    way: Way = "batches"

    @property
    def what(self) -> str:
        share = f"all {COLUMNS} columns" if self.columns == COLUMNS else f"{self.columns} of {COLUMNS} columns"
        table = " as a table" if self.way == "table" else ""
        return f"{share}{table}, batches of {size(self.batch_bytes)}, {counted(self.partitions)}"

    def sides(self, side: Ours) -> list[Share]:
        """These columns beside all in the same way; or all beside what a Reader gives."""
        beside = Share("all columns", side, COLUMNS, self.way)
        if self.columns == COLUMNS:
            beside = Share("Reader", side, COLUMNS, "kept" if self.way == "table" else "reader")
        return [Share("sr.topic", side, self.columns, self.way), beside]

    @property
    def topic(self) -> str:
        return f"columns-{self.batch_bytes}-{self.partitions}"

    @property
    def rows_a_batch(self) -> int:
        return max(1, self.batch_bytes // ROW_BYTES)

    @property
    def batches(self) -> int:
        return max(1, (self.mib << 20) // (self.rows_a_batch * ROW_BYTES))

    @contextmanager
    def filled(self, side: Ours) -> Iterator[None]:
        """Its topic is there while the block runs."""
        batch, admin = batch_of(self.rows_a_batch), side.cluster.admin
        admin.create_topic(self.topic, batch.schema, partitions=self.partitions)
        side.cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        answers = Answers(self.batches)
        with Producer(side.bootstrap, batch_bytes=0, deadline_ms=DEADLINE_MS) as producer:
            for number in range(self.batches):
                sent = producer.send(self.topic, batch, partition=number % self.partitions)
                sent.add_done_callback(answers.came)
            producer.flush()
            answers.wait()
        yield
        admin.delete_topic(self.topic)

    @contextmanager
    def begun(self, side: Share, harness: Harness) -> Iterator[Round]:
        rows = self.batches * self.rows_a_batch
        work = Work(
            bootstrap=side.of.bootstrap,
            topic=self.topic,
            partitions=self.partitions,
            rows=rows,
            columns=side.columns,
            way=side.way,
        )
        with kept(side.of, command_of(__name__, work)) as program:

            def read() -> Measured:
                used = program.used("")
                ((took_ns, wire_bytes),) = used.took_ns
                thousands = rows / 1_000
                return {
                    ROWS: rows / took_ns * 1e3,
                    WIRE: wire_bytes / rows,
                    BROKER_CPU: 1e6 * used.brokers_s / thousands,
                    CLIENT_CPU: 1e6 * used.clients_s / thousands,
                }

            harness.warm_up(f"{self.what}, {side.name}", rows, lambda: read()[ROWS] * ROW_BYTES)
            yield read


def measure(cases: Iterable[ReadColumns], side: Ours, harness: Harness) -> Iterator[Row]:
    for case in cases:
        with case.filled(side):
            for columns, way in READ:
                read = msgspec.structs.replace(case, columns=columns, way=way)
                yield from harness.measure(read, read.sides(side))


# A reader, in a process of its own


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    partitions: int
    #: In all partitions together.
    rows: int
    columns: int
    way: Way


class Reading:
    def __init__(self, work: Work, running: ExitStack) -> None:
        self._work = work
        names = None if work.columns == COLUMNS else NAMES[: work.columns]
        self._table = running.enter_context(topic(work.topic, work.bootstrap, columns=names))
        self._reader = running.enter_context(Reader(work.bootstrap))
        self._threads = running.enter_context(ThreadPoolExecutor(work.partitions))

    def asked(self, _: Sequence[str]) -> list[int]:
        """Read all there is. Returns nanoseconds, and the bytes that have come for it."""
        before, began_ns = received_bytes(), time.perf_counter_ns()
        rows = self._rows()
        took_ns, came = time.perf_counter_ns() - began_ns, received_bytes()
        if rows != self._work.rows:
            raise ReplicationError(f"{rows} rows were read, not {self._work.rows}")
        return [took_ns, sum(count - before.get(connection, 0) for connection, count in came.items())]

    def _rows(self) -> int:
        match self._work.way:
            case "table":
                return int(self._table.to_arrow().num_rows)
            case "batches":
                return sum(batch.num_rows for batch in self._table.to_reader())
            case "reader":
                return sum(self._threads.map(lambda number: sum(map(len, self._batches(number))), self._numbers))
            case "kept":
                held = [*self._threads.map(lambda number: [*self._batches(number)], self._numbers)]
                return sum(map(len, chain.from_iterable(held)))

    @property
    def _numbers(self) -> range:
        return range(self._work.partitions)

    def _batches(self, partition: int) -> Iterator[pa.RecordBatch]:
        return (found.batch for found in self._reader.read(self._work.topic, partition, "earliest"))


if __name__ == "__main__":
    with ExitStack() as running:
        answer(Reading(msgspec.json.decode(sys.argv[1], type=Work), running).asked)
