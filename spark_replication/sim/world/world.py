"""The simulated world's clock and events: one heap ordered by (time, number), one source of randomness.

Rules:
- Everything that happens is an event of `after`. Nothing reads a real clock. The same seed gives the same events.
- An event of a process that has ended never happens. An event of a stopped process happens when the process goes on.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

Action = Callable[[], None]
Event = tuple[int, int, "Process | None", str, object, Action]


class Killed(Exception):
    """Raised to end the process that this event runs in, in the middle of what it does."""


class InvariantBroken(Exception):
    """A checker found what must never be."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name
        self.what = what


class Process:
    """Something that runs, can be stopped for a while, and ends for good."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped_until_ms = 0
        #: How wrong its clock is.
        self.skew_ms = 0

    def ended(self) -> None:
        """End for good, as a process does that is killed within an event."""
        self.alive = False


class World:
    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed}/world")
        self.now_ms = 0
        self.step = 0
        self.counts: Counter[str] = Counter()
        self.trace: list[str] | None = [] if traced else None
        #: Called after every event, with the process that it ran in.
        self.check: Callable[[Process | None], None] = lambda _process: None
        self._events: list[Event] = []
        self._number = 0

    def after(self, delay_ms: int, what: str, action: Action, *, on: Process | None = None, about: object = "") -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._number, on, what, about, action))

    def run(self, until_ms: int) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self._next()
        self.now_ms = until_ms

    def note(self, what: str) -> None:
        """Add a line to the trace that is no event of its own."""
        if self.trace is not None:
            self.trace.append(f"{self.step:6} {self.now_ms:6} ms   {what}")

    def between(self, least: int, most: int) -> int:
        """A whole number, both ends included; faster than randint."""
        return least + int(self.rng.random() * (most - least + 1))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _next(self) -> None:
        at_ms, number, process, what, about, action = heapq.heappop(self._events)
        self.now_ms = at_ms
        if process is not None:
            if not process.alive:
                return
            if process.stopped_until_ms > at_ms:
                # The number stays: events that came in an order wait in that order.
                heapq.heappush(self._events, (process.stopped_until_ms, number, process, what, about, action))
                return
        self.step += 1
        if self.trace is not None:
            self.trace.append(
                f"{self.step:6} {at_ms:6} ms   {process.name if process else '-':4} {what} {about}".rstrip()
            )
        try:
            action()
        except Killed:
            assert process is not None, "only a process is killed"
            process.ended()
        self.check(process)
