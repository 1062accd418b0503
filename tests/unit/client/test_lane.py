"""A connection to a leader, whose loop the test steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pytest

from spark_replication.client.producing import lane as lanes
from spark_replication.client.producing.lane import LeaderLink
from spark_replication.core.routing import Route
from spark_replication.engine.client.lanes import AT_ONCE, Lane, Outgoing
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.messages.lane import PutAnswer
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.transport.sockets.socket_loop import SocketLoop

ROUTE = Route(
    topic="orders", partition=0, topic_id="id", leader=1, leader_epoch=0, address="127.0.0.1:1", replication_port=2
)
SCHEMA = pa.schema([("number", pa.int64())])


class Steps:
    """A loop that makes the calls when the test says so."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []

    def at(self, _due_ms: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def post(self, call: Callable[[], None]) -> None:
        self.posted.append(call)

    def run(self) -> None:
        posted, self.posted = self.posted, []
        for call in posted:
            call()


class Owner:
    def __init__(self) -> None:
        self.why: list[ReplicationError] = []

    def next_batch(self, lane: Lane) -> Outgoing | None:
        lane.asked_at_s = math.inf
        return None

    def answered(self, _lane: Lane, _answers: list[PutAnswer]) -> None: ...

    def ended(self, _lane: Lane, error: ReplicationError) -> None:
        self.why.append(error)


def link_of(loop: Steps) -> LeaderLink:
    link = LeaderLink(cast(SocketLoop, loop), ROUTE, NO_SECURITY)
    link.is_connecting = True  # the test connects nobody
    return link


def test_a_lane_that_asks_before_it_has_entered_is_not_forgotten() -> None:
    """The loop may be in the midst of a turn, which finds the question before the lane."""
    loop = Steps()
    link = link_of(loop)
    lane = Lane(link, ROUTE, SCHEMA, 0, Owner())
    link.enter(lane)
    lane.ask_at(AT_ONCE)
    assert link.next_lane() is lane
    assert not link.has(lane), "it is not asked"
    assert link.next_lane() is None
    loop.run()
    assert link.has(lane)
    assert link.next_lane() is lane


def test_a_question_is_found_without_another_wake_up() -> None:
    loop = Steps()
    link = link_of(loop)
    lanes = [Lane(link, ROUTE, SCHEMA, 0, Owner()) for _ in range(3)]
    for lane in lanes:
        link.ask_at(AT_ONCE, lane)
    assert len(loop.posted) == 1, "for all of them"
    assert [link.next_lane() for _ in range(4)] == [*lanes, None]
    link.ask_at(AT_ONCE, lanes[0])
    assert len(loop.posted) == 2, "nobody looks any more"


def test_a_lane_is_asked_when_its_time_comes() -> None:
    link = link_of(Steps())
    lane = Lane(link, ROUTE, SCHEMA, 0, Owner())
    link.ask_at(math.inf, lane)
    assert link.next_lane() is None
    assert link.next_at_ms == math.inf
    link.ask_at(0.001, lane)
    assert link.next_lane() is lane


def test_whoever_enters_too_late_learns_of_the_end() -> None:
    loop, owner = Steps(), Owner()
    link = link_of(loop)
    link.abandon("it is silent")
    loop.run()
    assert link.over
    link.enter(Lane(link, ROUTE, SCHEMA, 0, owner))
    loop.run()
    (why,) = owner.why
    assert isinstance(why, BrokerNotAvailable)


@pytest.mark.parametrize("another", [False, True], ids=["nobody_comes", "another_comes"])
def test_a_connection_ends_once_it_has_been_without_lanes_for_a_while(
    monkeypatch: pytest.MonkeyPatch, *, another: bool
) -> None:
    monkeypatch.setattr(lanes, "IDLE_S", 0.0)
    loop, owner = Steps(), Owner()
    link = link_of(loop)
    two = [Lane(link, ROUTE, SCHEMA, 0, owner) for _ in range(2)]
    for lane in two:
        link.enter(lane)
    two[0].leave()
    loop.run()
    assert not loop.timers, "one is left"
    two[1].leave()
    if another:
        link.enter(Lane(link, ROUTE, SCHEMA, 0, owner))
    loop.run()
    (idle,) = loop.timers
    idle()
    assert link.over == (not another)
    assert owner.why == [], "who has left is told nothing"


def test_lanes_that_come_and_go_do_not_end_a_connection_early() -> None:
    loop = Steps()
    link = link_of(loop)
    lane = Lane(link, ROUTE, SCHEMA, 0, Owner())
    link.enter(lane)
    lane.leave()
    loop.run()
    (idle,) = loop.timers
    idle()
    assert not link.over, "its time has not come"
