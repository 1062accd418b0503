"""A thread that ends before it was to has died, of whatever let it end."""

from __future__ import annotations

import threading

import pytest

from spark_replication.process.threads import Worker, name_of_dead

WAIT_S = 20.0


def test_one_that_returns_without_being_stopped_has_died() -> None:
    worker = Worker(lambda: None, "watch")
    assert name_of_dead([worker]) == "", "it has not begun"
    worker.start()
    worker.join(WAIT_S)
    assert name_of_dead([worker]) == "watch"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_that_an_error_ends_has_died() -> None:
    def work() -> None:
        raise ZeroDivisionError

    worker = Worker(work, "watch")
    worker.start()
    worker.join(WAIT_S)
    assert worker.died


def test_one_that_was_stopped_has_not() -> None:
    over = threading.Event()

    def work() -> None:
        over.wait(WAIT_S)

    worker = Worker(work, "watch")
    worker.start()
    worker.stop()
    over.set()
    worker.join(WAIT_S)
    assert name_of_dead([worker]) == ""
