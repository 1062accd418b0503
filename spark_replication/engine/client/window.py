"""The batches of one partition that have no answer yet, their numbers, and what each event does to them. Pure.

Brokers store batch n of a producer epoch only after n-1. They answer a batch that they have with its first place. So:

- Small sends of one kind are joined to one batch until it is full, closed, or has a number.
- A batch gets its number when it is first sent, and keeps it: sent again, to any broker, it is stored once. While it
  has a number it consists of the same sends, even those that nobody waits for: its place stands for all of them.
- If a batch was surely not written, no batch with a later number of this epoch was or will be written, since brokers
  store n only after n-1. The batch may be taken out. The rest is numbered anew from 0 in the next epoch, which also
  fences copies that still lie in a broker's buffers.
- Only a log without n-1 answers n with OUT_OF_ORDER: so n is not in it either.
- A batch that may be written keeps its number, so that there is no gap either way. Once its time is over, it stays as a
  ghost, which is sent on behalf of the batches behind it. When these are gone, too, the next epoch begins.
- One bad send fails no neighbour: a batch that was refused for its content, and surely not written, is sent again in
  halves.

An answer of a stream belongs to the first batch, since a stream sends the batches in order, from the first on. After a
refusal the stream is of no use: the caller opens another, which sends everything again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Result = TypeVar("Result")
Outcome_contra = TypeVar("Outcome_contra", contravariant=True)


class Promise(Protocol[Outcome_contra]):
    """What hears of the outcome of a send, once: a Future of threads, or what stands for one of an event loop."""

    def set_result(self, result: Outcome_contra, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
    def done(self) -> bool: ...
    def exception(self) -> BaseException | None:
        """The error that it has heard of, after `done`."""


@dataclass(slots=True, eq=False, kw_only=True)
class Send(Generic[Result]):
    """The batch of one call."""

    batch: Any
    #: Only sends of one kind are joined.
    kind: Any
    rows: int
    bytes: int
    deadline_s: float
    future: Promise[Result]
    #: Whether its deadline has passed: then nobody waits for it.
    expired: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Pending(Generic[Result]):
    """A batch as it is stored, of at least one send."""

    sends: list[Send[Result]]
    opened_s: float = 0.0
    #: Nothing joins a closed batch.
    closed: bool = False
    sequence: int | None = None
    #: Whether a copy that was sent under this number had no answer, or an answer that promised nothing.
    maybe_written: bool = False
    #: Whether its number was refused once as out of order.
    renumbered: bool = False

    @property
    def bytes(self) -> int:
        return sum(send.bytes for send in self.sends)

    @property
    def kind(self) -> Any:
        return self.sends[0].kind

    @property
    def live(self) -> list[Send[Result]]:
        return [send for send in self.sends if not send.expired]

    @property
    def expired(self) -> bool:
        """Whether the batch is a ghost: nobody waits for any of its sends."""
        return all(send.expired for send in self.sends)


class FailedSend(NamedTuple):
    """A send that has failed for good, and whether it may be written all the same."""

    send: Send[Any]
    maybe_written: bool


class Window(Generic[Result]):
    """The unanswered batches of one partition, in order.

    Invariants: the first `_sent` batches were sent on the present stream. Numbers are contiguous, and batches without a
    number come last. All batches but the last are closed. Once `epoch` has risen, streams of an earlier epoch are of no
    use.
    """

    def __init__(self, *, batches_max: int, bytes_max: int, batch_bytes: int, epoch: int = 0) -> None:
        """Sends are joined up to `batch_bytes`. A larger send is a batch of its own."""
        self.epoch = epoch
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._batch_bytes = batch_bytes
        self._bytes = 0
        self._last_bytes = 0  # the size of the last batch, which grows
        self._pending: deque[Pending[Result]] = deque()
        self._sent = 0
        self._next_sequence = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first(self) -> Pending[Result]:
        return self._pending[0]

    @property
    def unanswered(self) -> int:
        """How many batches the present stream has sent."""
        return self._sent

    @property
    def next_unsent(self) -> Pending[Result] | None:
        return self._pending[self._sent] if self._sent < len(self._pending) else None

    @property
    def first_live_deadline_s(self) -> float:
        return next((s.deadline_s for pending in self._pending for s in pending.sends if not s.expired), math.inf)

    def live(self) -> list[Send[Result]]:
        """The sends that somebody waits for."""
        return [send for pending in self._pending for send in pending.live]

    def has_room(self, send: Send[Result]) -> bool:
        """Whether a send fits. An empty window has room for any: a send may be larger than the window."""
        within = len(self._pending) < self._batches_max or self._joins(send)
        return (within and self._bytes + send.bytes <= self._bytes_max) or not self._pending

    def add(self, send: Send[Result], now_s: float) -> bool:
        """Add a send. True if it began a batch, or filled one."""
        if self._pending:
            # Deadlines never fall from first to last: everything before an expired send is answered or expired, too.
            send.deadline_s = max(send.deadline_s, self._pending[-1].sends[-1].deadline_s)
        joins = self._joins(send)
        self._bytes += send.bytes
        if joins:
            self._pending[-1].sends.append(send)
            self._last_bytes += send.bytes
        else:
            self.close_last()
            self._pending.append(Pending(sends=[send], opened_s=now_s))
            self._last_bytes = send.bytes
        if self._last_bytes >= self._batch_bytes:
            self.close_last()
        return not joins or self._pending[-1].closed

    def close_last(self) -> None:
        """Let the last batch be sent without waiting for more sends."""
        if self._pending:
            self._pending[-1].closed = True

    def _joins(self, send: Send[Result]) -> bool:
        if not self._pending or self._pending[-1].closed:
            return False
        return self._last_bytes + send.bytes <= self._batch_bytes and bool(self._pending[-1].kind == send.kind)

    def send_next(self) -> Pending[Result]:
        """Return the next unsent batch, with its number. It counts as sent from here on."""
        pending = self._pending[self._sent]
        pending.closed = True
        if pending.sequence is None:
            pending.sequence = self._next_sequence
            self._next_sequence += 1
        self._sent += 1
        return pending

    def acknowledged(self) -> Pending[Result]:
        """The first batch is written: return it. It may be a ghost, which nobody waits for."""
        self._sent -= 1
        return self._take_first()

    def interrupted(self) -> None:
        """The stream is gone: what was sent on it may be written, or may be written later."""
        for pending in self._of_stream():
            pending.maybe_written = True
        self._sent = 0

    def refused(
        self, *, retriable: bool, out_of_order: bool, forgotten: bool, of_content: bool, maybe_written: bool
    ) -> list[FailedSend]:
        """The first batch was refused, and the stream is given up. Return the sends that have failed for good."""
        for pending in self._of_stream()[1:]:
            pending.maybe_written = True
        self._sent = 0
        first = self.first
        first.maybe_written = first.maybe_written or maybe_written
        if retriable:
            return []
        if out_of_order and not first.renumbered:
            # The leader's log does not hold the batch before the first: the log was made again or truncated, or has
            # forgotten this producer. So it holds neither the first batch nor those behind it.
            first.renumbered = True
            self._begin_epoch()
            return []
        if forgotten and not first.maybe_written:
            # The leader has forgotten this producer, but the window knows that no batch that is left was ever stored.
            self._begin_epoch()
            return []
        failed = self._take_first()
        live = failed.live
        if not failed.maybe_written:
            if of_content and len(live) > 1:
                self._put_back_halves(live)
                live = []
            self._begin_epoch()
        # Otherwise the batch may be stored under its number, and those behind it keep theirs. If it is not stored, they
        # will be refused as out of order.
        return [FailedSend(send, failed.maybe_written) for send in live]

    def _put_back_halves(self, sends: list[Send[Result]]) -> None:
        middle = len(sends) // 2
        for half in (sends[middle:], sends[:middle]):
            self._pending.appendleft(Pending(sends=half, closed=True))

    def expire(self, now_s: float) -> list[FailedSend]:
        """Expire the sends whose time is over. Return them, each with whether it may be written."""
        if now_s < self.first_live_deadline_s:
            return []
        for place in range(self._sent):
            pending = self._pending[place]
            pending.maybe_written |= any(send.deadline_s <= now_s for send in pending.live)
        failed = []
        anew = False
        for pending in self._pending:
            late = [send for send in pending.live if send.deadline_s <= now_s]
            failed += [FailedSend(send, pending.maybe_written) for send in late]
            anew |= bool(late) and pending.sequence is not None and not pending.maybe_written
            for send in late:
                send.expired = True
        if anew:
            self._begin_epoch()
        else:
            self._forget_expired()
        ghosts = any(pending.expired for pending in self._pending)
        if ghosts and not any(pending.sequence is not None for pending in self._pending if not pending.expired):
            self._begin_epoch()
        return failed

    def fail_all(self) -> list[FailedSend]:
        """Fail all batches: the window is empty after that."""
        self.interrupted()
        failed = [FailedSend(send, pending.maybe_written) for pending in self._pending for send in pending.live]
        self._keep([])
        self._begin_epoch()
        return failed

    def _of_stream(self) -> list[Pending[Result]]:
        return [self._pending[place] for place in range(self._sent)]

    def _begin_epoch(self) -> None:
        """Begin the next epoch: no batch that is left was written in the one that ends. Ghosts are dropped, since they
        have served their purpose."""
        self.epoch += 1
        self._next_sequence = 0
        self._sent = 0
        for pending in self._pending:
            pending.sequence = None
            pending.maybe_written = False
        self._forget_expired()

    def _forget_expired(self) -> None:
        """Drop expired sends from every batch without a number, and batches that have no other sends."""
        for pending in self._pending:
            if pending.sequence is None:
                pending.sends = pending.live
        self._keep([pending for pending in self._pending if pending.sends])

    def _keep(self, kept: list[Pending[Result]]) -> None:
        self._pending = deque(kept)
        self._bytes = sum(pending.bytes for pending in kept)
        self._last_bytes = kept[-1].bytes if kept else 0

    def _take_first(self) -> Pending[Result]:
        first = self._pending.popleft()
        self._bytes -= first.bytes
        return first


class FixedWindow(Window[Result]):
    """A window whose numbers the user chose: the n-th send of an epoch is batch n, also when another process sends it
    again. So sends are not joined, and batches are not numbered anew. When a batch fails for good, all batches behind
    it fail, too, and the window is over."""

    def __init__(self, *, batches_max: int, bytes_max: int, epoch: int) -> None:
        super().__init__(batches_max=batches_max, bytes_max=bytes_max, batch_bytes=0, epoch=epoch)
        self.over = False

    def refused(
        self, *, retriable: bool, out_of_order: bool, forgotten: bool, of_content: bool, maybe_written: bool
    ) -> list[FailedSend]:
        if not retriable:
            self.first.maybe_written |= maybe_written
            return self._end(self._of_stream()[1:])
        return super().refused(
            retriable=True, out_of_order=False, forgotten=False, of_content=False, maybe_written=maybe_written
        )

    def expire(self, now_s: float) -> list[FailedSend]:
        return [] if now_s < self.first_live_deadline_s else self._end(self._of_stream())

    def fail_all(self) -> list[FailedSend]:
        return self._end(self._of_stream())

    def _end(self, sent: list[Pending[Result]]) -> list[FailedSend]:
        """Fail all batches, and end the window. The batches in `sent` may be written."""
        self.over = True
        self.epoch += 1  # streams of the epoch that ends are of no use
        for pending in sent:
            pending.maybe_written = True
        failed = [FailedSend(send, pending.maybe_written) for pending in self._pending for send in pending.live]
        self._sent = 0
        self._keep([])
        return failed
