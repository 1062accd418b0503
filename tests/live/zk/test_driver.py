"""A driver that meets an error which nobody expected, on whatever thread: it says so, and commands again."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from spark_replication.config import settings_from
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.errors import InvalidSchema, ReplicationError
from spark_replication.live.controller import host
from spark_replication.live.controller.host import ControllerHooks, ControllerHost
from spark_replication.messages.actions import ADMIN_REQUESTS
from spark_replication.messages.requests import Configure, CreateTopic
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.zk.controller import request_watch, watch
from tests.live.zk.conftest import Cluster
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

Hears = Callable[[str, int, str], None]


class StartDriver(Protocol):
    def __call__(
        self,
        took_over: Hears = lambda _cluster_id, _epoch, _address: None,
        *,
        name: str = "driver",
        stood_down: Callable[[], None] = lambda: None,
        dead_thread: Callable[[], str] = lambda: "",
    ) -> ControllerHost: ...


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Iterator[StartDriver]:
    """Each with a seat of its own."""
    started: list[ControllerHost] = []

    def start(
        took_over: Hears = lambda _cluster_id, _epoch, _address: None,
        *,
        name: str = "driver",
        stood_down: Callable[[], None] = lambda: None,
        dead_thread: Callable[[], str] = lambda: "",
    ) -> ControllerHost:
        driver = ControllerHost(
            cluster.address,
            name=name,
            host="127.0.0.1",
            settings=settings_from({"zk.chroot": cluster.chroot}),
            security=NO_SECURITY,
            hooks=ControllerHooks(took_over, stood_down, dead_thread),
            seat=tmp_path / name,
            mirror_path=str(tmp_path / "mirror"),
        )
        started.append(driver)
        driver.start()
        return driver

    yield start
    for each in started:
        each.close()


def test_nobody_asks_for_groups_once_a_candidacy_is_over(driver: StartDriver) -> None:
    before = set(threading.enumerate())

    def asking() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "mirror-groups" and each not in before]

    started = driver()
    started.wait_active()
    assert asking() == ["mirror-groups"]
    started.close()
    eventually(lambda: asking() == [], "its thread ends")


def test_an_error_that_nobody_expects_ends_the_candidacy_alone(
    driver: StartDriver, caplog: pytest.LogCaptureFixture
) -> None:
    epochs, again = [], threading.Event()

    def took_over(_cluster_id: str, epoch: int, _address: str) -> None:
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
        (watch.ControllerWatch, "_look", "controller-watch"),
        (request_watch.RequestWatch, "_look", "request-watch"),
    ],
)
def test_a_thread_that_dies_takes_the_candidacy_along(
    driver: StartDriver,
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

    def took_over(_cluster_id: str, epoch: int, _address: str) -> None:
        if epoch == 2:
            again.set()

    monkeypatch.setattr(part, method, breaks_once)
    with caplog.at_level(logging.ERROR):
        started = driver(took_over)
        # Something to store, for who would not look otherwise: it may be refused, or lost with the candidacy, which may
        # be over before anything is asked.
        with suppress(ReplicationError), NO_SECURITY.client(started.address) as client:
            started.wait_active()
            call(client, ADMIN_REQUESTS[Configure], Configure(settings={"min.insync.replicas": 2}), 5_000)
        assert again.wait(60)
    assert f"its thread {thread} died" in caplog.text


def test_a_topic_that_fits_no_znode_is_refused_and_the_controller_stays(driver: StartDriver) -> None:
    started = driver(lambda _cluster_id, _epoch, _address: None)
    epoch = started.wait_active()
    with NO_SECURITY.client(started.address) as client:
        for schema in ("x" * 3_000_000, "aGVsbG8="):
            with pytest.raises(InvalidSchema):
                call(client, ADMIN_REQUESTS[CreateTopic], CreateTopic(name="big", schema=schema), 10_000)
    assert started.wait_active() == epoch == 1


def test_a_question_that_fails_is_its_askers_error_alone(driver: StartDriver) -> None:
    started = driver(lambda _cluster_id, _epoch, _address: None)
    epoch = started.wait_active()

    def fails(_cluster: ClusterState) -> int:
        raise ZeroDivisionError("of the question")

    with pytest.raises(ZeroDivisionError, match="of the question"):
        started.ask(fails)
    assert started.wait_active() == epoch == 1


def test_it_resigns_before_its_guardians_are_dismissed(driver: StartDriver) -> None:
    """They may take long to leave, and whoever commands next needs no word of theirs."""
    standing_down, dismissed = threading.Event(), threading.Event()

    def stood_down() -> None:
        standing_down.set()
        dismissed.wait()

    first = driver(name="first", stood_down=stood_down)
    first.wait_active()
    second = driver(name="second")
    closing = threading.Thread(target=first.close)
    closing.start()
    try:
        assert standing_down.wait(30)
        assert second.wait_active() == 2
        assert closing.is_alive()
    finally:
        dismissed.set()
        closing.join(30)
    assert not closing.is_alive()


def test_a_close_has_an_end(driver: StartDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CLOSE_TIMEOUT_S", 0.2)
    dismissed = threading.Event()

    def hangs() -> None:
        dismissed.wait()

    started = driver(stood_down=hangs)
    started.wait_active()
    began = time.monotonic()
    started.close()
    assert time.monotonic() - began < 20
    dismissed.set()


def test_who_steps_aside_lets_another_go_first_and_commands_again_where_there_is_none(
    driver: StartDriver, caplog: pytest.LogCaptureFixture
) -> None:
    epochs: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    first = driver(lambda _cluster_id, epoch, _address: epochs.put(("first", epoch)), name="first")
    assert epochs.get(timeout=30) == ("first", 1)
    first.step_aside()
    assert epochs.get(timeout=30) == ("first", 2), "nobody stands by"
    with caplog.at_level(logging.WARNING):
        driver(lambda _cluster_id, epoch, _address: epochs.put(("second", epoch)), name="second")
        eventually(lambda: "standing by" in caplog.text, "the second stands by")
    first.step_aside()
    assert epochs.get(timeout=30) == ("second", 3)


def test_a_dead_thread_of_its_hooks_takes_the_candidacy_along(
    driver: StartDriver, caplog: pytest.LogCaptureFixture
) -> None:
    epochs: queue.SimpleQueue[int] = queue.SimpleQueue()
    dead = iter(["fleet"])
    with caplog.at_level(logging.ERROR):
        driver(lambda _cluster_id, epoch, _address: epochs.put(epoch), dead_thread=lambda: next(dead, ""))
        assert [epochs.get(timeout=30) for _ in range(2)] == [1, 2]
    assert "its thread fleet died" in caplog.text
