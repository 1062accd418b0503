"""Who waits for leaders: all of them wait for one answer, and each is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing import leaders
from spark_replication.client.producing.leaders import Leaders
from spark_replication.core.routing import Route
from spark_replication.errors import BrokerNotAvailable, LeaderNotAvailable, ReplicationError
from spark_replication.model import TopicPartition
from tests.waiting import eventually

TIMEOUT_S = 10.0


def route(number: int) -> Route:
    return Route(
        topic="orders",
        partition=number,
        topic_id="id",
        leader=1,
        leader_epoch=0,
        address="127.0.0.1:1",
        replication_port=2,
    )


class AskedRoutes:
    """Routes that say what they were asked, and answer when they may."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.within_ms: list[float] = []
        self.may_answer = threading.Semaphore(1_000)
        self.begun = threading.Semaphore(0)
        self.error: ReplicationError | None = None
        self.leaderless: set[int] = set()

    def renew(self, partitions: list[TopicPartition], deadline: Deadline) -> None:
        self.asked.append([each.partition for each in partitions])
        self.within_ms.append(deadline.timeout_ms)
        self.begun.release()
        assert self.may_answer.acquire(timeout=TIMEOUT_S)
        if self.error is not None:
            raise self.error

    def latest(self, partition: TopicPartition) -> Route:
        if partition.partition in self.leaderless:
            raise LeaderNotAvailable("nobody leads it")
        return route(partition.partition)


class Waits:
    def __init__(self, number: int) -> None:
        self.partition = TopicPartition("orders", number)
        self.told: list[Route | ReplicationError] = []
        self.is_told = threading.Semaphore(0)

    def found(self, route: Route | ReplicationError) -> None:
        self.told.append(route)
        self.is_told.release()

    def hears(self) -> Route | ReplicationError:
        assert self.is_told.acquire(timeout=TIMEOUT_S)
        return self.told[-1]


def soon() -> float:
    return time.monotonic() + TIMEOUT_S


@pytest.fixture
def routes() -> AskedRoutes:
    return AskedRoutes()


@pytest.fixture
def asking(routes: AskedRoutes) -> Iterator[Leaders]:
    found = Leaders(cast(Routes, routes))
    yield found
    found.close(TIMEOUT_S)


def test_whoever_begins_to_wait_while_it_asks_is_told_with_all_others_after_the_next_answer(
    routes: AskedRoutes, asking: Leaders
) -> None:
    routes.may_answer = threading.Semaphore(0)
    first, *later = [Waits(number) for number in range(4)]
    asking.ask(first, soon())
    assert routes.begun.acquire(timeout=TIMEOUT_S)
    for each in later:
        asking.ask(each, soon())
    routes.may_answer.release(2)
    assert [each.hears() for each in (first, *later)] == [route(number) for number in range(4)]
    assert routes.asked == [[0], [1, 2, 3]]


def test_one_without_a_leader_keeps_no_other_waiting(routes: AskedRoutes, asking: Leaders) -> None:
    routes.leaderless = {0}
    without, other = Waits(0), Waits(1)
    asking.ask(without, soon())
    asking.ask(other, soon())
    assert isinstance(without.hears(), LeaderNotAvailable)
    assert other.hears() == route(1)


def test_if_nobody_answers_all_that_wait_are_told_so_and_may_ask_again(routes: AskedRoutes, asking: Leaders) -> None:
    routes.error = BrokerNotAvailable("no broker answered")
    waits = [Waits(number) for number in range(2)]
    for each in waits:
        asking.ask(each, soon())
    assert [each.hears() for each in waits] == [routes.error] * 2
    routes.error = None
    asking.ask(waits[0], soon())
    assert waits[0].hears() == route(0)


@pytest.mark.parametrize(
    ("left_s", "least_ms", "most_ms"), [(1_000, 800_000, 900_000), (-5, leaders.ASK_MS_MIN, leaders.ASK_MS_MIN)]
)
def test_the_reason_is_known_before_a_batch_is_out_of_time(
    routes: AskedRoutes, asking: Leaders, left_s: float, least_ms: float, most_ms: float
) -> None:
    waits = Waits(0)
    asking.ask(waits, time.monotonic() + left_s)
    waits.hears()
    assert least_ms <= routes.within_ms[0] <= most_ms


def test_without_a_thread_whoever_asks_is_told_so_and_asks_again(
    asking: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    waits = Waits(0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(BrokerNotAvailable, match="no thread to ask for a leader: can't start new thread"):
            asking.ask(waits, soon())
    asking.ask(waits, soon())
    assert waits.hears() == route(0)
    assert len(waits.told) == 1


def test_it_rests_after_a_round_unless_it_is_to_end(
    routes: AskedRoutes, asking: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "REST", 1e9)
    monkeypatch.setattr(leaders, "REST_S_MAX", 10 * TIMEOUT_S)
    first, later = Waits(0), Waits(1)
    asking.ask(first, soon())
    first.hears()
    asking.ask(later, soon())
    assert not later.is_told.acquire(timeout=0.1)
    asking.close(TIMEOUT_S)
    assert asking._asking is not None
    assert not asking._asking.is_alive()
    assert len(routes.asked) == 1


def test_nobody_is_told_after_the_end(routes: AskedRoutes, asking: Leaders) -> None:
    routes.may_answer = threading.Semaphore(0)
    first, later = Waits(0), Waits(1)
    asking.ask(first, soon())
    assert routes.begun.acquire(timeout=TIMEOUT_S)
    asking.ask(later, soon())
    closing = threading.Thread(target=lambda: asking.close(TIMEOUT_S))
    closing.start()
    eventually(lambda: asking._closed, "it closes")
    routes.may_answer.release(2)
    closing.join(TIMEOUT_S)
    assert not later.told
    asking.ask(later, soon())
    assert asking._asking is not None
    assert not asking._asking.is_alive()
