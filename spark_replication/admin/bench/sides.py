"""Runs two clusters, ours and Kafka, and the programs that load them, each in a process of its own.

Both have three replicas, two of which must have a record; acks=all; no sync of the disk; the same rows of random bytes,
and batches of the same size. What differs: our rows are Arrow batches, checked column by column where they are stored,
and Kafka's are records that brokers do not look into.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from spark_replication.admin.bench.cluster import HEALTHY_TIMEOUT_S
from spark_replication.admin.bench.kafka.nodes import kafka_cluster
from spark_replication.admin.bench.kafka.theirs import Theirs
from spark_replication.admin.bench.load import cpu_s_of
from spark_replication.admin.bench.ours import Ours
from spark_replication.admin.bench.replicate import RECENT, Progress, started
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Rows, Side
from spark_replication.client.admin import Admin
from spark_replication.errors import ReplicationError, RequestTimedOut, StartFailed

TIMEOUT_S = 600.0
WARM_UP_TOPIC = "warm-up"
WARM_UP_ROWS = 250_000
WARM_UPS = Rounds(2, 4, within_s=20.0)


class Used(NamedTuple):
    """Processor time in seconds."""

    brokers: float
    clients: float


@contextmanager
def both(progress: Progress, *, kafka: bool) -> Iterator[list[Side]]:
    """Run our cluster, and Kafka beside it. Without `kafka`, and where it cannot run, ours is alone."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="spark-replication-")))
        cluster = running.enter_context(started())
        admin = Admin(cluster.bootstrap, security=cluster.security, deadline_ms=int(1_000 * HEALTHY_TIMEOUT_S))
        sides: list[Side] = [Ours(cluster, running.enter_context(admin))]
        if kafka:
            try:
                sides.append(Theirs(running.enter_context(kafka_cluster(folder / "kafka", progress))))
            except StartFailed as error:
                progress(f"Kafka does not run, so there is nothing to compare with: {error.message}")
            else:
                rows = f"{WARM_UPS.least} to {WARM_UPS.most} times {WARM_UP_ROWS:,} rows"
                progress(f"{rows} go to each side first: Java compiles its code meanwhile")
                for side in sides:
                    _warm_up(side)
        yield sides


def _warm_up(side: Side) -> None:
    rows = Rows(row_bytes=1 << 10, batch_bytes=64 << 10, partitions=1)
    side.create(WARM_UP_TOPIC, rows.partitions, RECENT)
    for _ in WARM_UPS.numbers():
        run(side, side.producer(WARM_UP_TOPIC, rows, warm_up=1, batches=WARM_UP_ROWS // rows.rows_a_batch))
    side.delete(WARM_UP_TOPIC)


def in_turns(sides: Sequence[Side], rounds: Rounds) -> Iterator[tuple[int, Side]]:
    """Each side in each round, with its place. The order changes from one round to the next."""
    turns = list(enumerate(sides))
    for number in rounds.numbers():
        yield from turns if number % 2 == 0 else reversed(turns)


def run(side: Side, command: Sequence[str], times: int = 1) -> tuple[list[str], Used]:
    """Run this program so many times at once. Return what each printed, and the processor time that all of it took."""
    clients_s, brokers_s = _children_s(), cpu_s_of(side.pids)
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(times)
    ]
    try:
        printed = [ended(process) for process in running]
    finally:
        for process in running:
            process.kill()  # those that are left, if one of them has failed
            process.wait()
    return printed, Used(cpu_s_of(side.pids) - brokers_s, _children_s() - clients_s)


@contextmanager
def ready(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The program, once it has printed `ready`. It does not outlive the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            assert program.stdout is not None
            if program.stdout.readline() != "ready\n":
                raise ReplicationError(f"a program of the load did not begin: {ended(program)}")
            yield program
        finally:
            program.kill()


def ended(process: subprocess.Popen[str], told: str | None = None) -> str:
    """What the program prints until it has ended. told: what it reads meanwhile."""
    try:
        printed, said = process.communicate(told, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RequestTimedOut(f"a program of the load did not end within {TIMEOUT_S:.0f} s") from error
    if process.returncode != 0:
        raise ReplicationError(
            f"a program of the load ended with exit code {process.returncode}: {printed[-500:]}{said[-1_500:]}"
        )
    return printed


def ratios(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """One side's figures divided by the other's of the same rounds: the median, the least and the most.

    Callers give rates as ours, theirs, and times as theirs, ours: above 1, we are better."""
    found = [round(mine / yours, 2) for mine, yours in zip(one, other, strict=True)]
    return {"ratio": round(statistics.median(found), 2), "least_ratio": min(found), "most_ratio": max(found)}


def _children_s() -> float:
    """The processor time of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
