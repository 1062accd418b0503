"""Whom a guardian asks, signals, or leaves alone, as it stops its broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_replication.engine.guarding.broker_stop import BrokerStop, StopDoes
from spark_replication.engine.guarding.leases import Lease
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    CorruptState,
    ReplicationError,
    StaleLease,
)

MINE = Lease(3, 7)
NOBODY = BrokerNotAvailable("nobody answers")


def stop_of(*, is_seen: bool = True) -> BrokerStop:
    return BrokerStop(1, MINE, is_seen=is_seen, timeout_s=20.0, flush_s=60.0, hand_over_s=5.0)


def told(*events: Callable[[BrokerStop], None], is_seen: bool = True) -> list[StopDoes]:
    """The steps, in their order."""
    stop = stop_of(is_seen=is_seen)
    steps = [stop.doing]
    for event in events:
        event(stop)
        steps.append(stop.doing)
    return steps


def failed(error: ReplicationError) -> Callable[[BrokerStop], None]:
    return lambda stop: stop.failed(error)


def holds(lease: Lease) -> Callable[[BrokerStop], None]:
    return lambda stop: stop.found_holder(lease)


def waited(*, ended: bool) -> Callable[[BrokerStop], None]:
    return lambda stop: stop.waited(ended=ended)


ASK, TAKE, HOLDER, WAIT, END = StopDoes.ASK, StopDoes.TAKE, StopDoes.HOLDER, StopDoes.WAIT, StopDoes.END
TERMINATE, KILL = StopDoes.TERMINATE, StopDoes.KILL


def test_one_that_has_heard_has_the_time_to_flush_too() -> None:
    stop = stop_of()
    assert stop.doing is ASK
    stop.asked()
    assert (stop.doing, stop.wait_s) == (WAIT, 80.0)
    stop.waited(ended=True)
    assert stop.doing is END


def test_one_that_does_not_end_is_killed_and_waited_for_once_more() -> None:
    stop = stop_of()
    stop.asked()
    stop.waited(ended=False)
    assert stop.doing is HOLDER
    stop.found_holder(MINE)
    assert stop.doing is KILL
    stop.signalled()
    assert (stop.doing, stop.wait_s) == (WAIT, 80.0)
    stop.waited(ended=False)
    assert stop.doing is END


def test_one_that_answers_nobody_gets_a_signal_and_the_time_to_hand_over() -> None:
    stop = stop_of()
    stop.failed(NOBODY)
    assert stop.doing is HOLDER
    stop.found_holder(Lease(3, 6))
    assert stop.doing is TERMINATE
    stop.signalled()
    assert (stop.doing, stop.wait_s) == (WAIT, 25.0)
    stop.waited(ended=False)
    stop.found_holder(MINE)
    assert stop.doing is KILL


@pytest.mark.parametrize("holder", [holds(Lease(3, 8)), holds(Lease(4, 0)), failed(CorruptState("damaged"))])
def test_one_that_was_taken_over_or_of_which_nobody_can_say_gets_no_signal(
    holder: Callable[[BrokerStop], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert told(failed(NOBODY), holder) == [ASK, HOLDER, END]
    assert told(BrokerStop.asked, waited(ended=False), holder) == [ASK, WAIT, HOLDER, END]
    assert "broker 1 is left alone" in caplog.text


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_later_lease_ends_the_stop(*, is_seen: bool) -> None:
    assert told(failed(StaleLease("taken over")), is_seen=is_seen)[1:] == [END]


def test_one_that_is_not_seen_is_asked_once_it_has_said_who_it_is() -> None:
    assert told(lambda stop: stop.taken(1), BrokerStop.asked, waited(ended=True), is_seen=False) == [
        *(TAKE, ASK, WAIT, END)
    ]


@pytest.mark.parametrize(
    "event", [lambda stop: stop.taken(2), failed(NOBODY), failed(AuthenticationFailed("of another cluster"))]
)
def test_whoever_else_answers_there_is_not_stopped_for_it(
    event: Callable[[BrokerStop], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert told(event, is_seen=False) == [TAKE, END]
    assert "cannot be asked to stop" in caplog.text
    assert "end it by hand" in caplog.text


def test_whoever_has_its_pid_here_gets_no_signal() -> None:
    assert told(lambda stop: stop.taken(1), failed(NOBODY), is_seen=False) == [TAKE, ASK, END]
    assert told(lambda stop: stop.taken(1), BrokerStop.asked, waited(ended=False), is_seen=False) == [
        *(TAKE, ASK, WAIT, END)
    ]
