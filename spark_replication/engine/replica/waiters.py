"""Callbacks that wait: appends for an offset to be committed, or to be on the disk; consumers for progress."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable

import msgspec

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.errors import ReplicationError
from spark_replication.model import Offset

Acknowledge = Callable[[OffsetSpan | ReplicationError], None]


class _Waiter(msgspec.Struct, frozen=True):
    end: Offset
    place: OffsetSpan
    acknowledge: Acknowledge


class Waiters:
    """Appends, in the order of their ends: a batch that is sent again waits for its own end, not for later batches."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, place: OffsetSpan, acknowledge: Acknowledge) -> None:
        waiter = _Waiter(place.last_offset + 1, place, acknowledge)
        if not self._waiting or self._waiting[-1].end <= waiter.end:
            self._waiting.append(waiter)
        else:
            bisect.insort(self._waiting, waiter, key=lambda each: each.end)

    def reached(self, end: Offset) -> None:
        while self._waiting and self._waiting[0].end <= end:
            waiter = self._waiting.popleft()
            waiter.acknowledge(waiter.place)

    def refuse(self, error: ReplicationError) -> None:
        """Refuse all of them."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.acknowledge(error)


class Progress:
    def __init__(self) -> None:
        self._waiting: dict[Callable[[], None], None] = {}  # in order of arrival

    def await_next(self, call: Callable[[], None]) -> None:
        """Call it once, at the next progress."""
        self._waiting[call] = None

    def leave(self, call: Callable[[], None]) -> None:
        """End its wait. No error if it was called already."""
        self._waiting.pop(call, None)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call()
