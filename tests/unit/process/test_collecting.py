"""What has lived through a look of the collector is left alone for an hour, and no longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from spark_replication.process.memory import EVERYTHING_S, Collecting


class Cycle:
    def __init__(self) -> None:
        self.itself = self


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    collecting = Collecting(clock)
    collecting.start()
    yield clock
    collecting.stop()


def a_cycle() -> Callable[[], object]:
    """Garbage from birth. Says whether it is still there."""
    return weakref.ref(Cycle())


def test_what_is_new_garbage_goes_and_what_is_kept_is_not_looked_at_again(clock: Clock) -> None:
    kept, garbage = Cycle(), a_cycle()
    gc.collect()
    assert garbage() is None
    assert gc.get_freeze_count() > 0
    assert not any(each is kept for each in gc.get_objects())
    before = gc.get_freeze_count()
    for _ in range(3):
        later = Cycle()
        gc.collect()
        assert not any(each is later for each in gc.get_objects())
    assert gc.get_freeze_count() >= before


def test_a_look_at_what_is_young_passes_nothing(clock: Clock) -> None:
    gc.collect()
    kept, before = Cycle(), gc.get_freeze_count()
    gc.collect(1)
    assert any(each is kept for each in gc.get_objects())
    assert gc.get_freeze_count() <= before


@pytest.mark.slow
def test_what_became_garbage_later_goes_within_the_hour(clock: Clock) -> None:
    kept = Cycle()
    became = weakref.ref(kept)
    gc.collect()
    del kept
    clock.now_s += EVERYTHING_S - 1
    gc.collect()
    assert became() is not None
    clock.now_s += 1
    gc.collect()
    assert became() is None
    # The next look at everything is another hour later.
    kept = Cycle()
    became = weakref.ref(kept)
    gc.collect()
    del kept
    gc.collect()
    assert became() is not None


def test_once_stopped_everything_is_looked_at() -> None:
    collecting = Collecting()
    collecting.start()
    gc.collect()
    collecting.stop()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() == 0


def test_what_was_there_before_is_passed_at_once() -> None:
    kept, garbage = Cycle(), a_cycle()
    collecting = Collecting()
    collecting.start()
    try:
        assert garbage() is None
        assert not any(each is kept for each in gc.get_objects())
    finally:
        collecting.stop()
