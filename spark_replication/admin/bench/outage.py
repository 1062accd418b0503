"""Measures what users see when a broker is killed that leads a third of a topic's partitions: when the last of these
has a new leader, and when each has acknowledged a row. Kafka is measured in turn with us.

A producer in a process of its own begins to write at the kill, to all partitions that the broker led. Nobody is asked
anything meanwhile: when leaders were elected is read afterwards from what the clusters have stored.

What differs: our brokers' deaths are reported by their guardians. Kafka's controller waits until a broker's session is
over, of 3 s here, where 9 are usual. The node that is Kafka's active controller is left alive, as ours is.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from spark_replication.admin.bench.programs import ended, ready
from spark_replication.admin.bench.replicate import WHOLE, Progress
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Side
from spark_replication.admin.bench.sides import in_turns, ratios

TOPIC = "outage"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of all rounds: milliseconds since the kill. Kafka's are None if it could not run."""

    partitions: int
    #: How many of them the broker led.
    led: int
    #: The last new leader is stored.
    elected_ms: float
    #: Half of the partitions that it led have acknowledged a row.
    half_written_ms: float
    #: All of them have.
    written_ms: float
    kafka_elected_ms: float | None = None
    kafka_half_written_ms: float | None = None
    kafka_written_ms: float | None = None
    #: How many times as long Kafka took in the same round.
    elected_ratio: float | None = None
    written_ratio: float | None = None


COLUMNS = Figures.__struct_fields__


class Outage(NamedTuple):
    led: int
    elected_ms: float
    half_written_ms: float
    written_ms: float


def outage(sides: Sequence[Side], counts: Sequence[int], *, rounds: Rounds, progress: Progress) -> Iterator[Figures]:
    """Kill a broker in each round of each count of partitions."""
    for count in counts:
        yield _figures(count, *_measured(count, sides, rounds, progress))


def _measured(partitions: int, sides: Sequence[Side], rounds: Rounds, progress: Progress) -> list[list[Outage]]:
    found: list[list[Outage]] = [[] for _ in sides]
    for side in sides:
        side.create(TOPIC, partitions, WHOLE)
    for place, side in in_turns(sides, rounds):
        met = _met(side, partitions)
        progress(f"{partitions} partitions, {side.name}: {met}")
        found[place].append(met)
    for side in sides:
        side.delete(TOPIC)
    return found


def _met(side: Side, partitions: int) -> Outage:
    """One outage of one side."""
    broker, led = side.victim(TOPIC)
    with ready(side.resuming(TOPIC, partitions)) as program:
        killed_ns = time.time_ns()
        side.kill(broker)
        try:
            took_ms = sorted(ns / 1e6 for ns in msgspec.json.decode(_told(program, killed_ns, led), type=list[int]))
            elected_ms = 1_000 * side.elected_s(TOPIC, led, killed_ns / 1e9) - killed_ns / 1e6
        finally:
            side.restore(TOPIC, broker)  # whatever is measured next wants all of them
    return Outage(len(led), elected_ms, took_ms[len(took_ms) // 2], took_ms[-1])


def _told(program: subprocess.Popen[str], killed_ns: int, led: Sequence[int]) -> str:
    """What the program printed in the end."""
    return ended(program, " ".join(map(str, (killed_ns, *led))) + "\n")


def _figures(partitions: int, ours: Sequence[Outage], kafkas: Sequence[Outage] = ()) -> Figures:
    own = _medians(ours)
    found = Figures(
        partitions=partitions,
        led=own.led,
        elected_ms=own.elected_ms,
        half_written_ms=own.half_written_ms,
        written_ms=own.written_ms,
    )
    if not kafkas:
        return found
    peer = _medians(kafkas)
    return msgspec.structs.replace(
        found,
        kafka_elected_ms=peer.elected_ms,
        kafka_half_written_ms=peer.half_written_ms,
        kafka_written_ms=peer.written_ms,
        elected_ratio=ratios([each.elected_ms for each in kafkas], [each.elected_ms for each in ours])["ratio"],
        written_ratio=ratios([each.written_ms for each in kafkas], [each.written_ms for each in ours])["ratio"],
    )


def _medians(rounds: Sequence[Outage]) -> Outage:
    return Outage(*(round(statistics.median(values)) for values in zip(*rounds, strict=True)))
