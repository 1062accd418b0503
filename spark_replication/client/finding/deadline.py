"""A deadline, and retries until it has passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from spark_replication.engine.client.pausing import FailedTries
from spark_replication.errors import ReplicationError

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


def persistently(
    attempt: Callable[[], Answer],
    deadline: Deadline,
    *,
    wait: Callable[[float], object] = time.sleep,
    give_up: Callable[[ReplicationError], bool] = lambda _error: False,
) -> Answer:
    """Retry `attempt` with back-off until it succeeds. Its error is raised if it is not retriable, if `give_up` says
    so, or if no time is left for another try."""
    tries = FailedTries()
    while True:
        try:
            return attempt()
        except ReplicationError as error:
            told = tries.add(error, deadline.remaining_s)
            if told is not error:
                raise told from error
            if not error.retriable or give_up(error) or deadline.remaining_s <= tries.back_off_s:
                raise
        wait(tries.back_off_s)
