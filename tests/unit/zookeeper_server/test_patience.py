"""When a server is taken to hang, how soon it is restarted, and when nobody needs it."""

from __future__ import annotations

import pytest

from spark_replication.zookeeper_server.patience import (
    HANG_S,
    RESTART_S,
    RESTART_S_MAX,
    STEADY_S,
    UNANSWERED_MAX,
    Backoff,
    Hang,
    Unused,
)


def unanswered(hang: Hang, *times_s: float, pid: int | None = 7) -> list[bool]:
    return [hang.asked(pid, answered=False, now_s=now_s) for now_s in times_s]


def test_it_hangs_after_so_many_questions_over_so_long() -> None:
    step_s = HANG_S / (UNANSWERED_MAX - 1)
    assert unanswered(Hang(), *(step_s * n for n in range(UNANSWERED_MAX))) == [False] * (UNANSWERED_MAX - 1) + [True]


def test_questions_in_quick_succession_are_not_enough() -> None:
    assert not any(unanswered(Hang(), *(0.01 * n for n in range(10 * UNANSWERED_MAX))))


def test_who_asks_and_was_itself_stopped_for_long_asks_on() -> None:
    assert unanswered(Hang(), 0, 1_000, 1_001) == [False] * 3


def test_an_answer_begins_the_count_anew() -> None:
    hang = Hang()
    times_s = [HANG_S * n for n in range(UNANSWERED_MAX - 1)]
    assert not any(unanswered(hang, *times_s))
    assert not hang.asked(7, answered=True, now_s=times_s[-1])
    assert not any(unanswered(hang, *times_s))


def test_another_process_begins_the_count_anew() -> None:
    hang = Hang()
    times_s = [HANG_S * n for n in range(UNANSWERED_MAX - 1)]
    assert not any(unanswered(hang, *times_s, pid=7))
    assert not any(unanswered(hang, *times_s, pid=8))


def test_the_first_restart_waits_for_nothing_and_each_next_one_twice_as_long() -> None:
    backoff, now_s, waited = Backoff(), 1_000.0, []
    for _ in range(10):
        began_s = now_s
        while not backoff.may_restart(now_s):
            now_s += RESTART_S / 2
        waited.append(now_s - began_s)
        backoff.restarted(now_s)
    assert waited == [min(RESTART_S * 2**n, RESTART_S_MAX) if n >= 0 else 0 for n in range(-1, 9)]


def test_only_steady_answers_make_the_next_end_the_first() -> None:
    backoff = Backoff()
    backoff.restarted(0)
    backoff.restarted(100)
    backoff.answered(100 + STEADY_S / 2)
    backoff.restarted(200)
    assert not backoff.may_restart(200 + 3 * RESTART_S)
    backoff.answered(200 + STEADY_S)
    backoff.restarted(300)
    assert not backoff.may_restart(300)
    assert backoff.may_restart(300 + RESTART_S)


@pytest.mark.parametrize(("unused_s", "ends"), [(10.0, [False, False, True]), (0.0, [False, False, False])])
def test_what_nobody_needs_ends_after_a_while_or_never(unused_s: float, ends: list[bool]) -> None:
    nobody = Unused(0.0)
    assert not nobody.looked(unused_s, is_needed=True, now_s=50.0)
    assert [nobody.looked(unused_s, is_needed=False, now_s=now_s) for now_s in (50.0, 59.9, 60.0)] == ends


def test_one_that_is_needed_again_has_all_its_time_again() -> None:
    nobody = Unused(0.0)
    assert not nobody.looked(10.0, is_needed=False, now_s=9.0)
    assert not nobody.looked(10.0, is_needed=True, now_s=9.5)
    assert not nobody.looked(10.0, is_needed=False, now_s=19.0)
    assert nobody.looked(10.0, is_needed=False, now_s=19.5)
