"""A long command says how far it is: on a terminal in one line, elsewhere in a few."""

from __future__ import annotations

import io
import os
import pty
import select
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from spark_replication.admin.cli.progress_line import LINE_MAX_S, ProgressLine
from spark_replication.errors import NotReady

DEADLINE_S = 10.0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal:
    """columns: as somebody has set its window; 0: nobody has."""

    def __init__(self, columns: int) -> None:
        self._reads, writes = pty.openpty()
        termios.tcsetwinsize(writes, (24, columns))
        self.stream: TextIO = os.fdopen(writes, "w")

    def shows(self, expected: str) -> None:
        """Since it was asked last. A terminal hands on each write by itself, and a moment later."""
        shown = b""
        while len(shown) < len(expected) and select.select([self._reads], [], [], DEADLINE_S)[0]:
            shown += os.read(self._reads, 1 << 16)
        assert shown.decode() == expected

    def close(self) -> None:
        self.stream.close()
        os.close(self._reads)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    opened = Terminal(getattr(request, "param", 40))
    yield opened
    opened.close()


def test_on_a_terminal_one_line_is_rewritten_and_gone_at_the_end(terminal: Terminal, clock: Clock) -> None:
    with ProgressLine(terminal.stream, clock) as line:
        line.tell("9 of 10")
        terminal.shows("\r9 of 10")
        line.tell("too early")
        clock.now_s += 1
        line.tell("10/10")
        terminal.shows("\r10/10  ")  # nothing of the longer text is left
    terminal.shows("\r     \r")


def test_it_is_gone_before_an_error_is_told(terminal: Terminal, clock: Clock) -> None:
    def fail(line: ProgressLine) -> None:
        with line:
            line.tell("1")
            raise NotReady("starting")

    with pytest.raises(NotReady):
        fail(ProgressLine(terminal.stream, clock))
    terminal.shows("\r1\r \r")


@pytest.mark.parametrize(("terminal", "width"), [(10, 9), (0, 79)], indirect=["terminal"])
def test_a_text_that_would_wrap_is_cut(terminal: Terminal, width: int, clock: Clock) -> None:
    ProgressLine(terminal.stream, clock).tell("x" * 200)
    terminal.shows("\r" + "x" * width)


def test_what_would_steer_the_terminal_is_shown(terminal: Terminal, clock: Clock) -> None:
    ProgressLine(terminal.stream, clock).tell("a\x1bb\rc")
    terminal.shows("\r" + r"a\x1bb\x0dc")


def test_elsewhere_lines_become_rarer(clock: Clock) -> None:
    told = io.StringIO()
    with ProgressLine(told, clock) as line:
        for second in range(400):
            line.tell(second)
            clock.now_s += 1
    assert [int(text) for text in told.getvalue().splitlines()] == [1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]
    assert LINE_MAX_S == 60


def test_a_quick_command_says_nothing_elsewhere(clock: Clock) -> None:
    told = io.StringIO()
    with ProgressLine(told, clock) as line:
        line.tell("1 of 2")
    assert told.getvalue() == ""


def test_what_is_not_shown_becomes_no_text(clock: Clock) -> None:
    class Silent:
        def __str__(self) -> str:
            raise AssertionError("nobody sees it")

    ProgressLine(io.StringIO(), clock).tell(Silent())


def test_it_is_on_stderr(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(clock=clock)
    clock.now_s += 1
    line.tell("1 of 2")
    assert capsys.readouterr() == ("", "1 of 2\n")
