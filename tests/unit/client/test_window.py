"""What each event makes of the batches in flight and of their numbers."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from spark_replication.client.window import Pending, Window

Numbered = list[tuple[str, int | None, bool]]  # name, sequence, maybe_written


def pending(name: str, deadline_s: float = 100.0, size: int = 1) -> Pending[None]:
    return Pending(batch=name, bytes=size, deadline_s=deadline_s, future=Future())


def window(*names: str, sent: int = 0, deadline_s: float = 100.0) -> Window[None]:
    made: Window[None] = Window(batches_max=10, bytes_max=100)
    for name in names:
        made.add(pending(name, deadline_s))
    send(made, sent)
    return made


def send(of: Window[None], count: int) -> list[int | None]:
    return [of.send_next().sequence for _ in range(count)]


def state(of: Window[None]) -> Numbered:
    return [(each.batch, each.sequence, each.maybe_written) for each in of.live()]


def refuse(of: Window[None], kind: str, *, maybe_written: bool = False) -> str | None:
    failed = of.refused(retriable=kind == "passes", out_of_order=kind == "order", maybe_written=maybe_written)
    return None if failed is None else str(failed.batch)


def test_numbers_are_given_with_the_first_sending_and_kept() -> None:
    batches = window("a", "b", "c", sent=2)
    batches.interrupted()
    assert state(batches) == [("a", 0, True), ("b", 1, True), ("c", None, False)]
    assert send(batches, 3) == [0, 1, 2]
    assert batches.next_unsent is None


@pytest.mark.parametrize(
    ("kind", "maybe_written", "failed", "epoch", "after"),
    [
        ("passes", False, None, 0, [("a", 0, False), ("b", 1, True), ("c", None, False)]),
        ("passes", True, None, 0, [("a", 0, True), ("b", 1, True), ("c", None, False)]),
        ("order", False, None, 1, [("a", None, False), ("b", None, False), ("c", None, False)]),
        ("final", False, "a", 1, [("b", None, False), ("c", None, False)]),
        ("final", True, "a", 0, [("b", 1, True), ("c", None, False)]),
    ],
)
def test_a_refusal(kind: str, maybe_written: bool, failed: str | None, epoch: int, after: Numbered) -> None:
    batches = window("a", "b", "c", sent=2)
    assert refuse(batches, kind, maybe_written=maybe_written) == failed
    assert (batches.epoch, state(batches), batches.awaits_answer) == (epoch, after, False)


def test_a_number_that_stays_out_of_order_fails_its_batch() -> None:
    batches = window("a", "b", sent=2)
    assert refuse(batches, "order") is None
    assert send(batches, 2) == [0, 1]
    assert refuse(batches, "order") == "a"
    assert state(batches) == [("b", None, False)]


def test_a_final_refusal_of_what_may_be_there_keeps_the_numbers_until_they_prove_wrong() -> None:
    batches = window("a", "b", sent=2)
    batches.interrupted()
    send(batches, 2)
    assert refuse(batches, "final") == "a"
    assert send(batches, 1) == [1]
    assert refuse(batches, "order") is None
    assert (batches.epoch, send(batches, 1)) == (1, [0])


def test_what_was_never_sent_expires_without_a_trace() -> None:
    batches = window("a", "b", deadline_s=5)
    batches.add(pending("c", 9))
    assert [(each.batch, each.maybe_written) for each in batches.expire(5)] == [("a", False), ("b", False)]
    assert (batches.epoch, state(batches)) == (0, [("c", None, False)])
    assert batches.expire(5) == []


def test_what_was_surely_refused_expires_and_those_behind_are_numbered_anew() -> None:
    batches = window("a", sent=1, deadline_s=5)
    batches.add(pending("b", 9))
    send(batches, 1)
    refuse(batches, "passes")
    assert [(each.batch, each.maybe_written) for each in batches.expire(5)] == [("a", False)]
    assert (batches.epoch, state(batches)) == (1, [("b", None, False)])


def test_what_may_be_written_expires_and_is_sent_on_behalf_of_those_behind() -> None:
    batches = window("a", sent=1, deadline_s=5)
    batches.add(pending("b", 9))
    send(batches, 1)
    assert [(each.batch, each.maybe_written) for each in batches.expire(5)] == [("a", True)]
    assert (batches.epoch, state(batches), len(batches)) == (0, [("b", 1, False)], 2)
    assert batches.first_live_deadline_s == 9
    batches.interrupted()
    assert send(batches, 2) == [0, 1], "the ghost goes first"
    assert [batches.acknowledged().expired, batches.acknowledged().expired] == [True, False]


def test_ghosts_that_nobody_stands_behind_go_and_the_next_epoch_begins() -> None:
    batches = window("a", "b", sent=2, deadline_s=5)
    batches.add(pending("c", 9))
    assert [each.batch for each in batches.expire(5)] == ["a", "b"]
    assert (batches.epoch, len(batches), state(batches)) == (1, 1, [("c", None, False)])


@pytest.mark.parametrize("kind", ["order", "final"])
def test_a_refused_ghost_fails_nobody(kind: str) -> None:
    batches = window("a", sent=1, deadline_s=5)
    batches.add(pending("b", 9))
    send(batches, 1)
    batches.expire(5)
    assert refuse(batches, kind) is None
    assert [each.batch for each in batches.live()] == ["b"]
    assert len(batches) == 1


def test_deadlines_do_not_fall_from_first_to_last() -> None:
    batches = window("a", deadline_s=9)
    batches.add(pending("b", 5))
    assert batches.expire(5) == []
    assert [each.batch for each in batches.expire(9)] == ["a", "b"]


def test_all_may_fail() -> None:
    batches = window("a", "b", "c", sent=2)
    assert [(each.batch, each.maybe_written) for each in batches.fail_all()] == [("a", True), ("b", True), ("c", False)]
    assert (len(batches), batches.epoch) == (0, 1)


def test_the_window_has_room_for_so_many_batches_and_bytes_and_always_for_one() -> None:
    batches = window()
    assert batches.has_room(1_000)
    batches.add(pending("large", size=1_000))
    assert not batches.has_room(1)
    small = window(*"abcdefghi")
    assert small.has_room(91)
    assert not small.has_room(92)
    small.add(pending("j"))
    assert not small.has_room(1)
    send(small, 1)
    small.acknowledged()
    assert small.has_room(1)
