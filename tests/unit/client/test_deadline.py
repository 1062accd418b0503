"""Which error is told of when the time is over: the one that says most."""

from __future__ import annotations

import pytest

from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.engine.client.pausing import BACK_OFF_FIRST_S
from spark_replication.errors import OffsetNotAvailable, RequestTimedOut


class AtEnd(Deadline):
    """So much is left of it, however often it is asked."""

    def __init__(self, remaining_s: float) -> None:
        super().__init__(60_000)
        self.left_s = remaining_s

    @property
    def remaining_s(self) -> float:
        return self.left_s


def test_a_last_call_of_a_millisecond_does_not_hide_why_the_calls_before_it_failed() -> None:
    deadline, waits = AtEnd(1.0), []
    errors = iter([OffsetNotAvailable("why"), RequestTimedOut("late")])

    def attempt() -> None:
        raise next(errors)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        deadline.left_s = 0.0015

    with pytest.raises(OffsetNotAvailable, match="why"):
        persistently(attempt, deadline, wait=wait)
    assert waits == [BACK_OFF_FIRST_S]
