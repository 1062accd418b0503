"""Programs of the load: what they are asked, what they answer and use, and how they fail."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from spark_replication.admin.bench import programs
from spark_replication.admin.bench.programs import kept
from spark_replication.errors import ReplicationError, RequestTimedOut
from tests.unit.admin.test_bench_traffic import Asked


def python(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, time\n{text}"]


SIDE = Asked(Path("nothing"))
ECHO = python("print('ready', flush=True)\nfor line in sys.stdin: print([int(line)], flush=True)")


def test_each_program_answers_each_line() -> None:
    with kept(SIDE, ECHO, times=2) as both:
        assert both.ask("7") == [[7], [7]]
        assert both.used("8").took_ns == [[8], [8]]


@pytest.mark.slow
def test_a_round_has_the_processor_time_of_itself_alone() -> None:
    burn = "while time.process_time() < {}: pass"
    first, second = burn.format(0.5), burn.format("float(line)")
    program = python(
        f"{first}\nprint('ready', flush=True)\nfor line in sys.stdin:\n    {second}\n    print([0], flush=True)"
    )
    with kept(SIDE, program) as burning:
        assert burning.used("0").clients_s < 0.2
        assert burning.used("1").clients_s >= 0.3


def test_a_program_that_fails_is_quoted() -> None:
    with (
        kept(SIDE, python("print('ready', flush=True)\ninput()\nsys.exit('no leader')")) as failing,
        pytest.raises(ReplicationError, match=r"exit code 1: no leader"),
    ):
        failing.ask("7")


def test_a_program_that_has_ended_is_quoted_too() -> None:
    with kept(SIDE, python("print('ready', flush=True)\nsys.exit('no leader')")) as failed:
        os.waitid(os.P_PID, failed._running[0].pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ReplicationError, match=r"exit code 1: no leader"):
            failed.ask("7")


def test_a_program_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TIMEOUT_S", 1.0)
    with kept(SIDE, ["/bin/sh", "-c", "echo ready; exec sleep 60"]) as silent:
        with pytest.raises(RequestTimedOut, match="did not answer"):
            silent.ask("7")
        assert silent._running[0].wait() == -signal.SIGKILL


def test_a_program_that_does_not_get_ready_is_quoted_and_one_that_is_left_alone_is_ended() -> None:
    with (
        pytest.raises(ReplicationError, match=r"exit code 1: no leader"),
        kept(SIDE, [sys.executable, "-c", "import sys; sys.exit('no leader')"]),
    ):
        pass
    with kept(SIDE, ["/bin/sh", "-c", "echo ready; exec sleep 60"]) as left:
        pass
    assert left._running[0].wait() == -signal.SIGKILL
