"""How cases are measured on sides: turns and rounds, ratios, and when a side is warm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from spark_replication.admin.bench import harness
from spark_replication.admin.bench.harness import (
    MEDIAN,
    PERCENT_99,
    RATE,
    WARM_UP_ROWS,
    WORST,
    Beside,
    Harness,
    Measure,
    Measured,
    Round,
    Rounds,
    Row,
    rows,
    waits,
)

COUNT = Measure("threads", "", None)


class Clock:
    """Stands for `time`: each round takes as long."""

    def __init__(self, round_s: float) -> None:
        self.now_s = 100.0
        self.round_s = round_s

    def monotonic(self) -> float:
        return self.now_s


def begun(asked: Rounds, clock: Clock) -> list[int]:
    numbers = []
    for number in asked.numbers():
        numbers.append(number)
        clock.now_s += clock.round_s
    return numbers


@pytest.mark.parametrize(
    ("round_s", "count"),
    [(0.0, 5), (15.0, 5), (15.1, 4), (20.0, 4), (20.1, 3), (1_000.0, 3)],
    ids=["at once", "the last one begins in time", "too late", "four", "three", "never fewer"],
)
def test_rounds_begin_within_their_time(round_s: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(round_s)
    monkeypatch.setattr(harness, "time", clock)
    assert begun(Rounds(3, 5, within_s=60.0), clock) == list(range(count))


def test_rounds_that_a_user_asks_for_are_done_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1_000.0)
    monkeypatch.setattr(harness, "time", clock)
    assert begun(Rounds(4, 4), clock) == [0, 1, 2, 3]


class Side:
    def __init__(self, name: str, *rates: float) -> None:
        self.name = name
        self.rates = list(rates)


class Lift:
    """A case that says when it is begun, done and over."""

    what = "lift"

    def __init__(self) -> None:
        self.done: list[str] = []

    @contextmanager
    def begun(self, side: Side, harness: Harness) -> Iterator[Round]:
        self.done.append(f"begin {side.name}")

        def lift() -> Measured:
            self.done.append(side.name)
            return {RATE: side.rates.pop(0), COUNT: 3}

        yield lift
        self.done.append(f"end {side.name}")


def test_all_sides_are_ready_before_the_first_round_and_who_came_first_comes_last_in_the_next() -> None:
    case = Lift()
    said: list[str] = []
    sides = [Side("ours", 100.0, 50.0, 90.0), Side("Kafka", 50.0, 25.0, 30.0)]
    (rate, count) = Harness(Rounds(3, 3), 0.0, said.append).measure(case, sides)
    turns = ["ours", "Kafka", "Kafka", "ours", "ours", "Kafka"]
    assert case.done == ["begin ours", "begin Kafka", *turns, "end Kafka", "end ours"]
    # The machine was half as fast in the second round: that is no difference between the two.
    beside = Beside(side="Kafka", figure=30.0, ratio=2.0, least_ratio=2.0, most_ratio=3.0)
    assert rate == Row(what="lift", measure="rate", unit="MB/s", side="ours", figure=90.0, beside=(beside,))
    assert count.beside == (Beside(side="Kafka", figure=3.0),), "there is no better number of threads"
    assert said[0] == "lift, ours: rate 100 MB/s, threads 3 "


def test_apart_each_side_is_started_for_each_round_and_nothing_runs_beside_it() -> None:
    case = Lift()
    rates = {"ours": [100.0, 50.0], "Kafka": [50.0, 25.0]}

    @contextmanager
    def started(name: str) -> Iterator[Side]:
        case.done.append(f"start {name}")
        yield Side(name, rates[name].pop(0))
        case.done.append(f"stop {name}")

    starts = [partial(started, name) for name in rates]
    rate, _ = Harness(Rounds(2, 2), 0.0, lambda _: None).measure_apart(case, starts)
    turns = [[f"start {name}", f"begin {name}", name, f"end {name}", f"stop {name}"] for name in ("ours", "Kafka")]
    assert case.done == [*turns[0], *turns[1], *turns[1], *turns[0]]
    assert rate.beside == (Beside(side="Kafka", figure=37.5, ratio=2.0, least_ratio=2.0, most_ratio=2.0),)


def test_less_time_is_better_and_a_ratio_of_nothing_is_none() -> None:
    (row,) = rows("ack", {"ours": [{MEDIAN: 2.0}, {MEDIAN: 4.0}], "Kafka": [{MEDIAN: 6.0}, {MEDIAN: 4.0}]})
    assert row.beside == (Beside(side="Kafka", figure=5.0, ratio=2.0, least_ratio=1.0, most_ratio=3.0),)
    (row,) = rows("ack", {"ours": [{MEDIAN: 0.0}], "Kafka": [{MEDIAN: 6.0}]})
    assert row.beside == (Beside(side="Kafka", figure=6.0),)


def test_a_side_that_does_not_measure_something_is_not_beside_it() -> None:
    found = rows("lose", {"ours": [{RATE: 1.0, MEDIAN: 2.0}], "a": [{RATE: 1.0}], "b": [{MEDIAN: 2.0, RATE: 1.0}]})
    assert [(row.measure, [each.side for each in row.beside]) for row in found] == [
        ("rate", ["a", "b"]),
        ("median", ["b"]),
    ]


def test_a_small_figure_never_becomes_nothing() -> None:
    (row,) = rows("x", {"ours": [{MEDIAN: 0.000123456}]})
    assert row.figure == 0.0001235


def test_waits_are_told_by_their_percentiles() -> None:
    found = waits([float(number) for number in range(1_001)])
    assert (found[MEDIAN], found[PERCENT_99], found[WORST]) == (500.0, 990.0, 1_000.0)


class Rates:
    """What rounds measure, one after the other; the last one again and again."""

    def __init__(self, *rates: float) -> None:
        self._rates = rates
        self.rounds = 0

    def __call__(self) -> float:
        self.rounds += 1
        return self._rates[min(self.rounds, len(self._rates)) - 1]


@pytest.mark.parametrize(
    ("rates", "rows_a_round", "count"),
    [
        ((50.0,), WARM_UP_ROWS, 3),
        ((50.0,), WARM_UP_ROWS // 8, 8),
        ((20.0, 40.0, 50.0, 51.0, 52.0), WARM_UP_ROWS, 5),
        ((50.0, 50.0, 60.0, 70.0, 70.0, 70.0), WARM_UP_ROWS, 6),
    ],
)
def test_it_is_warm_once_three_rounds_are_alike_and_enough_rows_were_sent(
    rates: tuple[float, ...], rows_a_round: int, count: int
) -> None:
    told: list[str] = []
    rate = Rates(*rates)
    Harness(Rounds(1, 1), 60.0, told.append).warm_up("a side", rows_a_round, rate)
    assert rate.rounds == count
    sent = f"{rows_a_round * count:,} rows"
    assert told == [f"a side: warm after {sent}, {rates[0]:.0f} MB/s at first, {rates[-1]:.0f} now"]


def test_what_does_not_get_steady_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    told: list[str] = []
    rate = Rates(10.0, 20.0, 40.0)
    Harness(Rounds(1, 1), 4.0, told.append).warm_up("a side", WARM_UP_ROWS, rate)
    assert rate.rounds == 3
    assert told == [f"a side: not steady after {3 * WARM_UP_ROWS:,} rows and 4 s: 10, 20, 40 MB/s"]


def test_nothing_is_warmed_in_no_time() -> None:
    rate = Rates(10.0)
    Harness(Rounds(1, 1), 0.0, pytest.fail).warm_up("a side", WARM_UP_ROWS, rate)
    assert rate.rounds == 0
