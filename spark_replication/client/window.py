"""The batches of one partition that have no answer yet, their numbers, and what each event makes of them. Pure.

Brokers store batch n of a producer epoch only after n-1, and answer one that they have with its first place. So:

- A batch gets its number when it is first sent, and keeps it: sent again, to whomever, it is stored once.
- If a batch was surely not written, nothing numbered after it in this epoch was or will be. It may be taken out: the
  rest is numbered anew from 0 in the next epoch, which also fences copies that still lie in some broker's buffers.
- A batch that may be written leaves no gap either way: its number is kept for it. Once its time is over, it stays as a
  ghost that is sent on behalf of those behind it; when these are gone too, the next epoch begins.

An answer of a stream belongs to the first batch, since a stream sends them in order, starting with the first. After an
answer that is no acknowledgement the stream is of no use: the caller opens another, which sends everything again.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


@dataclass(slots=True, eq=False, kw_only=True)
class Pending(Generic[Result]):
    """maybe_written: some copy that was sent under this number had no answer, or one that promised nothing.
    expired: nobody waits for it any more (a ghost). renumbered: its number was out of order once."""

    batch: Any
    bytes: int
    deadline_s: float
    future: Future[Result]
    sequence: int | None = None
    maybe_written: bool = False
    expired: bool = False
    renumbered: bool = False


class Window(Generic[Result]):
    """Invariants: the first `_sent` were sent on the present stream; numbers are contiguous, those without come last.
    When `epoch` has moved, streams of the one before are of no use."""

    def __init__(self, *, batches_max: int, bytes_max: int) -> None:
        self.epoch = 0
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pending: deque[Pending[Result]] = deque()
        self._sent = 0
        self._next_sequence = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first(self) -> Pending[Result]:
        return self._pending[0]

    @property
    def awaits_answer(self) -> bool:
        return self._sent > 0

    @property
    def next_unsent(self) -> Pending[Result] | None:
        return self._pending[self._sent] if self._sent < len(self._pending) else None

    @property
    def first_live_deadline_s(self) -> float:
        return next((pending.deadline_s for pending in self._pending if not pending.expired), math.inf)

    def live(self) -> list[Pending[Result]]:
        """Those that somebody waits for."""
        return [pending for pending in self._pending if not pending.expired]

    def has_room(self, bytes_: int) -> bool:
        """One batch always has: it may be larger than the window."""
        within = len(self._pending) < self._batches_max and self._bytes + bytes_ <= self._bytes_max
        return within or not self._pending

    def add(self, pending: Pending[Result]) -> None:
        if self._pending:
            # Deadlines never fall from first to last: whatever is before an expired one is answered or expired, too.
            pending.deadline_s = max(pending.deadline_s, self._pending[-1].deadline_s)
        self._pending.append(pending)
        self._bytes += pending.bytes

    def send_next(self) -> Pending[Result]:
        """The next unsent one, with its number: it counts as sent from now on."""
        pending = self._pending[self._sent]
        if pending.sequence is None:
            pending.sequence = self._next_sequence
            self._next_sequence += 1
        self._sent += 1
        return pending

    def acknowledged(self) -> Pending[Result]:
        """The first one is written. (A ghost, too: nobody waits for that.)"""
        self._sent -= 1
        return self._take_first()

    def interrupted(self) -> None:
        """The stream is gone: what was sent on it may be written, or may yet be."""
        for pending in self._of_stream():
            pending.maybe_written = True
        self._sent = 0

    def refused(self, *, retriable: bool, out_of_order: bool, maybe_written: bool) -> Pending[Result] | None:
        """The first one was not acknowledged; the stream is given up. Returned: the batch that has failed for good."""
        for pending in self._of_stream()[1:]:
            pending.maybe_written = True
        self._sent = 0
        first = self.first
        first.maybe_written = first.maybe_written or maybe_written
        if retriable:
            return None
        if out_of_order and not first.renumbered:
            # The leader's log does not hold the batch before it: it was made again, truncated, or has forgotten us.
            # Then it holds neither this one nor those behind it.
            first.renumbered = True
            self._begin_epoch()
            return None
        failed = self._take_first()
        if not failed.maybe_written:
            self._begin_epoch()
        # Else it may be there under its number, and those behind it keep theirs. If it is not, they are out of order.
        return None if failed.expired else failed

    def expire(self, now_s: float) -> list[Pending[Result]]:
        """Those whose time is over. maybe_written of each says whether it may be there."""
        for pending in self._of_stream():
            if pending.deadline_s <= now_s:
                pending.maybe_written = True
        failed = [pending for pending in self.live() if pending.deadline_s <= now_s]
        if not failed:
            return []
        for pending in failed:
            pending.expired = True
        certain = [pending for pending in failed if not pending.maybe_written]
        if any(pending.sequence is not None for pending in certain):
            self._begin_epoch()
        else:
            self._keep([pending for pending in self._pending if pending not in certain])
        ghosts = any(pending.expired for pending in self._pending)
        if ghosts and not any(pending.sequence is not None for pending in self.live()):
            self._begin_epoch()
        return failed

    def fail_all(self) -> list[Pending[Result]]:
        """No batch has a chance: the window is empty after that."""
        self.interrupted()
        failed = self.live()
        self._keep([])
        self._begin_epoch()
        return failed

    def _of_stream(self) -> list[Pending[Result]]:
        return [self._pending[place] for place in range(self._sent)]

    def _begin_epoch(self) -> None:
        """None of those that are left was written in the epoch that ends. Ghosts have served their purpose."""
        self.epoch += 1
        self._next_sequence = 0
        self._sent = 0
        self._keep([pending for pending in self._pending if not pending.expired])
        for pending in self._pending:
            pending.sequence = None
            pending.maybe_written = False

    def _keep(self, kept: list[Pending[Result]]) -> None:
        self._pending = deque(kept)
        self._bytes = sum(pending.bytes for pending in kept)

    def _take_first(self) -> Pending[Result]:
        first = self._pending.popleft()
        self._bytes -= first.bytes
        return first
