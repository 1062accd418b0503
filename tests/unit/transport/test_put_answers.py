"""The answers of a write stream: in order, bounded, never owed for ever."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.errors import NotEnoughReplicas
from spark_replication.transport.flight.put_stream import AnswerQueue, QueueInOrder, QueueTogether
from spark_replication.transport.meter import PUT, Meter
from tests.waiting import eventually


class Written(list[dict[str, Any]]):
    """fails_at: how many it takes before the client is gone."""

    def __init__(self, fails_at: int = 1_000_000) -> None:
        self._fails_at = fails_at

    def write(self, data: bytes) -> None:
        if len(self) == self._fails_at:
            raise OSError("the client is gone")
        self.append(msgspec.json.decode(data))


METER = Meter([PUT])


def at_once() -> None: ...


def writing(answers: AnswerQueue, written: Written) -> threading.Thread:
    thread = threading.Thread(target=answers.write, args=(written,), daemon=True)
    thread.start()
    return thread


def test_answers_leave_in_the_order_of_their_batches() -> None:
    answers, written = QueueInOrder(unanswered_max=10, timeout_ms=60_000, gather=at_once, meter=METER), Written()
    thread = writing(answers, written)
    first, second, third = answers.next(), answers.next(), answers.next()
    assert first
    assert second
    assert third
    third.fill(OffsetSpan(4, 5))
    second.fill(NotEnoughReplicas("too few"))
    first.fill(OffsetSpan(0, 3))
    first.fill(NotEnoughReplicas("too late"))
    answers.complete()
    thread.join(10)
    assert written == [
        {"base_offset": 0, "last_offset": 3},
        {"error": "NOT_ENOUGH_REPLICAS", "message": "too few", "retriable": True, "maybe_written": False},
        {"base_offset": 4, "last_offset": 5},
    ]


def test_answers_of_a_topic_leave_as_they_come_and_together() -> None:
    answers, written = (
        QueueTogether(unanswered_max=10, timeout_ms=60_000, gather=at_once, meter=METER),
        Written(),
    )
    first, second, third, fourth = (answers.next() for _ in range(4))
    assert first
    assert second
    assert third
    assert fourth
    third.fill(OffsetSpan(4, 5))
    second.fill(NotEnoughReplicas("too few"))
    second.fill(OffsetSpan(0, 0))
    thread = writing(answers, written)
    eventually(lambda: len(written) == 1, "two answers, while the first batch has none")
    first.fill(OffsetSpan(0, 3))
    eventually(lambda: len(written) == 2, "the third one")
    fourth.fill(OffsetSpan(6, 6))
    answers.complete()
    thread.join(10)
    assert not thread.is_alive()
    assert written[0] == {
        "answers": [
            {"number": 2, "base_offset": 4, "last_offset": 5},
            {
                "number": 1,
                "error": "NOT_ENOUGH_REPLICAS",
                "message": "too few",
                "retriable": True,
                "maybe_written": False,
            },
        ]
    }
    told = [msgspec.json.encode(found) for message in written[1:] for found in message["answers"]]
    assert told == [
        b'{"number":0,"base_offset":0,"last_offset":3}',
        b'{"number":3,"base_offset":6,"last_offset":6}',
    ]


def test_answers_that_come_while_it_gathers_go_together() -> None:
    gathering, gathered = threading.Event(), threading.Event()

    def gather() -> None:
        gathering.set()
        assert gathered.wait(60)

    answers, written = QueueTogether(unanswered_max=10, timeout_ms=60_000, gather=gather, meter=METER), Written()
    owed = [answers.next() for _ in range(5)]
    thread = writing(answers, written)
    for number, answer in enumerate(owed):
        assert answer
        answer.fill(OffsetSpan(number, number))
        if number == 0:
            assert gathering.wait(60)
    gathered.set()
    answers.complete()
    thread.join(10)
    assert [[told["number"] for told in message["answers"]] for message in written] == [[0], [1, 2, 3, 4]]


def test_the_last_answer_waits_for_nobody() -> None:
    gathered: list[str] = []
    answers, written = (
        QueueTogether(
            unanswered_max=10, timeout_ms=60_000, gather=lambda: gathered.append("waited"), meter=Meter([PUT])
        ),
        Written(),
    )
    thread = writing(answers, written)
    only = answers.next()
    assert only
    only.fill(OffsetSpan(0, 0))
    eventually(lambda: len(written) == 1, "its answer")
    answers.complete()
    thread.join(10)
    assert not thread.is_alive()
    assert gathered == []


def test_an_answer_that_two_have_filled_is_told_once() -> None:
    answers, written = QueueTogether(unanswered_max=1, timeout_ms=60_000, gather=at_once, meter=METER), Written()
    only = answers.next()
    assert only
    only.fill(OffsetSpan(0, 0))
    answers._owed.filled(only)
    thread = writing(answers, written)
    eventually(lambda: len(written) == 1, "the answer")
    answers._owed.filled(only)
    second = answers.next()
    assert second
    second.fill(OffsetSpan(1, 1))
    answers.complete()
    thread.join(10)
    assert [len(message["answers"]) for message in written] == [1, 1]


@pytest.mark.parametrize("kind", [QueueInOrder, QueueTogether])
def test_what_nobody_confirms_is_answered_in_time(kind: type[AnswerQueue]) -> None:
    answers, written = kind(unanswered_max=10, timeout_ms=20, gather=at_once, meter=METER), Written()
    thread = writing(answers, written)
    late = answers.next()
    assert late
    answers.complete()
    thread.join(10)
    told: Any = written if kind is QueueInOrder else written[0]["answers"]
    assert [(found["error"], found["maybe_written"]) for found in told] == [("REQUEST_TIMED_OUT", True)]
    late.fill(OffsetSpan(0, 0))
    assert len(written) == 1


def test_no_more_batches_are_read_than_may_wait() -> None:
    answers, written = QueueInOrder(unanswered_max=2, timeout_ms=60_000, gather=at_once, meter=METER), Written()
    thread = writing(answers, written)
    first, _ = answers.next(), answers.next()
    assert first
    third = threading.Thread(target=answers.next, daemon=True)
    third.start()
    third.join(0.1)
    assert third.is_alive()
    first.fill(OffsetSpan(0, 0))
    third.join(10)
    assert not third.is_alive()
    answers.complete()
    assert thread.is_alive()


def test_a_client_that_is_gone_ends_the_stream() -> None:
    answers, written = (
        QueueInOrder(unanswered_max=1, timeout_ms=60_000, gather=at_once, meter=METER),
        Written(fails_at=0),
    )
    thread = writing(answers, written)
    first = answers.next()
    assert first
    first.fill(OffsetSpan(0, 0))
    thread.join(10)
    assert not thread.is_alive()
    assert answers.next() is None
