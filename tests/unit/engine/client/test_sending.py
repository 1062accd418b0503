"""What a sender's machine does at each event, without threads, sockets or time."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from spark_replication.core.routing import Route
from spark_replication.engine.client import sending
from spark_replication.engine.client.lanes import AT_ONCE, Lane, LeaderStreams
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.pausing import BACK_OFF_FIRST_S
from spark_replication.engine.client.sending import Ack, SenderSettings, Sending, Settled
from spark_replication.engine.client.window import Send
from spark_replication.errors import (
    BrokerNotAvailable,
    ClientClosed,
    InvalidRequest,
    LeaderNotAvailable,
    NotLeader,
    ReplicationError,
    RequestTimedOut,
    TopicAuthorizationFailed,
)
from spark_replication.messages.lane import STREAMS_MAX, PutAnswer
from spark_replication.model import TopicPartition

NAME = TopicPartition("orders", 0)
ROUTE = Route(topic="orders", partition=0, topic_id="id", leader=1, leader_epoch=0, address="h:1", replication_port=2)
MOVED = msgspec.structs.replace(ROUTE, leader=2, leader_epoch=1, address="h:2")
SETTINGS = SenderSettings(
    acks="all", deadline_ms=60_000, in_flight_batches_max=9, in_flight_bytes_max=1 << 20, linger_ms=0, batch_bytes=0
)
REFUSED = TopicAuthorizationFailed("not yours")
STALL_S, SILENCE_S = SETTINGS.stall_s, SETTINGS.silence_s_max


class Story:
    """A sender, what it asked for, and the time. As owner of its lanes it is asked by the test."""

    def __init__(self, settings: SenderSettings = SETTINGS, *, is_fixed: bool = False) -> None:
        self.now_s = 100.0
        self.route: Route | ReplicationError | None = ROUTE
        self.heard_s = 0.0
        self.throttled = ""
        self.lanes: list[Lane] = []
        self.left: list[Lane] = []
        self.asked: list[float] = []  # when lanes ask for a batch
        self.abandoned: list[str] = []
        self.stales: list[Route] = []
        self.questions: list[float] = []  # for a leader, by when
        self.looks: list[float] = []
        self.cannot: ReplicationError | None = None  # why there is no lane, and nobody to ask
        self.of = Sending(NAME, self, Identity(producer=7), settings, lambda: self.now_s, is_fixed=is_fixed)

    # Surroundings

    def known(self) -> Route | None:
        if isinstance(self.route, ReplicationError):
            raise self.route
        return self.route

    def stale(self, route: Route) -> None:
        self.stales.append(route)

    def ask(self, by_s: float) -> None:
        if self.cannot is not None:
            raise self.cannot
        self.questions.append(by_s)

    def lane(self, route: Route, kind: Any, epoch: int) -> Lane:
        if self.cannot is not None:
            raise self.cannot
        self.lanes.append(Lane(self, route, kind, epoch, self.of))  # type: ignore[arg-type]
        return self.lanes[-1]

    def look_at(self, at_s: float) -> None:
        self.looks.append(at_s)

    # Link

    def waits_for(self, _now_s: float) -> str:
        return self.throttled

    def ask_at(self, at_s: float, _lane: Lane) -> None:
        self.asked.append(at_s)

    def leave(self, lane: Lane) -> None:
        self.left.append(lane)

    def abandon(self, why: str) -> None:
        self.abandoned.append(why)

    # Events

    def add(self, name: str, *, kind: str = "a", within_s: float = 60.0) -> Settled:
        send: Send[Ack] = Send(
            batch=name, kind=kind, rows=2, bytes=1, deadline_s=self.now_s + within_s, future=Future()
        )
        return self.of.add(send)

    def sends(self) -> tuple[list[Any], int | None] | None:
        outgoing = self.of.next_batch(self.lanes[-1])
        return None if outgoing is None else (outgoing.sends, outgoing.metadata.sequence)

    def answered(self, *answers: PutAnswer) -> Settled:
        return self.of.answered(self.lanes[-1], answers)

    def passed(self, seconds: float) -> Settled:
        """Look once so long has passed."""
        self.now_s += seconds
        return self.of.look(self.looks[-1])


def stored(number: int, base_offset: int) -> PutAnswer:
    return PutAnswer(number=number, base_offset=base_offset, last_offset=base_offset + 1)


def refused(error: ReplicationError, number: int = 0) -> PutAnswer:
    return PutAnswer(
        number=number,
        error=error.code,
        message=error.message,
        retriable=error.retriable,
        maybe_written=error.maybe_written,
    )


def outcomes(settled: Settled) -> list[tuple[str, Any]]:
    return [(send.batch, o.base_offset if isinstance(o, Ack) else (o.code, o.maybe_written)) for send, o in settled]


def test_a_batch_goes_to_its_leader_and_its_answer_comes_back() -> None:
    story = Story()
    assert story.add("one") == []
    (lane,) = story.lanes
    assert (lane.route, lane.kind, lane.epoch) == (ROUTE, "a", 0)
    assert story.asked == [AT_ONCE]
    assert story.sends() == (["one"], 0)
    assert story.sends() is None
    ((send, ack),) = story.answered(stored(0, 40))
    assert (send.batch, ack) == ("one", Ack(topic="orders", partition=0, base_offset=40, last_offset=41))
    assert not story.left, "the lane stays for the next"


def test_a_leader_that_nobody_knows_is_asked_for_once() -> None:
    story = Story()
    story.route = None
    story.add("one", within_s=30.0)
    story.add("two")
    assert (story.questions, story.lanes) == ([130.0], [])
    assert story.looks == [130.0], "the end of the first batch is all that may be due"
    assert story.of.found(ROUTE) == []
    assert (len(story.lanes), story.questions) == (1, [130.0])


def test_an_answer_to_a_question_for_which_nothing_is_left_takes_no_lane() -> None:
    story = Story()
    story.route = None
    story.add("one", within_s=30.0)
    assert outcomes(story.passed(30.0)) == [("one", (RequestTimedOut.code, False))]
    assert story.of.found(ROUTE) == []
    assert story.lanes == []


@pytest.mark.parametrize("told", [LeaderNotAvailable("nobody leads"), BrokerNotAvailable("nobody answers")])
def test_without_a_leader_it_is_asked_again_later(told: ReplicationError) -> None:
    story = Story()
    story.route = told
    assert story.add("one") == []
    first = story.looks[-1]
    assert story.now_s < first < story.now_s + 0.1
    assert (story.passed(0.0), story.lanes) == ([], []), "before its time"
    story.route = ROUTE
    story.now_s = first
    assert story.of.look(story.looks[-1]) == []
    assert len(story.lanes) == 1


def test_who_may_not_write_is_told_at_once() -> None:
    story = Story()
    story.route = REFUSED
    assert outcomes(story.add("one")) == [("one", (REFUSED.code, False))]


def test_without_anybody_to_ask_a_batch_waits() -> None:
    story = Story()
    story.route, story.cannot = None, BrokerNotAvailable("no thread")
    assert story.add("one") == []
    story.route, story.cannot = ROUTE, None
    assert story.passed(BACK_OFF_FIRST_S * 2) == []
    assert len(story.lanes) == 1


def test_what_is_closed_has_no_lanes() -> None:
    story = Story()
    story.cannot = ClientClosed("closed")
    assert outcomes(story.add("one")) == [("one", (ClientClosed.code, False))]


@pytest.mark.parametrize("left", [True, False])
def test_what_a_lane_that_was_left_is_told_says_nothing(left: bool) -> None:
    story = Story()
    story.add("one")
    story.sends()
    first = story.lanes[0]
    if left:
        story.of.ended(first, BrokerNotAvailable("it broke", maybe_written=True))
        story.passed(1.0)
        assert len(story.lanes) == 2
        assert story.sends() == (["one"], 0), "again under its number"
    assert bool(story.of.answered(first, [stored(0, 40)])) is not left
    assert story.of.next_batch(first) is None
    assert story.of.ended(first, REFUSED) == []


def test_after_a_refusal_nothing_on_that_lane_counts() -> None:
    story = Story()
    for name in ("one", "two", "three"):
        story.add(name)
    assert [story.sends() for _ in range(3)] == [(["one"], 0), (["two"], 1), (["three"], 2)]
    answers = [stored(0, 0), refused(NotLeader("not I"), 1), stored(2, 9)]
    assert outcomes(story.answered(*answers)) == [("one", 0)]
    assert (story.left, story.stales) == (story.lanes[:1], [ROUTE])
    story.passed(1.0)
    assert [story.sends() for _ in range(3)] == [(["two"], 1), (["three"], 2), None]


def test_a_refusal_of_the_content_fails_the_batch_alone_and_the_rest_is_numbered_anew() -> None:
    story = Story()
    story.add("one")
    story.add("two")
    assert [story.sends(), story.sends()] == [(["one"], 0), (["two"], 1)]
    assert outcomes(story.answered(refused(InvalidRequest("no")))) == [("one", (InvalidRequest.code, False))]
    assert story.stales == [], "its leader is who leads"
    story.passed(0.0)
    assert (story.lanes[-1].epoch, story.sends()) == (1, (["two"], 0))


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (BrokerNotAvailable("it broke", maybe_written=True), []),
        (
            REFUSED,
            [("one", (REFUSED.code, True)), ("two", (REFUSED.code, False))],
        ),
    ],
)
def test_the_end_of_a_connection_fails_what_cannot_be_sent_again(
    error: ReplicationError, failed: list[tuple[str, Any]]
) -> None:
    story = Story()
    story.add("one")
    story.sends()
    story.add("two")
    assert outcomes(story.of.ended(story.lanes[0], error)) == failed


def test_the_end_of_an_idle_connection_is_no_trouble() -> None:
    story = Story()
    story.add("one")
    story.sends()
    story.answered(stored(0, 0))
    assert story.of.ended(story.lanes[0], TopicAuthorizationFailed("the token was revoked")) == []
    assert story.of.because() == ""
    story.add("two")
    assert len(story.lanes) == 2


def test_while_answers_stay_away_another_leader_is_looked_for() -> None:
    story = Story()
    story.add("one")
    story.sends()
    story.passed(STALL_S / 2)
    assert (story.stales, story.questions) == ([], []), "not yet"
    story.passed(STALL_S / 2)
    assert (story.stales, len(story.questions)) == ([ROUTE], 1)
    story.of.found(LeaderNotAvailable("nobody leads"))
    story.of.found(ROUTE)
    assert story.left == [], "its answers may still come"
    story.of.found(MOVED)
    assert story.left == story.lanes[:1]
    story.passed(1.0)
    assert story.lanes[-1].route is ROUTE, "as its routes say at present"
    assert story.sends() == (["one"], 0)


def test_nobody_to_ask_while_answers_stay_away_is_no_trouble() -> None:
    story = Story()
    story.add("one")
    story.sends()
    story.cannot = BrokerNotAvailable("no thread")
    assert story.passed(STALL_S) == []
    assert story.left == []


@pytest.mark.parametrize("others_hear", [True, False])
def test_a_connection_that_is_silent_is_abandoned(others_hear: bool) -> None:
    story = Story()
    story.add("one")
    story.sends()
    for _ in range(int(SILENCE_S / STALL_S)):
        story.heard_s = story.now_s if others_hear else 0.0
        assert story.abandoned == []
        story.passed(STALL_S)
        story.of.found(ROUTE)
    assert bool(story.abandoned) is not others_hear


def test_a_connection_over_which_nothing_was_sent_is_not_silent() -> None:
    story = Story()
    story.add("one")
    for _ in range(int(SILENCE_S / STALL_S) + 2):
        story.passed(STALL_S)
        story.of.found(ROUTE)
    assert story.abandoned == []


def test_a_batch_runs_out_of_time_with_the_reason() -> None:
    story = Story()
    story.throttled = "the broker waits"
    story.add("one", within_s=1.0)
    story.sends()
    ((_, error),) = story.passed(1.0)
    assert isinstance(error, RequestTimedOut)
    assert error.maybe_written
    assert "(the broker waits)" in error.message
    assert story.of.expired == 1
    story.route = LeaderNotAvailable("nobody leads")
    story.of.ended(story.lanes[0], BrokerNotAvailable("it broke"))
    story.add("two", within_s=1.0)
    ((_, error),) = story.passed(1.0)
    assert isinstance(error, BrokerNotAvailable | LeaderNotAvailable)
    assert not error.maybe_written
    assert "nothing is written" in error.message


def test_once_a_batch_that_may_not_be_written_is_given_up_its_lane_is_left() -> None:
    """The rest begins another epoch, in which its numbers begin anew."""
    story = Story()
    story.add("one", within_s=1.0)
    story.sends()
    story.answered(refused(NotLeader("not I")))
    story.add("two")
    story.passed(0.5)
    assert story.lanes[-1].epoch == 0
    assert outcomes(story.passed(0.5)) == [("one", (NotLeader.code, False))]
    assert story.left == story.lanes[:2]
    story.passed(1.0)
    assert (story.lanes[-1].epoch, story.sends()) == (1, (["two"], 0))


def test_batches_of_another_kind_wait_for_a_lane_of_their_own() -> None:
    story = Story()
    story.add("one", kind="a")
    story.add("two", kind="b")
    assert (story.sends(), story.sends()) == ((["one"], 0), None)
    assert story.left == [], "its answer would be lost"
    story.answered(stored(0, 0))
    assert story.left == story.lanes[:1]
    story.passed(0.0)
    assert (story.lanes[-1].kind, story.sends()) == ("b", (["two"], 1))


def test_a_batch_lingers_until_it_is_closed() -> None:
    story = Story(msgspec.structs.replace(SETTINGS, linger_ms=50, batch_bytes=100))
    story.add("one")
    assert story.asked == [100.05]
    assert story.sends() is None
    story.add("two")
    story.of.close_last()
    assert story.asked[-1] == AT_ONCE
    assert story.sends() == (["one", "two"], 0)
    assert outcomes(story.answered(stored(0, 8))) == [("one", 8), ("two", 10)]


def test_four_unanswered_batches_have_the_next_wait_for_an_answer() -> None:
    story = Story(msgspec.structs.replace(SETTINGS, batch_bytes=100))
    for number in range(sending.IN_FLIGHT_ALONE):
        story.add(str(number))
        assert story.sends() == ([str(number)], number)
    story.add("next")
    assert story.sends() is None
    assert story.lanes[0].asked_at_s == math.inf
    story.answered(stored(0, 0))
    assert story.sends() == (["next"], sending.IN_FLIGHT_ALONE)


def test_of_numbers_that_the_user_chose_all_fail_with_the_first() -> None:
    story = Story(is_fixed=True)
    story.add("one")
    story.add("two")
    story.sends()
    assert not story.of.is_over
    failed = story.answered(refused(InvalidRequest("no")))
    assert outcomes(failed) == [("one", (InvalidRequest.code, False)), ("two", (InvalidRequest.code, False))]
    assert story.of.is_over


def test_a_failure_is_forgotten_with_the_next_acknowledgement() -> None:
    story = Story()
    story.add("one")
    story.of.ended(story.lanes[0], BrokerNotAvailable("it broke"))
    assert "it broke" in story.of.because()
    story.passed(1.0)
    story.sends()
    story.answered(stored(0, 0))
    assert story.of.because() == ""


def test_what_is_given_up_fails_and_is_looked_at_no_more() -> None:
    story = Story()
    story.add("one")
    story.sends()
    assert outcomes(story.of.given_up(ClientClosed("closed"))) == [("one", (ClientClosed.code, True))]
    assert story.left == story.lanes
    looks = list(story.looks)
    story.now_s += 100.0
    assert (story.of.look(looks[-1]), story.looks) == ([], looks)


def test_a_look_whose_time_was_brought_forward_does_nothing() -> None:
    story = Story()
    story.route = None
    story.add("one", within_s=30.0)
    story.of.found(LeaderNotAvailable("nobody leads"))
    assert story.looks[0] == 130.0
    assert story.looks[-1] < 130.0
    story.route = ROUTE
    story.now_s += 1.0
    assert story.of.look(130.0) == []
    assert story.lanes == []


def test_a_sender_with_nothing_to_do_has_nothing_looked_at() -> None:
    story = Story()
    story.add("one")
    story.sends()
    story.answered(stored(0, 0))
    (first,) = story.looks
    assert (story.passed(STALL_S), story.looks) == ([], [first]), "a look that finds nothing asks for no other"
    story.add("two")
    assert len(story.looks) == 2


@pytest.mark.parametrize(
    ("came", "handed"),
    [([0, 1, 2], [[0], [1], [2]]), ([2, 1, 0], [[], [], [0, 1, 2]]), ([1, 0, 2], [[], [0, 1], [2]])],
)
def test_a_lane_gets_its_answers_in_the_order_of_its_batches(came: list[int], handed: list[list[int]]) -> None:
    story, streams = Story(), LeaderStreams()
    lane, other = (story.lane(ROUTE, "a", 0) for _ in range(2))
    assert [streams.sends(each) for each in (lane, other, lane, lane)] == [0, 1, 2, 3]
    numbers = [0, 2, 3]
    found = [dict(streams.answered([stored(numbers[each], 0)])).get(lane, []) for each in came]
    assert [[numbers.index(answer.number) for answer in each] for each in found] == handed
    ((told, answers),) = streams.answered([stored(1, 0)])
    assert (told is other, len(answers)) == (True, 1)


def test_an_answer_that_is_not_owed_is_refused() -> None:
    story, streams = Story(), LeaderStreams()
    streams.sends(story.lane(ROUTE, "a", 0))
    list(streams.answered([stored(0, 0)]))
    with pytest.raises(InvalidRequest, match="not owed"):
        streams.answered([stored(0, 0)])


def test_a_stream_is_opened_once_for_each_topic_and_kind_and_there_is_an_end_to_them() -> None:
    story, streams = Story(), LeaderStreams()
    lane = story.lane(ROUTE, "a", 0)
    first = streams.stream(lane)
    assert first is not None
    number, opening = first
    assert opening is not None
    assert (number, opening.stream, opening.topic, opening.topic_id) == (0, 0, "orders", "id")
    assert streams.stream(lane) == (0, None)
    others = [streams.stream(story.lane(ROUTE, str(kind), 0)) for kind in range(STREAMS_MAX)]
    assert [None if each is None else each[0] for each in others] == [*range(1, STREAMS_MAX), None]
    assert streams.stream(lane) == (0, None), "those that are open go on"
