"""The two clusters of a comparison, and the programs that load them, each in a process of its own.

Both have three replicas, two of which must have a record; acks=all; no sync of the disk; the same rows of random bytes,
and batches of the same size. What differs: our rows are Arrow batches, checked column by column where they are stored,
and Kafka's are records that brokers do not look into.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from spark_replication.admin.bench import consuming, pacing, producing
from spark_replication.admin.bench.kafka import performance
from spark_replication.admin.bench.kafka.nodes import KafkaCluster, kafka_cluster
from spark_replication.admin.bench.load import cpu_s_of
from spark_replication.admin.bench.replicate import BROKERS, RECENT, Progress, started
from spark_replication.errors import ReplicationError, RequestTimedOut, StartFailed
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.model import Scalar

HEALTHY_TIMEOUT_S = 60.0
TIMEOUT_S = 600.0
WARM_UP_TOPIC = "warm-up"
WARM_UP_ROWS = 1_000_000


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a topic, and read from it."""

    row_bytes: int
    batch_bytes: int
    partitions: int

    @property
    def rows_a_batch(self) -> int:
        return max(1, self.batch_bytes // self.row_bytes)


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are sent to a topic one by one, each when it is due."""

    row_bytes: int
    rows_per_s: int
    partitions: int


class Used(NamedTuple):
    """Processor time in seconds."""

    brokers: float
    clients: float


class Side(Protocol):
    """A cluster that takes the load."""

    name: str

    @property
    def pids(self) -> tuple[int, ...]:
        """The brokers'."""

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar]) -> None: ...

    def delete(self, topic: str) -> None: ...

    def producer(self, topic: str, of: Rows, *, warm_up: int, batches: int) -> list[str]:
        """The program that sends so many batches after those of the warm-up."""

    def produced_mb_per_s(self, printed: str, of: Rows) -> float:
        """What that program has measured after the warm-up, in 10^6 bytes."""

    def consumer(self, topic: str, of: Rows, *, warm_up: int, rows: int) -> list[str]:
        """The program that reads so many rows, of which the first ones are a warm-up."""

    def consumed_mb_per_s(self, printed: str, of: Rows, *, warm_up: int) -> float:
        """What that program has measured after the warm-up, in 10^6 bytes."""

    def paced(self, topic: str, of: Paced, *, warm_up: int, rows: int) -> list[str]:
        """The program that sends so many rows after those of the warm-up, and prints what each took: nanoseconds, as a
        list in JSON."""


@contextmanager
def both(progress: Progress, *, kafka: bool) -> Iterator[list[Side]]:
    """Run our cluster, and Kafka beside it. Without `kafka`, and where it cannot run, ours is alone."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="spark-replication-")))
        sides: list[Side] = [_Ours(running.enter_context(started()))]
        if kafka:
            try:
                sides.append(_Kafkas(running.enter_context(kafka_cluster(folder / "kafka", progress))))
            except StartFailed as error:
                progress(f"Kafka does not run, so there is nothing to compare with: {error.message}")
            else:
                progress(f"{WARM_UP_ROWS} rows go to each side first: Java compiles its code meanwhile")
                for side in sides:
                    _warm_up(side)
        yield sides


def _warm_up(side: Side) -> None:
    rows = Rows(row_bytes=1 << 10, batch_bytes=64 << 10, partitions=1)
    side.create(WARM_UP_TOPIC, rows.partitions, RECENT)
    run(side, side.producer(WARM_UP_TOPIC, rows, warm_up=1, batches=WARM_UP_ROWS // rows.rows_a_batch))
    side.delete(WARM_UP_TOPIC)


def in_turns(sides: Sequence[Side], rounds: int) -> Iterator[tuple[int, Side]]:
    """Each side in each round, with its place. The order changes from one round to the next."""
    turns = list(enumerate(sides))
    for number in range(rounds):
        yield from turns if number % 2 == 0 else reversed(turns)


def run(side: Side, command: Sequence[str], times: int = 1) -> tuple[list[str], Used]:
    """Run this program so many times at once. Return what each printed, and the processor time that all of it took."""
    clients_s, brokers_s = _children_s(), cpu_s_of(side.pids)
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(times)
    ]
    try:
        printed = [_printed(process) for process in running]
    finally:
        for process in running:
            process.kill()  # those that are left, if one of them has failed
            process.wait()
    return printed, Used(cpu_s_of(side.pids) - brokers_s, _children_s() - clients_s)


def _printed(process: subprocess.Popen[str]) -> str:
    try:
        printed, said = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RequestTimedOut(f"a program of the load did not end within {TIMEOUT_S:.0f} s") from error
    if process.returncode != 0:
        raise ReplicationError(
            f"a program of the load ended with exit code {process.returncode}: {printed[-500:]}{said[-1_500:]}"
        )
    return printed


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Our rates divided by those of the same rounds: the median, the least and the most."""
    found = [round(our / their, 2) for our, their in zip(ours, theirs, strict=True)]
    return {"ratio": round(statistics.median(found), 2), "least_ratio": min(found), "most_ratio": max(found)}


def _children_s() -> float:
    """The processor time of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Ours:
    name = "ours"

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self._cluster.brokers.values())

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar]) -> None:
        self._cluster.admin.create_topic(
            topic, producing.SCHEMA, partitions=partitions, replication_factor=BROKERS, config=config
        )
        self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)

    def delete(self, topic: str) -> None:
        self._cluster.admin.delete_topic(topic)

    def producer(self, topic: str, of: Rows, *, warm_up: int, batches: int) -> list[str]:
        work = producing.Work(
            bootstrap=self._cluster.bootstrap,
            topic=topic,
            partitions=of.partitions,
            row_bytes=of.row_bytes,
            rows=of.rows_a_batch,
            warm_up_batches=warm_up,
            batches=batches,
        )
        return _program(producing.__name__, work)

    def produced_mb_per_s(self, printed: str, of: Rows) -> float:
        return msgspec.json.decode(printed, type=producing.Done).mb_per_s

    def consumer(self, topic: str, of: Rows, *, warm_up: int, rows: int) -> list[str]:
        work = consuming.Work(
            bootstrap=self._cluster.bootstrap,
            topic=topic,
            partitions=of.partitions,
            row_bytes=of.row_bytes,
            rows=rows,
            warm_up_rows=warm_up,
        )
        return _program(consuming.__name__, work)

    def consumed_mb_per_s(self, printed: str, of: Rows, *, warm_up: int) -> float:
        return msgspec.json.decode(printed, type=producing.Done).mb_per_s

    def paced(self, topic: str, of: Paced, *, warm_up: int, rows: int) -> list[str]:
        work = pacing.Work(
            bootstrap=self._cluster.bootstrap,
            topic=topic,
            partitions=of.partitions,
            row_bytes=of.row_bytes,
            rows_per_s=of.rows_per_s,
            warm_up_rows=warm_up,
            rows=rows,
        )
        return _program(pacing.__name__, work)


def _program(module: str, work: msgspec.Struct) -> list[str]:
    return [sys.executable, "-m", module, msgspec.json.encode(work).decode()]


class _Kafkas:
    name = "Kafka"

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    @property
    def pids(self) -> tuple[int, ...]:
        return self._cluster.pids

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar]) -> None:
        self._cluster.create_topic(topic, partitions, {**config, "file.delete.delay.ms": 0})

    def delete(self, topic: str) -> None:
        self._cluster.delete_topic(topic)

    def producer(self, topic: str, of: Rows, *, warm_up: int, batches: int) -> list[str]:
        return performance.producing(
            self._cluster,
            topic,
            row_bytes=of.row_bytes,
            batch_bytes=of.batch_bytes,
            warm_up_rows=warm_up * of.rows_a_batch,
            rows=batches * of.rows_a_batch,
        )

    def produced_mb_per_s(self, printed: str, of: Rows) -> float:
        return performance.produced_mb_per_s(printed, of.row_bytes)

    def consumer(self, topic: str, of: Rows, *, warm_up: int, rows: int) -> list[str]:
        return performance.consuming(self._cluster, topic, rows=rows)

    def consumed_mb_per_s(self, printed: str, of: Rows, *, warm_up: int) -> float:
        return performance.consumed_mb_per_s(printed, of.row_bytes, warm_up)

    def paced(self, topic: str, of: Paced, *, warm_up: int, rows: int) -> list[str]:
        numbers = (of.partitions, of.row_bytes, of.rows_per_s, warm_up, rows)
        return self._cluster.own_program("Paced", self._cluster.bootstrap, topic, *map(str, numbers))
