"""Measures how long a row waits for its acknowledgement at a fixed rate, as users' producers see it, and Kafka's own
producer in turn with ours. Each is a process of its own, sends a row when it is due, and lingers for no other.

A case may have something go on meanwhile, as fast as each side does it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from spark_replication.admin.bench.beside import filled, going_on
from spark_replication.admin.bench.load import Latency, percentiles
from spark_replication.admin.bench.replicate import RECENT, Progress
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Paced, Side
from spark_replication.admin.bench.sides import in_turns, ratios, run

WARM_UP_S = 5.0  # Java compiles its code meanwhile


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
    """Send for so many seconds in each round of each case, after a warm-up."""
    for case in cases:
        yield _figures(case, *_measured(case, sides, seconds, rounds, progress))


def _measured(
    case: Paced, sides: Sequence[Side], seconds: float, rounds: Rounds, progress: Progress
) -> list[list[Acked]]:
    """What each side took in each round."""
    topic = f"ack-{case.row_bytes}-{case.rows_per_s}-{case.partitions}"
    warm_up, rows = (max(1, int(each * case.rows_per_s)) for each in (WARM_UP_S, seconds))
    found: list[list[Acked]] = [[] for _ in sides]
    for side in sides:
        side.create(topic, case.partitions, RECENT)
    with filled(sides, case.meanwhile, progress):
        for place, side in in_turns(sides, rounds):
            with going_on(side, case.meanwhile) as rates:
                (printed,), _ = run(side, side.paced(topic, case, warm_up=warm_up, rows=rows))
            took = percentiles([ns / 1e9 for ns in msgspec.json.decode(printed, type=list[int])])
            acked = Acked(took, rates)
            progress(f"{case.rows_per_s} rows of {case.row_bytes} bytes a second, {side.name}: {acked}")
            found[place].append(acked)
    for side in sides:
        side.delete(topic)
    return found


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
