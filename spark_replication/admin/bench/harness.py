"""How everything is measured: a case says what is done, on a side, and what a round of it took; rounds of all sides
alternate; and each figure of the first side is told beside the same of the others, with the ratio.

Other work of a machine falls on all sides of a round. So a ratio is that of one round, and the median of the rounds is
told, with the worst and the best.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

#: Rows that a side has written or read before it counts as warm. Java compiles its code meanwhile: Kafka is slower by
#: half before.
WARM_UP_ROWS = 1_000_000
STEADY_ROUNDS = 3
STEADY = 1.1

Progress = Callable[[str], None]


class Measure(NamedTuple):
    name: str
    unit: str
    #: None: there is no better, and so no ratio.
    better: Literal["more", "less"] | None = "less"


RATE = Measure("rate", "MB/s", "more")  # of 10^6 bytes of rows
MEDIAN, PERCENT_99 = Measure("median", "ms"), Measure("99 %", "ms")
PERMILLE_999, WORST = Measure("99.9 %", "ms"), Measure("worst", "ms")

Measured = Mapping[Measure, float]
#: Does it once, and says what it took.
Round = Callable[[], Measured]


def waits(took_ms: Sequence[float]) -> Measured:
    thousandths = statistics.quantiles(took_ms, n=1_000, method="inclusive")
    return {
        MEDIAN: thousandths[499],
        PERCENT_99: thousandths[989],
        PERMILLE_999: thousandths[998],
        WORST: max(took_ms),
    }


class Named(Protocol):
    @property
    def name(self) -> str: ...


S_contra = TypeVar("S_contra", bound=Named, contravariant=True)
S = TypeVar("S", bound=Named)


class Case(Protocol[S_contra]):
    """What is done."""

    @property
    def what(self) -> str: ...

    def begun(self, side: S_contra, harness: Harness) -> AbstractContextManager[Round]:
        """All that rounds on this side need, and warm, while the block runs."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """The same figure of another side."""

    side: str
    figure: float
    #: How many times better the first side is, in the median of the rounds, the worst and the best.
    ratio: float | None = None
    least_ratio: float | None = None
    most_ratio: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The median of one measure of one case."""

    what: str
    measure: str
    unit: str
    side: str
    figure: float
    beside: tuple[Beside, ...] = ()


class Rounds(NamedTuple):
    """Rounds begin within `within_s`, but there are at least `least` and at most `most`: slow machines do fewer."""

    least: int
    most: int
    within_s: float = 0.0

    def numbers(self) -> Iterator[int]:
        """The number of each round, as it begins. The first one is 0."""
        began_s = time.monotonic()
        for number in range(self.most):
            if number >= self.least and time.monotonic() - began_s > self.within_s:
                return
            yield number

    def turns(self, sides: int) -> Iterator[int]:
        """Each side's place in each round. Who came first comes last in the next one."""
        for number in self.numbers():
            yield from range(sides) if number % 2 == 0 else reversed(range(sides))


class Harness(NamedTuple):
    rounds: Rounds
    #: The most that a side may take until it is warm.
    warm_up_s: float
    progress: Progress

    def measure(self, case: Case[S], sides: Sequence[S]) -> list[Row]:
        found: dict[str, list[Measured]] = {side.name: [] for side in sides}
        with ExitStack() as running:
            doing = [running.enter_context(case.begun(side, self)) for side in sides]
            for place in self.rounds.turns(len(sides)):
                self._do(case, sides[place], doing[place], found)
        return rows(case.what, found)

    def measure_apart(self, case: Case[S], starts: Sequence[Callable[[], AbstractContextManager[S]]]) -> list[Row]:
        """Start each side for each of its rounds, beside nothing: else each costs the others time, even idle."""
        found: dict[str, list[Measured]] = {}
        for place in self.rounds.turns(len(starts)):
            with starts[place]() as side, case.begun(side, self) as do:
                self._do(case, side, do, found)
        return rows(case.what, found)

    def _do(self, case: Case[S], side: S, do: Round, found: dict[str, list[Measured]]) -> None:
        measured = do()
        said = ", ".join(f"{measure.name} {figure:,.4g} {measure.unit}" for measure, figure in measured.items())
        self.progress(f"{case.what}, {side.name}: {said}")
        found.setdefault(side.name, []).append(measured)

    def warm_up(self, what: str, rows_a_round: int, rate: Callable[[], float]) -> None:
        """Run rounds until they are warm: WARM_UP_ROWS at least, and rates that are steady. Says so if they are not."""
        began_s = time.monotonic()
        rates: list[float] = []
        while time.monotonic() - began_s < self.warm_up_s:
            rates.append(rate())
            last = rates[-STEADY_ROUNDS:]
            is_steady = len(last) == STEADY_ROUNDS and max(last) < STEADY * min(last)
            if is_steady and len(rates) * rows_a_round >= WARM_UP_ROWS:
                sent = f"{len(rates) * rows_a_round:,} rows"
                self.progress(f"{what}: warm after {sent}, {rates[0]:.0f} MB/s at first, {rates[-1]:.0f} now")
                return
        if rates:
            sent, seen = f"{len(rates) * rows_a_round:,} rows", ", ".join(f"{each:.0f}" for each in rates)
            self.progress(f"{what}: not steady after {sent} and {self.warm_up_s:.0f} s: {seen} MB/s")


def rows(what: str, found: Mapping[str, Sequence[Measured]]) -> list[Row]:
    """A row for each measure of the first side: what rounds of each side have measured, beside each other."""
    first, *others = found
    return [
        Row(
            what=what,
            measure=measure.name,
            unit=measure.unit,
            side=first,
            figure=_median(found[first], measure),
            beside=tuple(
                _beside(measure, found[first], other, found[other]) for other in others if measure in found[other][0]
            ),
        )
        for measure in found[first][0]
    ]


def _beside(measure: Measure, own: Sequence[Measured], other: str, theirs: Sequence[Measured]) -> Beside:
    if measure.better is None:
        return Beside(side=other, figure=_median(theirs, measure))
    pairs = [(mine[measure], yours[measure]) for mine, yours in zip(own, theirs, strict=True)]
    better = [mine / yours if measure.better == "more" else yours / mine for mine, yours in pairs if mine and yours]
    return Beside(
        side=other,
        figure=_median(theirs, measure),
        ratio=round(statistics.median(better), 2) if better else None,
        least_ratio=round(min(better), 2) if better else None,
        most_ratio=round(max(better), 2) if better else None,
    )


def _median(rounds: Sequence[Measured], measure: Measure) -> float:
    """The median, rounded to four digits, so that a small figure never becomes 0."""
    return float(f"{statistics.median(measured[measure] for measured in rounds):.4g}")
