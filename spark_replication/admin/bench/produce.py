"""Measures producers as users run them, in processes of their own, and Kafka's own producer in turn with them.

As much may be unanswered on both sides, and logs keep 64 MiB. Each round finds producers and brokers warm: see
programs.warm_up. The rate of several producers is the sum of theirs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import msgspec

from spark_replication.admin.bench.programs import Programs, kept, produced_mb_per_s, warm_up
from spark_replication.admin.bench.replicate import RECENT, Progress
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Rows, Side
from spark_replication.admin.bench.sides import in_turns, ratios

# What small batches cost is theirs, and not their bytes'.
BATCHES_MAX = 1 << 14


class Case(Rows, frozen=True, kw_only=True):
    producers: int


class Figures(Case, frozen=True, kw_only=True):
    """The medians of all rounds. MB are 10^6 bytes of rows. Kafka's are None if it could not run."""

    mb_per_s: float
    broker_cpu_s_per_gb: float
    client_cpu_s_per_gb: float
    kafka_mb_per_s: float | None = None
    kafka_broker_cpu_s_per_gb: float | None = None
    kafka_client_cpu_s_per_gb: float | None = None
    #: Our rate divided by Kafka's in the same round.
    ratio: float | None = None
    least_ratio: float | None = None
    most_ratio: float | None = None
    #: How many times as much processor time a GB costs Kafka's brokers.
    broker_cpu_ratio: float | None = None


COLUMNS = Figures.__struct_fields__


class Produced(NamedTuple):
    mb_per_s: float
    broker_cpu_s_per_gb: float
    client_cpu_s_per_gb: float


def produce(
    sides: Sequence[Side], cases: Sequence[Case], *, mib: int, rounds: Rounds, progress: Progress
) -> Iterator[Figures]:
    """Let the producers of each case send `mib` together, but no more than BATCHES_MAX batches, in each round."""
    for case in cases:
        yield _figures(case, *_measured(case, sides, mib << 20, rounds, progress))


def _measured(
    case: Case, sides: Sequence[Side], total: int, rounds: Rounds, progress: Progress
) -> list[list[Produced]]:
    """What each side did in each round."""
    topic = f"produce-{case.row_bytes}-{case.batch_bytes}-{case.partitions}-{case.producers}"
    what = f"{case.batch_bytes} bytes a batch, {case.partitions} partitions, {case.producers} producers"
    batches = _batches(case, total)
    rows = batches * case.producers * case.rows_a_batch
    found: list[list[Produced]] = [[] for _ in sides]
    with ExitStack() as running:
        programs = []
        for side in sides:
            side.create(topic, case.partitions, RECENT)
            program = running.enter_context(kept(side, side.producer(topic, case), case.producers))
            rate = partial(_rate, program, case, batches)
            warm_up(rows, rate, rounds.warm_up_s, f"{what}, {side.name}", progress)
            programs.append(program)
        for place, side in in_turns(sides, rounds):
            produced = _produced(programs[place], case, batches)
            progress(f"{what}, {side.name}: {produced.mb_per_s:.0f} MB/s")
            found[place].append(produced)
    for side in sides:
        side.delete(topic)
    return found


def _batches(case: Case, total: int) -> int:
    """How many each producer sends in a round."""
    return max(1, min(BATCHES_MAX, total // (case.rows_a_batch * case.row_bytes)) // case.producers)


def _rate(program: Programs, case: Case, batches: int) -> float:
    return produced_mb_per_s(program.ask(str(batches)), case, batches)


def _produced(program: Programs, case: Case, batches: int) -> Produced:
    """One round of one side."""
    found = program.ask(str(batches))
    gb = batches * case.producers * case.rows_a_batch * case.row_bytes / 1e9
    return Produced(produced_mb_per_s(found, case, batches), found.brokers_s / gb, found.clients_s / gb)


def _figures(case: Case, ours: Sequence[Produced], kafkas: Sequence[Produced] = ()) -> Figures:
    own = Produced(*(statistics.median(values) for values in zip(*ours, strict=True)))
    found = Figures(
        **msgspec.structs.asdict(case),
        mb_per_s=round(own.mb_per_s, 1),
        broker_cpu_s_per_gb=round(own.broker_cpu_s_per_gb, 2),
        client_cpu_s_per_gb=round(own.client_cpu_s_per_gb, 2),
    )
    if not kafkas:
        return found
    peer = Produced(*(statistics.median(values) for values in zip(*kafkas, strict=True)))
    return msgspec.structs.replace(
        found,
        kafka_mb_per_s=round(peer.mb_per_s, 1),
        kafka_broker_cpu_s_per_gb=round(peer.broker_cpu_s_per_gb, 2),
        kafka_client_cpu_s_per_gb=round(peer.client_cpu_s_per_gb, 2),
        **ratios([each.mb_per_s for each in ours], [each.mb_per_s for each in kafkas]),
        broker_cpu_ratio=round(peer.broker_cpu_s_per_gb / own.broker_cpu_s_per_gb, 2),
    )
