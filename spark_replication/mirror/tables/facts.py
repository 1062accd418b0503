"""Facts that are not in `events` yet. Unlike rows, they are never merged. Pure.

Each fact has a number, above those of all earlier controllers.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from spark_replication.core.controller.origin import Origin
from spark_replication.mirror.tables.columns import Key, Table

FACTS_MAX = 100_000
_TERM = 1 << 32  # how many numbers each controller has


def term_of(number: int) -> int:
    """The epoch of the controller that gave this number."""
    return number // _TERM


class Change(msgspec.Struct):
    """A row has changed."""

    table: Table[Any]
    key: Key
    #: The row as this controller knew it before; None if it did not: an earlier writer of the tables may have known it.
    before: Any
    after: Any
    origin: Origin | None
    told_ms: int
    number: int = -1


class Began(msgspec.Struct):
    """Something began that no row shows: a request, a take-over, a report."""

    zxid: int
    origin: Origin
    told_ms: int
    #: Why a request was refused.
    why: str | None = None
    number: int = -1


class Lost(msgspec.Struct):
    """So many facts were dropped before they could be written."""

    count: int
    told_ms: int
    number: int = -1


Fact = Change | Began | Lost


class Facts:
    """The facts that wait. Not thread-safe. Bounded: past FACTS_MAX the oldest are dropped, and an event says how
    many."""

    def __init__(self, controller_epoch: int) -> None:
        self.last_number = controller_epoch * _TERM  # the last that `take` gave
        self._origin: Origin | None = None
        self._waiting: deque[Fact] = deque()
        self._writing: list[Fact] = []
        self._lost = 0

    def follow_from(self, origin: Origin | None) -> None:
        self._origin = origin

    def began(self, origin: Origin, zxid: int, now_ms: int, *, why: str | None = None) -> None:
        self._add(Began(zxid, origin, now_ms, why))

    def changed(self, table: Table[Any], key: Key, before: Any, after: Any, now_ms: int) -> None:
        self._add(Change(table, key, before, after, self._origin, now_ms))

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def since_ms(self) -> int | None:
        """When the oldest fact that is not written was added; None if there is none."""
        oldest = self._writing or self._waiting
        return oldest[0].told_ms if oldest else None

    def take(self) -> list[Fact]:
        """Take all facts, which are being written until `written` or `failed`: all of them, or none. If only the write
        of their rows fails, they are written all the same."""
        facts = list(self._waiting)
        if self._lost:
            facts.insert(0, Lost(self._lost, facts[0].told_ms))
        for fact in facts:
            if fact.number < 0:
                self.last_number += 1
                fact.number = self.last_number
        self._writing = facts
        self._waiting.clear()
        self._lost = 0
        return facts

    def written(self) -> None:
        self._writing = []

    def failed(self) -> None:
        self._waiting.extendleft(reversed(self._writing))
        self._writing = []
        self._trim()

    def _add(self, fact: Fact) -> None:
        self._waiting.append(fact)
        self._trim()

    def _trim(self) -> None:
        while len(self._waiting) > FACTS_MAX:
            dropped = self._waiting.popleft()
            self._lost += dropped.count if isinstance(dropped, Lost) else 1
