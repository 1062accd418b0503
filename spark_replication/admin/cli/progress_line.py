"""The progress of a long command, on stderr: a line that is rewritten on a terminal, and now and then a line elsewhere.

A pipe or a file gets whole lines without control characters, ever fewer the longer a command takes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from spark_replication.process.logs import harmless

REWRITE_S = 0.1  # between two texts on a terminal
LINE_FIRST_S = 1.0  # before the first line elsewhere: a quick command has none
LINE_MAX_S = 60.0  # between two lines elsewhere; each wait is twice as long as the one before, up to this
WIDTH = 80  # of a terminal that does not tell its own


class ProgressLine:
    """A context manager. At its end the line is gone from the terminal, and what follows begins on an empty line."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._shown = 0  # characters that stand on the terminal
        self._interval_s = REWRITE_S if self._is_terminal else LINE_FIRST_S
        self._due_s = clock() if self._is_terminal else clock() + LINE_FIRST_S

    def tell(self, progress: object) -> None:
        """Show this progress, if it is time to. It becomes text only then, so telling often is cheap."""
        now_s = self._clock()
        if now_s < self._due_s:
            return
        text = harmless(str(progress))
        if self._is_terminal:
            self._rewrite(text)
        else:
            self._write(f"{text}\n")
            self._interval_s = min(2 * self._interval_s, LINE_MAX_S)
        self._due_s = now_s + self._interval_s

    def _rewrite(self, text: str) -> None:
        # A line that wraps could not be rewritten: the last column stays free, too.
        width = _width(self._stream) - 1
        text = text[:width]
        self._write(f"\r{text.ljust(min(self._shown, width))}")
        self._shown = len(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            self._write(f"\r{' ' * self._shown}\r")
            self._shown = 0


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH
    except OSError:
        return WIDTH
