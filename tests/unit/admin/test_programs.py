"""Programs of the load: what they are asked, what they answer and use, how they fail, and when they are warm."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from spark_replication.admin.bench import programs
from spark_replication.admin.bench.programs import WARM_UP_ROWS, ended, kept, ready, warm_up
from spark_replication.errors import ReplicationError, RequestTimedOut
from tests.unit.admin.test_sides import Idle


def python(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, time\n{text}"]


ECHO = python("print('ready', flush=True)\nfor line in sys.stdin: print('took', line, end='', flush=True)")


def test_each_program_answers_each_line() -> None:
    with kept(Idle("a"), ECHO, times=2) as both:
        assert both.ask("7").printed == ["took 7\n", "took 7\n"]
        assert both.ask("8").printed == ["took 8\n", "took 8\n"]


def test_a_round_has_the_processor_time_of_itself_alone() -> None:
    burn = "while time.process_time() < {}: pass"
    first, second = burn.format(0.5), burn.format("float(line)")
    program = python(
        f"{first}\nprint('ready', flush=True)\nfor line in sys.stdin:\n    {second}\n    print(flush=True)"
    )
    with kept(Idle("a"), program) as burning:
        assert burning.ask("0").clients_s < 0.2
        assert burning.ask("1").clients_s >= 0.3


def test_a_program_that_fails_is_quoted() -> None:
    with (
        kept(Idle("a"), python("print('ready', flush=True)\ninput()\nsys.exit('no leader')")) as failing,
        pytest.raises(ReplicationError, match=r"exit code 1: no leader"),
    ):
        failing.ask("7")


def test_a_program_that_has_ended_is_quoted_too() -> None:
    with kept(Idle("a"), python("print('ready', flush=True)\nsys.exit('no leader')")) as failed:
        os.waitid(os.P_PID, failed._running[0].pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ReplicationError, match=r"exit code 1: no leader"):
            failed.ask("7")


def test_a_program_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TIMEOUT_S", 1.0)
    with kept(Idle("a"), ["/bin/sh", "-c", "echo ready; exec sleep 60"]) as silent:
        with pytest.raises(RequestTimedOut, match="did not answer"):
            silent.ask("7")
        assert silent._running[0].wait() == -signal.SIGKILL


def test_a_program_that_goes_on_is_told_to_end_by_its_input() -> None:
    goes_on = "import sys\nprint('ready', flush=True)\nsys.stdin.read()\nprint('done')"
    with ready([sys.executable, "-c", goes_on]) as program:
        assert program.poll() is None
        assert ended(program, "") == "done\n"


def test_a_program_that_does_not_get_ready_is_quoted_and_one_that_is_left_alone_is_ended() -> None:
    with (
        pytest.raises(ReplicationError, match=r"exit code 1: no leader"),
        ready([sys.executable, "-c", "import sys; sys.exit('no leader')"]),
    ):
        pass
    with ready(["/bin/sh", "-c", "echo ready; exec sleep 60"]) as program:
        pass
    assert program.wait() == -signal.SIGKILL


class Rates:
    """What rounds measure, one after the other; the last one again and again."""

    def __init__(self, *rates: float) -> None:
        self._rates = rates
        self.rounds = 0

    def __call__(self) -> float:
        self.rounds += 1
        return self._rates[min(self.rounds, len(self._rates)) - 1]


@pytest.mark.parametrize(
    ("rates", "rows", "rounds"),
    [
        ((50.0,), WARM_UP_ROWS, 3),
        ((50.0,), WARM_UP_ROWS // 8, 8),
        ((20.0, 40.0, 50.0, 51.0, 52.0), WARM_UP_ROWS, 5),
        ((50.0, 50.0, 60.0, 70.0, 70.0, 70.0), WARM_UP_ROWS, 6),
    ],
)
def test_it_is_warm_once_three_rounds_are_alike_and_enough_rows_were_sent(
    rates: tuple[float, ...], rows: int, rounds: int
) -> None:
    told: list[str] = []
    rate = Rates(*rates)
    warm_up(rows, rate, 60.0, "a side", told.append)
    assert rate.rounds == rounds
    assert told == [f"a side: warm after {rows * rounds:,} rows, {rates[0]:.0f} MB/s at first, {rates[-1]:.0f} now"]


def test_what_does_not_get_steady_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    told: list[str] = []
    rate = Rates(10.0, 20.0, 40.0)
    warm_up(WARM_UP_ROWS, rate, 4.0, "a side", told.append)
    assert rate.rounds == 3
    assert told == [f"a side: not steady after {3 * WARM_UP_ROWS:,} rows and 4 s: 10, 20, 40 MB/s"]


def test_nothing_is_warmed_in_no_time() -> None:
    rate = Rates(10.0)
    warm_up(WARM_UP_ROWS, rate, 0.0, "a side", pytest.fail)
    assert rate.rounds == 0
