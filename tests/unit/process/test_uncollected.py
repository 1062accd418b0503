"""Nothing is collected for a while, and then as before, whoever else does the same."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from spark_replication.process.memory import uncollected


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_meanwhile_and_on_again_whatever_happens() -> None:
    seen = []
    with suppress(ZeroDivisionError), uncollected():
        seen.append(gc.isenabled())
        raise ZeroDivisionError
    assert [*seen, gc.isenabled()] == [False, True]


def test_one_inside_another_leaves_it_off() -> None:
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_process_that_collects_nothing_goes_on_so() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
