"""What a drill has measured: of each kill, how long each partition answered nobody; and what was lost or doubled.

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
    """An acknowledgement, or a row that was read. at: seconds since 1970."""

    partition: int
    number: int
    offset: int
    at: float


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """Or a quiet while, to compare with: then nothing was killed.

    until: the first moment at which all was as before. led: what the killed broker led. aim_ms: None = there is none.
    """

    what: str
    at: float
    until: float
    led: tuple[int, ...] = ()
    aim_ms: int | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """The longest, by partition, for an acknowledgement and for the next row of a reader that follows, in ms."""

    kill: Kill
    produce_ms: dict[int, float]
    read_ms: dict[int, float]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Of acknowledged rows, as somebody read them."""

    read: int
    lost: int
    doubled: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All that a drill tells. seconds, facts: by what they are."""

    passed: bool
    problems: tuple[str, ...]
    waits: tuple[Waits, ...]
    seconds: dict[str, float]
    acknowledged: int
    followed: History
    read_again: History
    facts: dict[str, str]


def waits(kill: Kill, partitions: int, produced: Sequence[Line], followed: Sequence[Line]) -> Waits:
    def by_partition(lines: Sequence[Line]) -> dict[int, float]:
        times = {number: [line.at for line in lines if line.partition == number] for number in range(partitions)}
        return {number: longest_wait_ms(found, kill.at, kill.until) for number, found in times.items()}

    return Waits(kill=kill, produce_ms=by_partition(produced), read_ms=by_partition(followed))


def longest_wait_ms(times: Sequence[float], since: float, until: float) -> float:
    """Between two of these, of which a part lies within the window: what began before a kill, or goes on after all was
    well again, counts whole. Nothing since, or until then, is a wait as well."""
    moments = sorted(times)
    if not moments or moments[0] > since:
        moments.insert(0, since)
    if moments[-1] < until:
        moments.append(until)
    return max(after - before for before, after in pairwise(moments) if after >= since and before <= until) * 1000


def history(acknowledged: Iterable[Line], read: Sequence[Line]) -> History:
    """lost: not read at its offset. doubled: read more than once."""
    at = {(line.partition, line.offset): line.number for line in read}
    return History(
        read=len(read),
        lost=sum(at.get((line.partition, line.offset)) != line.number for line in acknowledged),
        doubled=len(read) - len({(line.partition, line.number) for line in read}),
    )


def summary(found: Iterable[Waits]) -> Table:
    """p50 and max over partitions; of a broker's kill over those that it led, and over the others."""
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
