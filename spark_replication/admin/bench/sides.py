"""Runs two clusters, ours and Kafka, and the programs that load them, each in a process of its own.

Both have three replicas, two of which must have a record; acks=all; no sync of the disk; the same rows of random bytes,
and batches of the same size. What differs: our rows are Arrow batches, checked column by column where they are stored,
and Kafka's are records that brokers do not look into.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_replication.admin.bench.cluster import HEALTHY_TIMEOUT_S
from spark_replication.admin.bench.kafka.nodes import kafka_cluster
from spark_replication.admin.bench.kafka.theirs import Theirs
from spark_replication.admin.bench.ours import Ours
from spark_replication.admin.bench.programs import kept, produced_mb_per_s, warm_up
from spark_replication.admin.bench.replicate import RECENT, Progress, started
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Rows, Side
from spark_replication.client.asking.admin import Admin
from spark_replication.errors import StartFailed

WARM_UP_TOPIC = "warm-up"
WARM_UP_BATCHES = 2_000  # in a round


@contextmanager
def both(progress: Progress, *, kafka: bool, warm_up_s: float) -> Iterator[list[Side]]:
    """Run our cluster, and Kafka beside it, both warm. Without `kafka`, and where it cannot run, ours is alone."""
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
                for side in sides:
                    _warm_up(side, warm_up_s, progress)
        yield sides


def _warm_up(side: Side, within_s: float, progress: Progress) -> None:
    """Its brokers."""
    rows = Rows(row_bytes=1 << 10, batch_bytes=64 << 10, partitions=1)
    side.create(WARM_UP_TOPIC, rows.partitions, RECENT)
    with kept(side, side.producer(WARM_UP_TOPIC, rows)) as program:

        def rate() -> float:
            return produced_mb_per_s(program.ask(str(WARM_UP_BATCHES)), rows, WARM_UP_BATCHES)

        warm_up(WARM_UP_BATCHES * rows.rows_a_batch, rate, within_s, f"the brokers, {side.name}", progress)
    side.delete(WARM_UP_TOPIC)


def in_turns(sides: Sequence[Side], rounds: Rounds) -> Iterator[tuple[int, Side]]:
    """Each side in each round, with its place. The order changes from one round to the next."""
    turns = list(enumerate(sides))
    for number in rounds.numbers():
        yield from turns if number % 2 == 0 else reversed(turns)


def ratios(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """One side's figures divided by the other's of the same rounds: the median, the least and the most.

    Callers give rates as ours, theirs, and times as theirs, ours: above 1, we are better."""
    found = [round(mine / yours, 2) for mine, yours in zip(one, other, strict=True)]
    return {"ratio": round(statistics.median(found), 2), "least_ratio": min(found), "most_ratio": max(found)}
