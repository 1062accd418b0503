"""What a drill says of its kills: waits around them, and rows that are lost or doubled."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from spark_replication.admin.drill.figures import (
    History,
    Kill,
    Line,
    by_partition,
    history,
    led_by,
    longest_wait_ms,
    summary,
    waits,
)


def lines(*moments: tuple[int, float]) -> list[Line]:
    return [Line(partition, number, number, at) for number, (partition, at) in enumerate(moments)]


@pytest.mark.parametrize(
    ("times", "longest_ms"),
    [
        ([9.0, 9.5, 10.5, 10.6, 12.5], 1900),  # the longest within
        ([8.0, 10.2, 11.0, 12.0], 2200),  # one that began before the kill counts whole
        ([9.9, 10.1, 11.9, 15.0], 3100),  # and one that goes on after the window
        ([1.0, 6.0, 9.9, 10.5, 11.5, 12.5, 20.0], 1000),  # not those that lie outside
        ([9.9], 2100),  # none after the kill: at least until the window ends
        ([10.5, 11.0], 1000),  # none before
        ([], 2000),
        ([30.0], 20000),
        ([12.0, 10.0, 11.0], 1000),  # callbacks of two threads come in any order
    ],
)
def test_the_longest_wait_around_a_kill(times: list[float], longest_ms: float) -> None:
    assert longest_wait_ms(times, 10.0, 12.0) == pytest.approx(longest_ms)


def test_waits_are_told_by_partition_for_producers_and_readers() -> None:
    kill = Kill(what="broker 1", at=10.0, until=12.0, led=(1,), aim_ms=1000)
    produced = lines((0, 9.9), (1, 9.9), (0, 10.9), (0, 11.9), (1, 11.4), (0, 12.1), (1, 12.0))
    followed = lines((0, 9.9), (1, 9.9), (0, 11.9), (1, 11.9), (0, 12.4), (1, 12.4))
    found = waits(kill, 2, produced, followed)
    assert found.kill == kill
    assert found.produce_ms == pytest.approx({0: 1000, 1: 1500})
    assert found.read_ms == pytest.approx({0: 2000, 1: 2000})


def acknowledged(*rows: tuple[int, int, int]) -> list[Line]:
    return [Line(partition, number, offset, 0.0) for partition, number, offset in rows]


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ([(0, 7, 0), (0, 8, 1), (1, 7, 0)], History(read=3, lost=0, doubled=0)),
        ([(0, 7, 0), (1, 7, 0)], History(read=2, lost=1, doubled=0)),
        ([(0, 8, 0), (0, 7, 1), (1, 7, 0)], History(read=3, lost=2, doubled=0)),  # there, but not where it was said
        ([(0, 7, 0), (0, 8, 1), (0, 8, 2), (1, 7, 0)], History(read=4, lost=0, doubled=1)),  # stored twice
        ([(0, 7, 0), (0, 8, 1), (0, 8, 1), (1, 7, 0)], History(read=4, lost=0, doubled=1)),  # handed out twice
        ([(0, 7, 0), (0, 8, 1), (1, 7, 0), (1, 9, 1)], History(read=4, lost=0, doubled=0)),  # stored, the ack was lost
    ],
)
def test_what_is_lost_and_what_is_doubled(read: list[tuple[int, int, int]], found: History) -> None:
    assert history(acknowledged((0, 7, 0), (0, 8, 1), (1, 7, 0)), acknowledged(*read)) == found


def shown(table: Table) -> list[list[str]]:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    rows = [line for line in captured.get().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]


def test_a_brokers_kill_is_told_for_what_it_led_and_for_the_others() -> None:
    times = [(number, at) for number in range(3) for at in (9.9, 10.0 + 0.1 * (number + 1), 11.0)]
    produced = lines(*times)
    quiet = waits(Kill(what="nothing", at=10.0, until=11.0), 3, produced, produced)
    broker = waits(Kill(what="broker 1", at=10.0, until=11.0, led=(0, 2), aim_ms=1000), 3, produced, produced)
    assert shown(summary([quiet, broker])) == [
        ["nothing", "all", "800", "900", "800", "900", ""],
        ["broker 1", "that it led", "800", "900", "800", "900", "1000"],
        ["broker 1", "of others", "800", "800", "800", "800", "0"],
    ]
    assert shown(by_partition([quiet, broker]))[0] == ["0", "900 / 900", "900 / 900"]


def test_a_broker_that_led_everything_has_no_others() -> None:
    produced = lines((0, 9.9), (0, 11.0))
    only = waits(Kill(what="broker 1", at=10.0, until=11.0, led=(0,), aim_ms=1000), 1, produced, produced)
    assert [row[1] for row in shown(summary([only]))] == ["that it led"]


def test_who_led_what() -> None:
    assert led_by(2, {0: 1, 3: 2, 1: 2, 2: None}) == (1, 3)
