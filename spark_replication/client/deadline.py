"""How long something may still take, and trying again until then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from spark_replication.errors import ReplicationError

BACK_OFF_FIRST_S = 0.01
BACK_OFF_MAX_S = 0.5

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


def back_off_s(failures: int) -> float:
    """After so many failures in a row, at least one: each wait is twice as long as the one before, up to a limit."""
    return float(min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2 ** min(failures - 1, 16)))


def persistently(
    attempt: Callable[[], Answer],
    deadline: Deadline,
    *,
    wait: Callable[[float], object] = time.sleep,
    give_up: Callable[[ReplicationError], bool] = lambda _error: False,
) -> Answer:
    """Until it succeeds, or fails for good, is given up, or time is over: then with what it failed last."""
    failures = 0
    before: ReplicationError | None = None
    while True:
        try:
            return attempt()
        except ReplicationError as error:
            failures += 1
            if not deadline.remaining_ms and before is not None and error.retriable and not error.maybe_written:
                raise before from error  # the last try had no time to find out more
            if not error.retriable or give_up(error) or deadline.remaining_s <= back_off_s(failures):
                raise
            before = error
        wait(back_off_s(failures))
