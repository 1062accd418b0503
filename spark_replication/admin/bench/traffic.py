"""What clients do: they produce as fast as they can or one row at a time, and consume. Each client is a process of its
own, as users' are.

Both sides have three replicas, two of which must have a record; acks=all; no sync of the disk; the same rows of random
bytes, and batches of the same size; and as much may be unanswered. What differs: our rows are Arrow batches, checked
column by column where they are stored, and Kafka's are records that brokers do not look into.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import msgspec

from spark_replication.admin.bench.harness import RATE, Harness, Measure, Measured, Round, waits
from spark_replication.admin.bench.programs import Programs, Used, kept
from spark_replication.admin.bench.side import RECENT, WHOLE, Door, Rows, Target, size

BROKER_CPU, CLIENT_CPU = Measure("brokers", "CPU s/GB"), Measure("clients", "CPU s/GB")
# What small batches cost is theirs, and not their bytes'.
BATCHES_MAX = 1 << 14


class Produce(Rows, frozen=True, kw_only=True):
    """Send `mib` in a round, or BATCHES_MAX batches. The rate of several producers is the sum of theirs."""

    producers: int
    mib: int

    @property
    def what(self) -> str:
        producers = "" if self.producers == 1 else f", {self.producers} producers"
        return f"{self.sizes}{producers}"

    @property
    def batches(self) -> int:
        """How many each producer sends in a round."""
        whole = (self.mib << 20) // (self.rows_a_batch * self.row_bytes)
        return max(1, min(BATCHES_MAX, whole) // self.producers)

    @contextmanager
    def begun(self, side: Target, harness: Harness) -> Iterator[Round]:
        topic = f"produce-{self.row_bytes}-{self.batch_bytes}-{self.partitions}-{self.producers}"
        rows = self.batches * self.rows_a_batch
        side.create(topic, self.partitions, RECENT)
        with kept(side, side.sender(topic, self), self.producers) as programs:

            def produce() -> Measured:
                used = programs.used(f"fast {self.batches}")
                rate = sum(_mb_per_s(rows * self.row_bytes, took_ns) for took_ns in used.took_ns)
                return {RATE: rate, **_cpu(used, rows * self.producers * self.row_bytes)}

            harness.warm_up(f"{self.what}, {side.name}", rows * self.producers, lambda: produce()[RATE])
            yield produce
        side.delete(topic)


class Consume(Rows, frozen=True, kw_only=True):
    """Read `mib` that were written a moment before, and are in memory. Our reader has a thread for each partition, and
    Kafka's has one for all."""

    mib: int
    door: Door = "reader"
    #: At each byte.
    looks: bool = False

    @property
    def what(self) -> str:
        door = {"reader": "", "flight": ", by DoGet", "files": ", from a broker's files"}[self.door]
        return f"{self.sizes}{door}"

    @property
    def rows(self) -> int:
        return max(1, (self.mib << 20) // (self.rows_a_batch * self.row_bytes)) * self.rows_a_batch

    @contextmanager
    def begun(self, side: Target, harness: Harness) -> Iterator[Round]:
        topic = f"consume-{self.row_bytes}-{self.batch_bytes}-{self.partitions}"
        side.create(topic, self.partitions, WHOLE)
        _send(side, topic, self, self.rows // self.rows_a_batch)
        read_bytes = self.rows * self.row_bytes
        with kept(side, side.consumer(topic, self, self.rows, self.door, looks=self.looks)) as program:

            def consume() -> Measured:
                used = program.used("0")
                return {RATE: _mb_per_s(read_bytes, used.took_ns[0]), **_cpu(used, read_bytes)}

            harness.warm_up(f"{self.what}, {side.name}", self.rows, lambda: consume()[RATE])
            yield consume
        side.delete(topic)


def _mb_per_s(moved_bytes: int, took_ns: list[int]) -> float:
    return moved_bytes * len(took_ns) / sum(took_ns) * 1e3


def _cpu(used: Used, moved_bytes: int) -> Measured:
    gb = moved_bytes / 1e9
    return {BROKER_CPU: used.brokers_s / gb, CLIENT_CPU: used.clients_s / gb}


def _send(side: Target, topic: str, of: Rows, batches: int) -> None:
    with kept(side, side.sender(topic, of)) as program:
        program.ask(f"fast {batches}")


#: What goes on beside acknowledgements. catch-up: a reader reads another topic as fast as it can; paced-catch-up: with
#: PACE_MB_PER_S; reassignment: its replicas move from one broker to another.
Meanwhile = Literal["nothing", "catch-up", "paced-catch-up", "reassignment"]
OTHER_TOPIC = "beside"
OTHER_ROWS = Rows(row_bytes=1 << 10, batch_bytes=64 << 10, partitions=3)
OTHER_REPLICAS = 2  # of three brokers: there is one to move to
OTHER_MIB = 192
PACE_MB_PER_S = 50  # either side has read faster on every machine that was measured
MEANWHILE = Measure("beside it", "MB/s", "more")
WARM_UP_ROWS = 100_000  # in a round, as fast as they go
BEGIN_S = 1.0  # of each round, which does not count


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True):
    """Send one row at a time, each when it is due, lingering for no other: how long each waits to be acknowledged."""

    row_bytes: int
    rows_per_s: int
    partitions: int
    seconds: float
    meanwhile: Meanwhile = "nothing"

    @property
    def what(self) -> str:
        beside = "" if self.meanwhile == "nothing" else f", beside {self.meanwhile}"
        return f"{self.rows_per_s:,} rows of {size(self.row_bytes)} a second{beside}"

    @contextmanager
    def begun(self, side: Target, harness: Harness) -> Iterator[Round]:
        topic = f"ack-{self.row_bytes}-{self.rows_per_s}-{self.partitions}"
        rows = Rows(row_bytes=self.row_bytes, batch_bytes=self.row_bytes, partitions=self.partitions)
        begin, counted = (max(1, int(each * self.rows_per_s)) for each in (BEGIN_S, self.seconds))
        side.create(topic, self.partitions, RECENT)
        with (
            _another_topic(side, self.meanwhile) as other,
            kept(side, side.sender(topic, rows, joins=True)) as program,
        ):

            def rate() -> float:
                (took_ns,) = program.ask(f"fast {WARM_UP_ROWS}")
                return _mb_per_s(WARM_UP_ROWS * self.row_bytes, took_ns)

            def acknowledge() -> Measured:
                beside: dict[Measure, float] = {}
                with going_on(other, self.meanwhile, beside):
                    (took_ns,) = program.ask(f"paced {self.rows_per_s} {begin + counted}")
                return {**waits([ns / 1e6 for ns in took_ns[begin:]]), **beside}

            harness.warm_up(f"{self.what}, {side.name}", WARM_UP_ROWS, rate)
            yield acknowledge
        side.delete(topic)


@contextmanager
def _another_topic(side: Target, meanwhile: Meanwhile) -> Iterator[Programs | None]:
    """The program that does something with another topic, which is there while the block runs."""
    if meanwhile == "nothing":
        yield None
        return
    side.create(OTHER_TOPIC, OTHER_ROWS.partitions, WHOLE, OTHER_REPLICAS)
    _send(side, OTHER_TOPIC, OTHER_ROWS, (OTHER_MIB << 20) // OTHER_ROWS.batch_bytes)
    if meanwhile == "reassignment":
        command = side.mover(OTHER_TOPIC)
    else:
        rows = (OTHER_MIB << 20) // OTHER_ROWS.row_bytes
        command = side.consumer(OTHER_TOPIC, OTHER_ROWS, rows, "reader", looks=False)
    with kept(side, command) as program:
        yield program
    side.delete(OTHER_TOPIC)


@contextmanager
def going_on(other: Programs | None, meanwhile: Meanwhile, found: dict[Measure, float]) -> Iterator[None]:
    """It does that again and again while the block runs, in which it has begun. Then `found` has its rate."""
    if other is None:
        yield
        return
    line = str(PACE_MB_PER_S if meanwhile == "paced-catch-up" else 0)
    ended = threading.Event()

    def again_and_again() -> list[int]:
        took_ns: list[int] = []
        while not ended.is_set():
            took_ns += other.ask(line)[0]
        return took_ns

    with ThreadPoolExecutor(1) as asking:
        took_ns = asking.submit(again_and_again)
        try:
            yield
        finally:
            ended.set()
        found[MEANWHILE] = _mb_per_s(OTHER_MIB << 20, took_ns.result())
