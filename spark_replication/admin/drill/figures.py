"""The measurements of a drill: for each kill, how long each partition answered nobody; and what was lost or doubled.

Pure: lines of acknowledgements and reads in, figures out, as tables for people and as one value for programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec
from rich.table import Table

from spark_replication.model import BrokerId


class Line(msgspec.Struct, frozen=True):
    """An acknowledgement, or a row that was read."""

    partition: int
    number: int
    offset: int
    #: Seconds since 1970.
    at: float


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A kill; or a quiet while, in which nothing was killed, to compare with."""

    what: str
    at: float
    #: The first moment at which all was as before.
    until: float
    #: The partitions that the killed broker led.
    led: tuple[int, ...] = ()
    #: None if there is no aim.
    aim_ms: int | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """The longest waits of each partition, in ms: for an acknowledgement, and for the next row of a reader."""

    kill: Kill
    produce_ms: dict[int, float]
    read_ms: dict[int, float]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """How acknowledged rows were read."""

    read: int
    lost: int
    doubled: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of a drill."""

    passed: bool
    problems: tuple[str, ...]
    waits: tuple[Waits, ...]
    #: Durations, by what took them.
    seconds: dict[str, float]
    acknowledged: int
    followed: History
    read_again: History
    #: Other findings, by what they are about.
    facts: dict[str, str]


def waits(kill: Kill, partitions: int, produced: Sequence[Line], followed: Sequence[Line]) -> Waits:
    def by_partition(lines: Sequence[Line]) -> dict[int, float]:
        times = {number: [line.at for line in lines if line.partition == number] for number in range(partitions)}
        return {number: longest_wait_ms(found, kill.at, kill.until) for number, found in times.items()}

    return Waits(kill=kill, produce_ms=by_partition(produced), read_ms=by_partition(followed))


def longest_wait_ms(times: Sequence[float], since: float, until: float) -> float:
    """The longest time between two of these moments, of which a part lies within the window. A wait that began before
    a kill, or goes on after all was well again, counts whole. With no moment before or after the window, the window's
    bound takes its place."""
    moments = sorted(times)
    if not moments or moments[0] > since:
        moments.insert(0, since)
    if moments[-1] < until:
        moments.append(until)
    return max(after - before for before, after in pairwise(moments) if after >= since and before <= until) * 1000


def history(acknowledged: Iterable[Line], read: Sequence[Line]) -> History:
    """Compare what was read with what was acknowledged. A row is lost if it was not read at its offset. It is doubled
    if it was read more than once."""
    at = {(line.partition, line.offset): line.number for line in read}
    return History(
        read=len(read),
        lost=sum(at.get((line.partition, line.offset)) != line.number for line in acknowledged),
        doubled=len(read) - len({(line.partition, line.number) for line in read}),
    )


def summary(found: Iterable[Waits]) -> Table:
    """A table of p50 and max over partitions. For the kill of a broker, the partitions that it led stand apart from the
    others."""
    table = Table(title="longest wait of a partition, in ms", title_justify="left")
    for column in ("kill -9 of", "partitions"):
        table.add_column(column)
    for column in ("produce p50", "max", "read p50", "max", "aim"):
        table.add_column(column, justify="right")
    for each in found:
        kill = each.kill
        others = tuple(number for number in each.produce_ms if number not in kill.led)
        aim = "" if kill.aim_ms is None else str(kill.aim_ms)
        groups = {"that it led": kill.led, "of others": others} if kill.led else {"all": others}
        for name, members in groups.items():
            if members:
                produce, read = _p50_max(each.produce_ms, members), _p50_max(each.read_ms, members)
                table.add_row(kill.what, name, *produce, *read, aim if name != "of others" else "0")
    return table


def by_partition(found: Sequence[Waits]) -> Table:
    table = Table("partition", title="of each partition: produce / read, in ms", title_justify="left")
    for each in found:
        table.add_column(each.kill.what, justify="right")
    for number in found[0].produce_ms:
        table.add_row(str(number), *(f"{each.produce_ms[number]:.0f} / {each.read_ms[number]:.0f}" for each in found))
    return table


def _p50_max(of: Mapping[int, float], members: Sequence[int]) -> tuple[str, str]:
    chosen = [of[number] for number in members]
    return _shown(median, chosen), _shown(max, chosen)


def _shown(measure: Callable[[list[float]], float], of: list[float]) -> str:
    return f"{measure(of):.0f}"


def led_by(broker: BrokerId, leaders: Mapping[int, BrokerId | None]) -> tuple[int, ...]:
    return tuple(number for number, leader in sorted(leaders.items()) if leader == broker)
