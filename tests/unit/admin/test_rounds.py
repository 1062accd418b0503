"""How many rounds a slow machine does, and a fast one."""

from __future__ import annotations

import pytest

from spark_replication.admin.bench import rounds
from spark_replication.admin.bench.rounds import Rounds, exactly


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
    monkeypatch.setattr(rounds, "time", clock)
    assert begun(Rounds(3, 5, within_s=60.0), clock) == list(range(count))


def test_rounds_that_a_user_asks_for_are_done_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1_000.0)
    monkeypatch.setattr(rounds, "time", clock)
    assert begun(exactly(4), clock) == [0, 1, 2, 3]
