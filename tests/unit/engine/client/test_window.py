"""What each event makes of the batches in flight and of their numbers."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from spark_replication.engine.client.window import FailedSend, FixedWindow, Send, Window

Numbered = list[tuple[str, int | None, bool]]  # names of the sends, sequence, maybe_written


def one(name: str, deadline_s: float = 100.0, size: int = 1, kind: str = "a kind") -> Send[None]:
    return Send(batch=name, kind=kind, rows=1, bytes=size, deadline_s=deadline_s, future=Future())


def window(*names: str, sent: int = 0, deadline_s: float = 100.0, batch_bytes: int = 0) -> Window[None]:
    """batch_bytes: a send takes one byte; 0: each is a batch of its own."""
    made: Window[None] = Window(batches_max=10, bytes_max=100, batch_bytes=batch_bytes)
    for name in names:
        made.add(one(name, deadline_s), 0.0)
    send(made, sent)
    return made


def send(of: Window[None], count: int) -> list[int | None]:
    return [of.send_next().sequence for _ in range(count)]


def state(of: Window[None]) -> Numbered:
    """Ghosts left out."""
    return [("".join(s.batch for s in p.sends), p.sequence, p.maybe_written) for p in of._pending if not p.expired]


def names(failed: list[FailedSend]) -> list[tuple[str, bool]]:
    return [(each.send.batch, each.maybe_written) for each in failed]


def told(kind: str, *, maybe_written: bool = False) -> dict[str, bool]:
    kinds = {"retriable": "passes", "out_of_order": "order", "forgotten": "forgotten", "of_content": "content"}
    return {**{name: kind == each for name, each in kinds.items()}, "maybe_written": maybe_written}


def refuse(of: Window[None], kind: str, *, maybe_written: bool = False) -> str:
    return "".join(each.send.batch for each in of.refused(**told(kind, maybe_written=maybe_written)))


def test_numbers_are_given_with_the_first_sending_and_kept() -> None:
    batches = window("a", "b", "c", sent=2)
    batches.interrupted()
    assert state(batches) == [("a", 0, True), ("b", 1, True), ("c", None, False)]
    assert send(batches, 3) == [0, 1, 2]
    assert batches.next_unsent is None


@pytest.mark.parametrize(
    ("kind", "maybe_written", "failed", "epoch", "after"),
    [
        ("passes", False, "", 0, [("a", 0, False), ("b", 1, True), ("c", None, False)]),
        ("passes", True, "", 0, [("a", 0, True), ("b", 1, True), ("c", None, False)]),
        ("order", False, "", 1, [("a", None, False), ("b", None, False), ("c", None, False)]),
        ("forgotten", False, "", 1, [("a", None, False), ("b", None, False), ("c", None, False)]),
        ("final", False, "a", 1, [("b", None, False), ("c", None, False)]),
        ("final", True, "a", 0, [("b", 1, True), ("c", None, False)]),
    ],
)
def test_a_refusal(kind: str, maybe_written: bool, failed: str, epoch: int, after: Numbered) -> None:
    batches = window("a", "b", "c", sent=2)
    assert refuse(batches, kind, maybe_written=maybe_written) == failed
    assert (batches.epoch, state(batches), batches.unanswered) == (epoch, after, 0)


def test_a_number_that_stays_out_of_order_fails_its_batch() -> None:
    batches = window("a", "b", sent=2)
    assert refuse(batches, "order") == ""
    assert send(batches, 2) == [0, 1]
    assert refuse(batches, "order") == "a"
    assert state(batches) == [("b", None, False)]


def test_what_brokers_have_forgotten_fails_only_if_it_may_be_there() -> None:
    batches = window("a", "b", sent=1)
    batches.interrupted()
    send(batches, 2)
    assert refuse(batches, "forgotten") == "a", "it was sent before: nobody can say that it is not stored"
    assert (batches.epoch, state(batches)) == (0, [("b", 1, True)])


def test_a_final_refusal_of_what_may_be_there_keeps_the_numbers_until_they_prove_wrong() -> None:
    batches = window("a", "b", sent=2)
    batches.interrupted()
    send(batches, 2)
    assert refuse(batches, "final") == "a"
    assert send(batches, 1) == [1]
    assert refuse(batches, "order") == ""
    assert (batches.epoch, send(batches, 1)) == (1, [0])


def test_what_was_never_sent_expires_without_a_trace() -> None:
    batches = window("a", "b", deadline_s=5)
    batches.add(one("c", 9), 0.0)
    assert names(batches.expire(5)) == [("a", False), ("b", False)]
    assert (batches.epoch, state(batches)) == (0, [("c", None, False)])
    assert batches.expire(5) == []


def test_what_was_surely_refused_expires_and_those_behind_are_numbered_anew() -> None:
    batches = window("a", sent=1, deadline_s=5)
    batches.add(one("b", 9), 0.0)
    send(batches, 1)
    refuse(batches, "passes")
    assert names(batches.expire(5)) == [("a", False)]
    assert (batches.epoch, state(batches)) == (1, [("b", None, False)])


def test_what_may_be_written_expires_and_is_sent_on_behalf_of_those_behind() -> None:
    batches = window("a", sent=1, deadline_s=5)
    batches.add(one("b", 9), 0.0)
    send(batches, 1)
    assert names(batches.expire(5)) == [("a", True)]
    assert (batches.epoch, state(batches), len(batches)) == (0, [("b", 1, False)], 2)
    assert batches.first_live_deadline_s == 9
    batches.interrupted()
    assert send(batches, 2) == [0, 1], "the ghost goes first"
    assert [batches.acknowledged().expired, batches.acknowledged().expired] == [True, False]


def test_ghosts_that_nobody_stands_behind_go_and_the_next_epoch_begins() -> None:
    batches = window("a", "b", sent=2, deadline_s=5)
    batches.add(one("c", 9), 0.0)
    assert names(batches.expire(5)) == [("a", True), ("b", True)]
    assert (batches.epoch, len(batches), state(batches)) == (1, 1, [("c", None, False)])


@pytest.mark.parametrize("kind", ["order", "final"])
def test_a_refused_ghost_fails_nobody(kind: str) -> None:
    batches = window("a", sent=1, deadline_s=5)
    batches.add(one("b", 9), 0.0)
    send(batches, 1)
    batches.expire(5)
    assert refuse(batches, kind) == ""
    assert [each.batch for each in batches.live()] == ["b"]
    assert len(batches) == 1


def test_deadlines_do_not_fall_from_first_to_last() -> None:
    batches = window("a", deadline_s=9)
    batches.add(one("b", 5), 0.0)
    assert batches.expire(5) == []
    assert names(batches.expire(9)) == [("a", False), ("b", False)]


def test_all_may_fail() -> None:
    batches = window("a", "b", "c", sent=2)
    assert names(batches.fail_all()) == [("a", True), ("b", True), ("c", False)]
    assert (len(batches), batches.epoch) == (0, 1)


def test_the_window_has_room_for_so_many_batches_and_bytes_and_always_for_one() -> None:
    batches = window()
    assert batches.has_room(one("huge", size=1_000))
    batches.add(one("large", size=1_000), 0.0)
    assert not batches.has_room(one("small"))
    small = window(*"abcdefghi")
    assert small.has_room(one("j", size=91))
    assert not small.has_room(one("j", size=92))
    small.add(one("j"), 0.0)
    assert not small.has_room(one("k"))
    send(small, 1)
    small.acknowledged()
    assert small.has_room(one("k"))


def test_small_sends_of_one_kind_are_joined_until_the_batch_is_full() -> None:
    batches = window(batch_bytes=3)
    news = [batches.add(one(name), 0.0) for name in "abcd"]
    assert news == [True, False, True, True], "there is a batch, nothing new, it is full, there is another"
    batches.add(one("e", kind="another"), 0.0)
    batches.add(one("f", size=2), 0.0)
    batches.add(one("g", size=2, kind="another"), 0.0)
    assert state(batches) == [(sends, None, False) for sends in ("abc", "d", "e", "f", "g")]


def test_a_batch_that_is_closed_or_has_a_number_takes_no_more() -> None:
    batches = window("a", batch_bytes=3)
    batches.close_last()
    batches.add(one("b"), 0.0)
    send(batches, 2)
    batches.add(one("c"), 0.0)
    assert state(batches) == [("a", 0, False), ("b", 1, False), ("c", None, False)]


def test_a_send_that_joins_needs_room_for_its_bytes_alone() -> None:
    batches: Window[None] = Window(batches_max=1, bytes_max=3, batch_bytes=4)
    batches.add(one("a"), 0.0)
    assert batches.has_room(one("b"))
    assert not batches.has_room(one("b", kind="another"))
    batches.add(one("b", size=2), 0.0)
    assert not batches.has_room(one("c"))


@pytest.mark.parametrize(
    ("kind", "maybe_written", "failed", "epoch", "after"),
    [
        ("content", False, "", 1, ["a", "bc", "de"]),
        ("content", True, "abc", 0, ["de"]),
        ("final", False, "abc", 1, ["de"]),
        ("passes", False, "", 0, ["abc", "de"]),
    ],
)
def test_a_joined_batch_that_is_refused_for_its_content_is_sent_again_in_halves(
    kind: str, maybe_written: bool, failed: str, epoch: int, after: list[str]
) -> None:
    batches = window(*"abcde", batch_bytes=3, sent=2)
    assert refuse(batches, kind, maybe_written=maybe_written) == failed
    assert (batches.epoch, [sends for sends, _, _ in state(batches)]) == (epoch, after)


def test_a_bad_send_fails_alone_at_last() -> None:
    batches = window(*"abcd", batch_bytes=4, sent=1)
    assert refuse(batches, "content") == ""
    batches.add(one("e"), 0.0)
    send(batches, 1)
    assert refuse(batches, "content") == ""
    send(batches, 1)
    assert refuse(batches, "content") == "a"
    assert [sends for sends, _, _ in state(batches)] == ["b", "cd", "e"], "halves take nothing more"


def test_a_batch_keeps_its_expired_sends_as_long_as_it_has_its_number() -> None:
    batches = window("a", batch_bytes=3, deadline_s=5)
    batches.add(one("b", 9), 0.0)
    send(batches, 1)
    assert names(batches.expire(5)) == [("a", True)]
    assert [[send.expired for send in batches.first.sends], batches.first.expired] == [[True, False], False]
    assert state(batches) == [("ab", 0, True)]
    assert refuse(batches, "order") == ""
    assert state(batches) == [("b", None, False)], "nobody waits for a, and it surely is not there"


def test_what_waits_to_be_joined_expires_alone() -> None:
    batches = window("a", batch_bytes=3, deadline_s=5)
    batches.add(one("b", 9), 0.0)
    assert names(batches.expire(5)) == [("a", False)]
    assert (batches.epoch, state(batches)) == (0, [("b", None, False)])
    batches.add(one("c", 9, size=2), 0.0)
    assert state(batches) == [("bc", None, False)], "its room is there again"


def fixed(*names: str, sent: int = 0, deadline_s: float = 100.0) -> FixedWindow[None]:
    made: FixedWindow[None] = FixedWindow(batches_max=10, bytes_max=100, epoch=6)
    for name in names:
        made.add(one(name, deadline_s), 0.0)
    send(made, sent)
    return made


def test_numbers_that_are_somebodys_own_are_those_of_the_sends_and_stay_through_whatever_passes() -> None:
    batches = fixed("a", "b", "c", sent=2)
    assert refuse(batches, "passes") == ""
    assert (batches.epoch, state(batches)) == (6, [("a", 0, False), ("b", 1, True), ("c", None, False)])
    batches.interrupted()
    assert (send(batches, 3), batches.epoch, batches.over) == ([0, 1, 2], 6, False)


@pytest.mark.parametrize("kind", ["order", "forgotten", "content"])
@pytest.mark.parametrize("maybe_written", [False, True])
def test_with_what_fails_for_good_under_such_a_number_all_behind_it_fails(kind: str, *, maybe_written: bool) -> None:
    batches = fixed("a", "b", "c", sent=2)
    assert names(batches.refused(**told(kind, maybe_written=maybe_written))) == [
        ("a", maybe_written),
        ("b", True),
        ("c", False),
    ]
    assert (batches.over, len(batches)) == (True, 0)


def test_with_what_is_out_of_time_all_behind_it_fails() -> None:
    batches = fixed("a", "b", sent=1, deadline_s=5)
    assert (batches.expire(4.9), batches.over) == ([], False)
    assert names(batches.expire(5)) == [("a", True), ("b", False)]
    assert batches.over
    assert batches.epoch != 6, "the stream is left: its answers are of batches that are here no more"


def test_a_window_that_is_failed_as_a_whole_is_over() -> None:
    batches = fixed("a", "b", sent=1)
    assert (names(batches.fail_all()), batches.over) == ([("a", True), ("b", False)], True)


def test_nothing_expires_before_what_was_added_earlier() -> None:
    batches = window("a", deadline_s=3)
    for name, deadline_s in (("b", 9), ("c", 5)):
        batches.add(one(name, deadline_s), 0.0)
    assert names(batches.expire(6)) == [("a", False)]
    assert state(batches) == [("b", None, False), ("c", None, False)]
    send(batches, 1)
    batches.acknowledged()
    assert batches.expire(6) == [], "c has the time of b, which was before it"
    assert names(batches.expire(9)) == [("c", False)]


def test_what_is_answered_gives_its_bytes_back() -> None:
    batches: Window[None] = Window(batches_max=10, bytes_max=100, batch_bytes=0)
    batches.add(one("a", size=60), 0.0)
    send(batches, 1)
    batches.acknowledged()
    batches.add(one("b", size=30), 0.0)
    assert batches.has_room(one("c", size=70))
    assert not batches.has_room(one("c", size=71))


def test_a_batch_that_has_lost_expired_sends_still_knows_how_full_it_is() -> None:
    batches: Window[None] = Window(batches_max=10, bytes_max=100, batch_bytes=4)
    for name, deadline_s in (("a", 5.0), ("b", 9.0), ("c", 9.0)):
        batches.add(one(name, deadline_s), 0.0)
    assert names(batches.expire(5)) == [("a", False)]
    for name in "def":
        batches.add(one(name), 6.0)
    assert state(batches) == [("bcde", None, False), ("f", None, False)]
