"""How often a broker does what, and when it need not."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from spark_replication.config import Settings, settings_from
from spark_replication.engine.broker.duties import Duty, is_needed, period_ms, ticks_per_look


class Given(NamedTuple):
    connected: bool
    has_controller: bool
    hides: bool


@pytest.mark.parametrize(
    ("lag_ms", "tick_ms", "ticks"), [(10_000, 1_000, 2), (4_000, 1_000, 1), (400, 100, 1), (1, 1, 1)]
)
def test_who_lags_is_looked_for_four_times_within_the_time_that_it_may(lag_ms: int, tick_ms: int, ticks: int) -> None:
    settings = settings_from({"replica.lag.time.ms": lag_ms})
    assert (period_ms(Duty.TICK, settings), ticks_per_look(settings)) == (tick_ms, ticks)


@pytest.mark.parametrize(("delay_ms", "every_ms"), [(1, 1_000), (3_000, 3_000), (3_600_000, 10_000)])
def test_quarantine_is_looked_through_as_often_as_its_delay_needs(delay_ms: int, every_ms: int) -> None:
    assert period_ms(Duty.CLEAN_UP, settings_from({"log.delete.delay.ms": delay_ms})) == every_ms


def test_every_duty_has_a_period() -> None:
    assert all(period_ms(duty, Settings()) > 0 for duty in Duty)


@pytest.mark.parametrize(("connected", "has_controller", "hides"), list(itertools.product((True, False), repeat=3)))
def test_zookeeper_is_asked_only_what_nobody_tells_and_only_if_it_would_answer(
    connected: bool, has_controller: bool, hides: bool
) -> None:
    around = Given(connected=connected, has_controller=has_controller, hides=hides)
    needed = {duty for duty in Duty if is_needed(duty, around)}
    always = set(Duty) - {Duty.READ_HIDDEN, Duty.READ_BROKERS}
    expected = always | ({Duty.READ_HIDDEN} if connected and hides else set())
    assert needed == expected | ({Duty.READ_BROKERS} if connected and not has_controller else set())


class Unasked:
    """What a tick of every 100 ms is not to ask: it may have to be decoded."""

    connected = False
    hides = False

    @property
    def has_controller(self) -> bool:
        raise AssertionError("it does not matter")


def test_nothing_is_asked_that_does_not_matter() -> None:
    assert {duty for duty in Duty if is_needed(duty, Unasked())} == set(Duty) - {Duty.READ_HIDDEN, Duty.READ_BROKERS}
