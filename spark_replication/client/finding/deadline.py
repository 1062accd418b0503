"""A deadline, and retries until it has passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from spark_replication.engine.client.pausing import back_off_s
from spark_replication.errors import ReplicationError, RequestTimedOut

Answer = TypeVar("Answer")


class Deadline:
    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self.at_s = time.monotonic() + timeout_ms / 1000

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.at_s - time.monotonic())

    @property
    def remaining_ms(self) -> int:
        return int(self.remaining_s * 1000)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at_s

    def within_ms(self, timeout_ms: float) -> Deadline:
        """The earlier of this deadline and one of `timeout_ms` from now."""
        return Deadline(min(self.remaining_s * 1000, timeout_ms))


class FailedTries:
    """The failed tries in a row, within a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.count = 0
        self._last: ReplicationError | None = None

    def add(self, error: ReplicationError) -> ReplicationError:
        """Count a failed try, and return the error to report. That is the error of the try before if the deadline cut
        this one short: it tells more."""
        self.count += 1
        if self._last is None or not self._was_cut_short(error) or not error.retriable or error.maybe_written:
            self._last = error
        return self._last

    def _was_cut_short(self, error: ReplicationError) -> bool:
        if isinstance(error, RequestTimedOut):  # a call that was given the rest of the time may end a little before
            return self.deadline.remaining_s <= self.back_off_s
        return not self.deadline.remaining_ms

    @property
    def back_off_s(self) -> float:
        return back_off_s(self.count)


def persistently(
    attempt: Callable[[], Answer],
    deadline: Deadline,
    *,
    wait: Callable[[float], object] = time.sleep,
    give_up: Callable[[ReplicationError], bool] = lambda _error: False,
) -> Answer:
    """Retry `attempt` with back-off until it succeeds. Its error is raised if it is not retriable, if `give_up` says
    so, or if no time is left for another try."""
    tries = FailedTries(deadline)
    while True:
        try:
            return attempt()
        except ReplicationError as error:
            told = tries.add(error)
            if told is not error:
                raise told from error
            if not error.retriable or give_up(error) or deadline.remaining_s <= tries.back_off_s:
                raise
        wait(tries.back_off_s)
