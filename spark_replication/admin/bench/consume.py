"""Measures a reader as users run it, of a topic with three partitions say, and Kafka's own consumer in turn with it.

What is read was written a moment before, and is in memory; readers and brokers are warm: see programs.warm_up. Our
reader has a thread for each partition, and Kafka's has one for all.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import msgspec

from spark_replication.admin.bench.programs import Programs, kept, send, warm_up
from spark_replication.admin.bench.replicate import WHOLE, Progress
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Rows, Side
from spark_replication.admin.bench.sides import in_turns, ratios


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
    batches = max(1, total // (case.rows_a_batch * case.row_bytes))
    rows = batches * case.rows_a_batch
    found: list[list[Consumed]] = [[] for _ in sides]
    with ExitStack() as running:
        programs = []
        for side in sides:
            side.create(topic, case.partitions, WHOLE)
            send(side, topic, case, batches)
            progress(f"{topic}: {side.name} has {batches} batches")
            program = running.enter_context(kept(side, side.consumer(topic, case, rows)))
            warm_up(rows, partial(_rate, program, case, rows), rounds.warm_up_s, f"{topic}, {side.name}", progress)
            programs.append(program)
        for place, side in in_turns(sides, rounds):
            consumed = _consumed(programs[place], case, rows)
            progress(f"{topic}, {side.name}: {consumed.mb_per_s:.0f} MB/s")
            found[place].append(consumed)
    for side in sides:
        side.delete(topic)
    return found


def _rate(program: Programs, case: Rows, rows: int) -> float:
    return _consumed(program, case, rows).mb_per_s


def _consumed(program: Programs, case: Rows, rows: int) -> Consumed:
    """One round of one side."""
    found = program.ask("")
    read_bytes = rows * case.row_bytes
    (took_ns,) = map(int, found.printed)
    return Consumed(read_bytes / took_ns * 1e3, (found.brokers_s + found.clients_s) / (read_bytes / 1e9))


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
