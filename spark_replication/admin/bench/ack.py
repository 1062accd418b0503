"""Measures how long a row waits for its acknowledgement at a fixed rate, as users' producers see it, and Kafka's own
producer in turn with ours. Each is a process of its own, sends a row when it is due, and lingers for no other. Before
that it sends as many as it can until it is warm: see programs.warm_up.

A case may have something go on meanwhile, as fast as each side does it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import msgspec

from spark_replication.admin.bench.beside import filled, going_on
from spark_replication.admin.bench.load import Latency, percentiles
from spark_replication.admin.bench.programs import Programs, decoded_ns, kept, warm_up
from spark_replication.admin.bench.replicate import RECENT, Progress
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Paced, Side
from spark_replication.admin.bench.sides import in_turns, ratios

WARM_UP_ROWS = 100_000  # in a round, as fast as they go
BEGIN_S = 1.0  # of each measurement, which do not count


class Figures(Paced, frozen=True, kw_only=True):
    """The medians of all rounds. Kafka's are None if it could not run."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    #: How fast it was that went on meanwhile.
    meanwhile_mb_per_s: float | None = None
    kafka_p50_ms: float | None = None
    kafka_p99_ms: float | None = None
    kafka_p999_ms: float | None = None
    kafka_max_ms: float | None = None
    kafka_meanwhile_mb_per_s: float | None = None
    #: How many times as long Kafka took in the same round.
    p50_ratio: float | None = None
    p99_ratio: float | None = None
    p999_ratio: float | None = None


COLUMNS = Figures.__struct_fields__


class Acked(NamedTuple):
    took: Latency
    #: Empty if nothing goes on meanwhile.
    meanwhile_mb_per_s: list[float]


def ack(
    sides: Sequence[Side], cases: Sequence[Paced], *, seconds: float, rounds: Rounds, progress: Progress
) -> Iterator[Figures]:
    """Send for so many seconds in each round of each case."""
    for case in cases:
        yield _figures(case, *_measured(case, sides, seconds, rounds, progress))


def _measured(
    case: Paced, sides: Sequence[Side], seconds: float, rounds: Rounds, progress: Progress
) -> list[list[Acked]]:
    """What each side took in each round."""
    topic = f"ack-{case.row_bytes}-{case.rows_per_s}-{case.partitions}"
    what = f"{case.rows_per_s} rows of {case.row_bytes} bytes a second"
    found: list[list[Acked]] = [[] for _ in sides]
    with filled(sides, case.meanwhile, progress), ExitStack() as running:
        programs = []
        for side in sides:
            side.create(topic, case.partitions, RECENT)
            program = running.enter_context(kept(side, side.paced(topic, case)))
            rate = partial(_rate, program, case)
            warm_up(WARM_UP_ROWS, rate, rounds.warm_up_s, f"{what}, {side.name}", progress)
            programs.append(program)
        for place, side in in_turns(sides, rounds):
            with going_on(side, case.meanwhile) as rates:
                took_ns = _paced(programs[place], case, seconds)
            acked = Acked(percentiles([ns / 1e9 for ns in took_ns]), rates)
            progress(f"{what}, {side.name}: {acked}")
            found[place].append(acked)
    for side in sides:
        side.delete(topic)
    return found


def _rate(program: Programs, case: Paced) -> float:
    (took_ns,) = decoded_ns(program.ask(f"0 {WARM_UP_ROWS}"))
    return WARM_UP_ROWS * case.row_bytes / took_ns * 1e3


def _paced(program: Programs, case: Paced, seconds: float) -> list[int]:
    begin, rows = (max(1, int(each * case.rows_per_s)) for each in (BEGIN_S, seconds))
    return decoded_ns(program.ask(f"{case.rows_per_s} {begin + rows}"))[begin:]


def _figures(case: Paced, ours: Sequence[Acked], kafkas: Sequence[Acked] = ()) -> Figures:
    found = Figures(**msgspec.structs.asdict(case), **_medians(ours))
    if not kafkas:
        return found
    return msgspec.structs.replace(
        found,
        **{f"kafka_{name}": value for name, value in _medians(kafkas).items()},
        **{
            f"{name}_ratio": ratios(
                [getattr(each.took, f"{name}_ms") for each in kafkas],
                [getattr(each.took, f"{name}_ms") for each in ours],
            )["ratio"]
            for name in ("p50", "p99", "p999")
        },
    )


def _medians(rounds: Sequence[Acked]) -> dict[str, Any]:
    took = {
        name: round(statistics.median(getattr(each.took, name) for each in rounds), 2)
        for name in Latency.__struct_fields__
    }
    rates = [rate for each in rounds for rate in each.meanwhile_mb_per_s]
    return {**took, "meanwhile_mb_per_s": round(statistics.median(rates), 1) if rates else None}
