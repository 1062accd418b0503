"""What goes on beside a measurement, by a program in a process of its own: a reader that catches up, or replicas that
move from one broker to another, again and again. A topic is filled for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

import msgspec

from spark_replication.admin.bench.programs import ended, ready, send
from spark_replication.admin.bench.replicate import WHOLE, Progress
from spark_replication.admin.bench.side import Meanwhile, Rows, Side
from spark_replication.admin.bench.talking import Done

TOPIC = "beside"
ROWS = Rows(row_bytes=1 << 10, batch_bytes=64 << 10, partitions=3)
REPLICAS = 2  # of three brokers: there is one to move to
MIB = 192
PACE_MB_PER_S = 50  # either side has read faster on every machine that was measured


@contextmanager
def filled(sides: Sequence[Side], meanwhile: Meanwhile, progress: Progress) -> Iterator[None]:
    """Each side has the topic while the block runs."""
    if meanwhile == "nothing":
        yield
        return
    for side in sides:
        side.create(TOPIC, ROWS.partitions, WHOLE, REPLICAS)
        send(side, TOPIC, ROWS, _batches())
        progress(f"{TOPIC}: {side.name} has {MIB} MiB")
    yield
    for side in sides:
        side.delete(TOPIC)


@contextmanager
def going_on(side: Side, meanwhile: Meanwhile) -> Iterator[list[float]]:
    """It goes on while the block runs. Then the list has its rate: 10^6 bytes a second."""
    rates: list[float] = []
    match meanwhile:
        case "nothing":
            yield rates
            return
        case "catch-up":
            program = side.rereading(TOPIC, ROWS, 0)
        case "paced-catch-up":
            program = side.rereading(TOPIC, ROWS, PACE_MB_PER_S)
        case "reassignment":
            program = side.moving(TOPIC, _batches() * ROWS.batch_bytes // ROWS.partitions)
        case _:
            assert_never(meanwhile)
    with ready(program) as running:
        yield rates
        rates.append(msgspec.json.decode(ended(running, ""), type=Done).mb_per_s)


def _batches() -> int:
    return (MIB << 20) // ROWS.batch_bytes
