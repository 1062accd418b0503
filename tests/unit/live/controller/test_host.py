"""In which order a controller's thread takes what has come, and how it is closed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_replication.config import Settings
from spark_replication.core.controller.events import LogInfoRead
from spark_replication.errors import NotController
from spark_replication.live.controller.host import ControllerHost
from spark_replication.live.controller.seat import Seat
from spark_replication.messages.actions import ADMIN_REQUESTS
from spark_replication.messages.commands import ReplicaLogInfos
from spark_replication.messages.observing import GetMetrics
from spark_replication.messages.requests import DeleteTopic
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import NO_SECURITY
from tests.scrapes import Scrape
from tests.unit.core.stories import cluster_of


@pytest.fixture
def host(tmp_path: Path) -> ControllerHost:
    return ControllerHost(
        "nowhere",
        name="driver",
        host="127.0.0.1",
        settings=Settings(),
        security=NO_SECURITY,
        seat=tmp_path / "seat",
        mirror_path=str(tmp_path / "mirror"),
    )


def test_all_log_infos_that_have_come_are_taken_before_the_task_that_came_first(host: ControllerHost) -> None:
    done: list[str] = []
    loop = SimpleNamespace(
        take=lambda read: done.append(f"broker {read.broker}"), go_on=lambda _now_ms: done.append("go on")
    )
    host._tasks.put(lambda: done.append("task"))
    for broker in (1, 2):
        host._post_log_info(LogInfoRead(broker, ReplicaLogInfos(broker_epoch=0, partitions=())))
    nobody = cast("Any", None)
    host._work(cast("Any", loop), nobody, (), lambda: "task" in done)
    host.close()
    assert done == ["broker 1", "broker 2", "go on", "task"]


def test_what_it_is_asked_for_is_in_an_audit_log_beside_its_seat(host: ControllerHost, tmp_path: Path) -> None:
    """That of a LocalCluster, and that of a driver."""
    with NO_SECURITY.client(host.address) as client, pytest.raises(NotController):
        call(client, ADMIN_REQUESTS[DeleteTopic], DeleteTopic(topic="orders"), 10_000)
    (line,) = (tmp_path / "audit.log").read_text().splitlines()
    told = json.loads(line)
    assert (told["who"], told["host"], told["action"]) == ("anybody", "127.0.0.1", "delete_topic")
    assert told["outcome"] == NotController.code
    host.close()


def test_of_two_threads_that_close_it_the_later_waits(host: ControllerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Spark is found dead while the driver ends: a handle that is closed twice may be somebody else's."""
    leave, entered, may_go_on, inside = Seat.leave, threading.Event(), threading.Event(), [0]

    def slowly(seat: Seat) -> None:
        inside[0] += 1
        entered.set()
        may_go_on.wait(10)
        leave(seat)
        inside[0] -= 1

    assert host._seat.take() is not None
    monkeypatch.setattr(Seat, "leave", slowly)
    closing = [threading.Thread(target=host.close) for _ in range(2)]
    closing[0].start()
    assert entered.wait(10)
    closing[1].start()
    closing[1].join(0.3)
    assert (inside, closing[1].is_alive()) == ([1], True)
    may_go_on.set()
    for each in closing:
        each.join(10)
    assert (inside, [each.is_alive() for each in closing]) == ([0], [False, False])


def commands(host: ControllerHost) -> float:
    return Scrape.of({"": host.metrics(GetMetrics()).text}).value("active_controller")


def test_metrics_are_told_whether_it_commands_or_not(host: ControllerHost) -> None:
    assert commands(host) == 0
    host._active.set()
    threading.Thread(target=lambda: [host._tasks.get()() for _ in range(2)], daemon=True).start()  # type: ignore[misc]
    assert commands(host) == 0, "it has just lost its place"
    host._loop = cast("Any", SimpleNamespace(cluster=cluster_of(1, topics={}, states={})))
    assert commands(host) == 1
    host.close()
