"""Measures a reader as users run it, of a topic with three partitions say, and Kafka's own consumer in turn with it.

What is read was written a moment before, and is in memory. The first third is a warm-up: Java compiles its code
meanwhile. Our reader has a thread for each partition, and Kafka's has one for all. The processor time has the start of
the program in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from spark_replication.admin.bench.replicate import WHOLE, Progress
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Rows, Side
from spark_replication.admin.bench.sides import in_turns, ratios, run

WARM_UP_SHARE = 1 / 3


class Figures(Rows, frozen=True, kw_only=True):
    """The medians of all rounds. MB are 10^6 bytes of rows. Kafka's are None if it could not run."""

    mb_per_s: float
    cpu_s_per_gb: float
    kafka_mb_per_s: float | None = None
    kafka_cpu_s_per_gb: float | None = None
    #: Our rate divided by Kafka's in the same round.
    ratio: float | None = None
    least_ratio: float | None = None
    most_ratio: float | None = None


COLUMNS = Figures.__struct_fields__


class Consumed(NamedTuple):
    mb_per_s: float
    #: Of brokers and client.
    cpu_s_per_gb: float


def consume(
    sides: Sequence[Side], cases: Sequence[Rows], *, mib: int, rounds: Rounds, progress: Progress
) -> Iterator[Figures]:
    """Read `mib` in each round of each case."""
    for case in cases:
        yield _figures(case, *_measured(case, sides, mib << 20, rounds, progress))


def _measured(
    case: Rows, sides: Sequence[Side], total: int, rounds: Rounds, progress: Progress
) -> list[list[Consumed]]:
    """What each side did in each round."""
    topic = f"consume-{case.row_bytes}-{case.batch_bytes}-{case.partitions}"
    batches = max(2, total // (case.rows_a_batch * case.row_bytes))
    found: list[list[Consumed]] = [[] for _ in sides]
    for side in sides:
        side.create(topic, case.partitions, WHOLE)
        run(side, side.producer(topic, case, warm_up=1, batches=batches - 1))
        progress(f"{topic}: {side.name} has {batches} batches")
    for place, side in in_turns(sides, rounds):
        consumed = _consumed(side, topic, case, batches * case.rows_a_batch)
        progress(f"{topic}, {side.name}: {consumed.mb_per_s:.0f} MB/s")
        found[place].append(consumed)
    for side in sides:
        side.delete(topic)
    return found


def _consumed(side: Side, topic: str, case: Rows, rows: int) -> Consumed:
    """One round of one side."""
    warm_up = int(rows * WARM_UP_SHARE)
    printed, used = run(side, side.consumer(topic, case, warm_up=warm_up, rows=rows))
    cpu_s_per_gb = (used.brokers + used.clients) / (rows * case.row_bytes / 1e9)
    return Consumed(side.consumed_mb_per_s(printed[0], case, warm_up=warm_up), cpu_s_per_gb)


def _figures(case: Rows, ours: Sequence[Consumed], kafkas: Sequence[Consumed] = ()) -> Figures:
    own = Consumed(*(statistics.median(values) for values in zip(*ours, strict=True)))
    found = Figures(
        **msgspec.structs.asdict(case), mb_per_s=round(own.mb_per_s, 1), cpu_s_per_gb=round(own.cpu_s_per_gb, 2)
    )
    if not kafkas:
        return found
    peer = Consumed(*(statistics.median(values) for values in zip(*kafkas, strict=True)))
    return msgspec.structs.replace(
        found,
        kafka_mb_per_s=round(peer.mb_per_s, 1),
        kafka_cpu_s_per_gb=round(peer.cpu_s_per_gb, 2),
        **ratios([each.mb_per_s for each in ours], [each.mb_per_s for each in kafkas]),
    )
