"""Which error is told of when the time is over: the one that says most."""

from __future__ import annotations

import pytest

from spark_replication.client.finding.deadline import Deadline, FailedTries, persistently
from spark_replication.engine.client.pausing import BACK_OFF_FIRST_S
from spark_replication.errors import BrokerNotAvailable, OffsetNotAvailable, ReplicationError, RequestTimedOut


class AtEnd(Deadline):
    """So much is left of it, however often it is asked."""

    def __init__(self, remaining_s: float) -> None:
        super().__init__(60_000)
        self.left_s = remaining_s

    @property
    def remaining_s(self) -> float:
        return self.left_s


@pytest.mark.parametrize(
    ("left_s", "second", "told"),
    [
        (0.0, RequestTimedOut("late"), "first"),
        (BACK_OFF_FIRST_S, RequestTimedOut("a call that was given 10 ms ended after 9"), "first"),
        (1.0, RequestTimedOut("the call had a bound of its own"), "second"),
        (0.0, BrokerNotAvailable("late"), "first"),
        (BACK_OFF_FIRST_S, BrokerNotAvailable("it ended meanwhile"), "second"),
        (0.0, RequestTimedOut("late", maybe_written=True), "second"),
    ],
)
def test_a_try_that_the_deadline_cut_short_does_not_hide_the_one_before(
    left_s: float, second: ReplicationError, told: str
) -> None:
    first = OffsetNotAvailable("first")
    deadline = AtEnd(left_s)
    tries = FailedTries(deadline)
    assert tries.add(first) is first
    assert tries.add(second) is {"first": first, "second": second}[told]


def test_a_first_try_that_was_cut_short_is_told_of() -> None:
    error = RequestTimedOut("nobody answered")
    assert FailedTries(AtEnd(0.0)).add(error) is error


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
