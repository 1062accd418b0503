"""Which error is told of when the time is over: the one that says most."""

from __future__ import annotations

import pytest

from spark_replication.engine.client.pausing import BACK_OFF_FIRST_S, FailedTries
from spark_replication.errors import BrokerNotAvailable, OffsetNotAvailable, ReplicationError, RequestTimedOut


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
    tries = FailedTries()
    assert tries.add(first, left_s) is first
    assert tries.add(second, left_s) is {"first": first, "second": second}[told]


def test_a_first_try_that_was_cut_short_is_told_of() -> None:
    error = RequestTimedOut("nobody answered")
    assert FailedTries().add(error, 0.0) is error
