"""A driver that meets an error which nobody expected, on whatever thread: it says so, and commands again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.errors import ReplicationError
from spark_replication.live.controller.host import Driver
from spark_replication.messages.requests import Configure, RequestAnswer
from spark_replication.transport.actions import call
from spark_replication.transport.security import NO_SECURITY
from spark_replication.zk.controller import commit_pipeline, request_watch
from spark_replication.zk.controller import watch as controller_watch
from tests.live.zk.conftest import Cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

Hears = Callable[[int, str], None]


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[Hears], Driver]]:
    started: list[Driver] = []

    def start(took_over: Hears) -> Driver:
        driver = Driver(
            cluster.address,
            name="driver",
            host="127.0.0.1",
            settings=settings_from({"zk.chroot": cluster.chroot}),
            security=NO_SECURITY,
            took_over=took_over,
            seat=tmp_path / "seat",
        )
        started.append(driver)
        driver.start()
        return driver

    yield start
    for each in started:
        each.close()


def test_an_error_that_nobody_expects_ends_the_candidacy_alone(
    driver: Callable[[Hears], Driver], caplog: pytest.LogCaptureFixture
) -> None:
    epochs, again = [], threading.Event()

    def took_over(epoch: int, _address: str) -> None:
        epochs.append(epoch)
        if len(epochs) == 1:
            raise ZeroDivisionError("a bug")
        again.set()

    with caplog.at_level(logging.ERROR):
        started = driver(took_over)
        assert again.wait(60)
    assert started.wait_active() == 2
    assert epochs == [1, 2]
    assert "an error that nobody expected" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("part", "method", "thread"),
    [
        (commit_pipeline.CommitPipeline, "_store", "controller-commits"),
        (controller_watch.ControllerWatch, "_read_changes", "controller-watch"),
        (request_watch.RequestWatch, "_read", "request-watch"),
    ],
)
def test_a_thread_that_dies_takes_the_candidacy_along(
    driver: Callable[[Hears], Driver],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    part: type,
    method: str,
    thread: str,
) -> None:
    works, broken, again = getattr(part, method), threading.Event(), threading.Event()

    def breaks_once(*given: object) -> object:
        if broken.is_set():
            return works(*given)
        broken.set()
        raise ZeroDivisionError("a bug")

    def took_over(epoch: int, _address: str) -> None:
        if epoch == 2:
            again.set()

    monkeypatch.setattr(part, method, breaks_once)
    with caplog.at_level(logging.ERROR):
        started = driver(took_over)
        # Something to store, for who would not look otherwise: it may be refused, or lost with the candidacy, which may
        # be over before anything is asked.
        with suppress(ReplicationError), NO_SECURITY.client(started.address) as client:
            started.wait_active()
            call(client, "configure", Configure(settings={"min.insync.replicas": 2}), RequestAnswer, 5_000)
        assert again.wait(60)
    assert f"its thread {thread} died" in caplog.text


def test_a_question_that_fails_is_its_askers_error_alone(driver: Callable[[Hears], Driver]) -> None:
    started = driver(lambda _epoch, _address: None)
    epoch = started.wait_active()

    def fails(_cluster: ClusterState) -> int:
        raise ZeroDivisionError("of the question")

    with pytest.raises(ZeroDivisionError, match="of the question"):
        started.ask(fails)
    assert started.wait_active() == epoch == 1
