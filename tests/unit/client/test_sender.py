"""What a sender's connections tell it, in the orders that threads may tell it in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import cast

import msgspec
import pyarrow as pa
import pytest

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.lane import LeaderLink, LeaderLinks
from spark_replication.client.producing.leaders import Leaders
from spark_replication.client.producing.sender import Sender
from spark_replication.core.routing import Route
from spark_replication.engine.client import sending
from spark_replication.engine.client.lanes import Lane
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack, SenderSettings
from spark_replication.errors import (
    ClientClosed,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    Overloaded,
    ReplicationError,
    RequestTimedOut,
)
from spark_replication.messages.lane import PutAnswer
from spark_replication.model import TopicPartition
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.transport.sockets.socket_loop import SocketLoop
from tests.waiting import eventually

TIMEOUT_S = 10.0
BATCH = pa.record_batch({"number": pa.array([1, 2])})
ROUTE = Route(
    topic="orders", partition=0, topic_id="id", leader=1, leader_epoch=0, address="127.0.0.1:1", replication_port=2
)
SETTINGS = SenderSettings(
    acks="all",
    deadline_ms=60_000,
    in_flight_batches_max=9,
    in_flight_bytes_max=1 << 20,
    linger_ms=0,
    batch_bytes=0,
)


class OneLink:
    """Gives lanes of a connection that the test steps. The loop is real, and connects nowhere."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.taken = threading.Semaphore(0)
        self.looks: list[float] = []  # the times for which a look was asked
        self.loop = SocketLoop("producer-of-a-test")
        self.loop.start()

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        self.looks.append(at_s)
        self.loop.post(partial(self.loop.at, at_s * 1_000, call))

    def lane(self, _route: Route, schema: pa.Schema, *, epoch: int, owner: Sender) -> Lane:
        link = LeaderLink(self.loop, ROUTE, NO_SECURITY)
        lane = Lane(link, ROUTE, schema, epoch, owner)
        link._lanes[lane] = None  # entered, and not connected
        self.lanes.append(lane)
        self.taken.release()
        return lane


class OneRoute:
    """Routes as one broker tells them, which is asked each time that its route was reported stale."""

    def __init__(self) -> None:
        self.looked = threading.Semaphore(0)  # whether the leader is another
        self.route = ROUTE
        self.error: ReplicationError | None = None
        self.is_stale = False

    def known(self, _partition: TopicPartition) -> Route | None:
        return None if self.is_stale else self.latest(_partition)

    def latest(self, _partition: TopicPartition) -> Route:
        if self.error is not None:
            raise self.error
        return self.route

    def renew(self, _partitions: list[TopicPartition], _deadline: Deadline) -> None:
        self.is_stale = False
        self.looked.release()

    def stale(self, _route: Route) -> None:
        self.is_stale = True


def sender_of(
    links: OneLink,
    routes: OneRoute | None = None,
    settings: SenderSettings = SETTINGS,
    identity: Identity = Identity(producer=7),  # noqa: B008 (frozen)
) -> Sender:
    asked = cast(Routes, routes or OneRoute())
    return Sender(TopicPartition("orders", 0), asked, Leaders(asked), cast(LeaderLinks, links), identity, settings)


def sent_on(lane: Lane, number: int) -> int | None:
    """The sequence of what the owner gives, which the stream sends as its batch `number`."""
    outgoing = lane.owner.next_batch(lane)
    if outgoing is None:
        return None
    lane.sends(number)
    return outgoing.metadata.sequence


def next_lane(links: OneLink, sender: Sender) -> Lane:
    """Once the sender has taken it."""
    assert links.taken.acquire(timeout=TIMEOUT_S)
    with sender._lock:  # it is taken under this lock
        assert sender._sending.lane is links.lanes[-1]
    return links.lanes[-1]


def send(sender: Sender, count: int) -> list[Future[Ack]]:
    return [sender.send(BATCH, Deadline(60_000)) for _ in range(count)]


def place(number: int) -> PutAnswer:
    return PutAnswer(number=number, base_offset=2 * number, last_offset=2 * number + 1)


def close(sender: Sender) -> None:
    sender.close()
    sender.join(TIMEOUT_S)
    assert not sender.flush()


def test_a_failure_is_waited_off_and_the_next_one_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "back_off_s", lambda failures: 0.02 * failures)
    links = OneLink()
    sender = sender_of(links)
    send(sender, 1)
    refusal = PutAnswer(number=0, error=NotEnoughReplicas.code, message="wait", retriable=True)
    for failures in (1, 2, 3):
        lane = next_lane(links, sender)
        assert sent_on(lane, 0) == 0
        began_s = time.monotonic()
        sender.answered(lane, [refusal])
        assert links.taken.acquire(timeout=TIMEOUT_S)
        assert time.monotonic() - began_s >= 0.02 * failures
        links.taken.release()
    sender.answered(next_lane(links, sender), [])
    assert sent_on(links.lanes[-1], 0) == 0
    sender.answered(links.lanes[-1], [place(0)])
    close(sender)


@pytest.mark.parametrize("error", [LeaderNotAvailable("nobody leads it"), InvalidRequest("it may not be written")])
def test_without_a_leader_a_batch_fails_with_the_reason(error: ReplicationError) -> None:
    links, routes = OneLink(), OneRoute()
    routes.error = error
    sender = sender_of(links, routes, msgspec.structs.replace(SETTINGS, deadline_ms=50))
    future = sender.send(BATCH, Deadline(50))
    with pytest.raises(type(error), match=error.message):
        future.result(TIMEOUT_S)
    assert not links.lanes
    close(sender)


def test_a_batch_whose_leader_is_still_asked_for_fails_in_time() -> None:
    class Silent(OneRoute):
        def renew(self, _partitions: list[TopicPartition], deadline: Deadline) -> None:
            assert answers.wait(TIMEOUT_S)

    answers, links, routes = threading.Event(), OneLink(), Silent()
    routes.is_stale = True
    sender = sender_of(links, routes)
    future = sender.send(BATCH, Deadline(50))
    with pytest.raises(RequestTimedOut, match="it is not written, send it anew"):
        future.result(TIMEOUT_S)
    answers.set()
    close(sender)
    assert not links.lanes, "there is nothing left to send"


def test_what_was_sent_cannot_be_cancelled() -> None:
    links = OneLink()
    sender = sender_of(links)
    (future,) = send(sender, 1)
    assert not future.cancel(), "it may be written"
    lane = next_lane(links, sender)
    assert sent_on(lane, 0) == 0
    sender.answered(lane, [place(0)])
    assert future.result(TIMEOUT_S).base_offset == 0
    close(sender)


def test_a_retry_says_whether_its_rows_may_have_another_order() -> None:
    for any_order in (False, True):
        links = OneLink()
        sender = sender_of(links, identity=Identity(producer=7, any_order=any_order))
        send(sender, 1)
        lane = next_lane(links, sender)
        outgoing = lane.owner.next_batch(lane)
        assert outgoing is not None
        assert outgoing.metadata.any_order is any_order
        sender.ended(lane, InvalidRequest("the test is over"))
        close(sender)


def test_nobody_sends_to_what_is_closed_or_waits_for_its_room() -> None:
    links, routes = OneLink(), OneRoute()
    routes.error = LeaderNotAvailable("nobody leads it")
    sender = sender_of(links, routes, msgspec.structs.replace(SETTINGS, in_flight_batches_max=1))
    (first,) = send(sender, 1)
    told: list[type[BaseException]] = []

    def wait_for_room() -> None:
        with pytest.raises(ClientClosed) as closed:
            send(sender, 1)
        told.append(closed.type)

    waiting = threading.Thread(target=wait_for_room)
    waiting.start()
    eventually(lambda: sender._room._waiters, "it waits")  # type: ignore[attr-defined]
    sender.close()
    waiting.join(TIMEOUT_S)
    assert told == [ClientClosed]
    with pytest.raises(ClientClosed):
        send(sender, 1)
    sender.loop_ended(ClientClosed("the test is over"))
    assert isinstance(first.exception(TIMEOUT_S), ClientClosed)
    close(sender)


def test_the_room_that_expired_sends_leave_helps_nobody() -> None:
    """A leader has not answered them for their whole time: whoever waits behind them would wait as long."""
    links, routes = OneLink(), OneRoute()
    routes.error = LeaderNotAvailable("nobody leads it")
    sender = sender_of(links, routes, msgspec.structs.replace(SETTINGS, in_flight_batches_max=1))
    first = sender.send(BATCH, Deadline(100))
    with pytest.raises(Overloaded, match="that fill the window had no answer"):
        sender.send(BATCH, Deadline(60_000))
    assert first.done()
    close(sender)
