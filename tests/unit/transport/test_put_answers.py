"""The answers of a write stream: in order, bounded, never owed for ever."""

from __future__ import annotations

import threading

import msgspec

from spark_replication.core.producers import Place
from spark_replication.errors import NotEnoughReplicas
from spark_replication.transport.put_stream import Answers


class Written(list[dict[str, object]]):
    """fails_at: how many it takes before the client is gone."""

    def __init__(self, fails_at: int = 1_000_000) -> None:
        self._fails_at = fails_at

    def write(self, data: bytes) -> None:
        if len(self) == self._fails_at:
            raise OSError("the client is gone")
        self.append(msgspec.json.decode(data))


def writing(answers: Answers, written: Written) -> threading.Thread:
    thread = threading.Thread(target=answers.write, args=(written,), daemon=True)
    thread.start()
    return thread


def test_answers_leave_in_the_order_of_their_batches() -> None:
    answers, written = Answers(unanswered_max=10, timeout_ms=60_000), Written()
    thread = writing(answers, written)
    first, second, third = answers.next(), answers.next(), answers.next()
    assert first
    assert second
    assert third
    third.fill(Place(4, 5))
    second.fill(NotEnoughReplicas("too few"))
    first.fill(Place(0, 3))
    first.fill(NotEnoughReplicas("too late"))
    answers.complete()
    thread.join(10)
    assert written == [
        {"base_offset": 0, "last_offset": 3},
        {"error": "NOT_ENOUGH_REPLICAS", "message": "too few", "retriable": True, "maybe_written": False},
        {"base_offset": 4, "last_offset": 5},
    ]


def test_what_nobody_confirms_is_answered_in_time() -> None:
    answers, written = Answers(unanswered_max=10, timeout_ms=20), Written()
    thread = writing(answers, written)
    late = answers.next()
    assert late
    answers.complete()
    thread.join(10)
    assert [(found["error"], found["maybe_written"]) for found in written] == [("REQUEST_TIMED_OUT", True)]
    late.fill(Place(0, 0))
    assert len(written) == 1


def test_no_more_batches_are_read_than_may_wait() -> None:
    answers, written = Answers(unanswered_max=2, timeout_ms=60_000), Written()
    thread = writing(answers, written)
    first, _ = answers.next(), answers.next()
    assert first
    third = threading.Thread(target=answers.next, daemon=True)
    third.start()
    third.join(0.1)
    assert third.is_alive()
    first.fill(Place(0, 0))
    third.join(10)
    assert not third.is_alive()
    answers.complete()
    assert thread.is_alive()


def test_a_client_that_is_gone_ends_the_stream() -> None:
    answers, written = Answers(unanswered_max=1, timeout_ms=60_000), Written(fails_at=0)
    thread = writing(answers, written)
    first = answers.next()
    assert first
    first.fill(Place(0, 0))
    thread.join(10)
    assert not thread.is_alive()
    assert answers.next() is None
