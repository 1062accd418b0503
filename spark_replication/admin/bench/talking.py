"""How a program of the load talks to who has started it: it prints `ready` once it has begun. Then it answers each line
of its input, or it goes on until its input ends and prints what it has done.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import msgspec


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a program has done that went on beside a measurement."""

    bytes: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e6


#: Sets the first event once it has begun, and returns soon after the second one is set.
Lasting = Callable[[threading.Event, threading.Event], Done]


def answer(does: Callable[[str], str]) -> None:
    """Say `ready`, and then what `does` returns for each line of the input."""
    _say("ready")
    for line in sys.stdin:
        _say(does(line))


def last(does: Lasting) -> None:
    begun, ended = threading.Event(), threading.Event()
    threading.Thread(target=_talk, args=(begun, ended), daemon=True).start()
    _say(msgspec.json.encode(does(begun, ended)).decode())


def _talk(begun: threading.Event, ended: threading.Event) -> None:
    begun.wait()
    _say("ready")
    sys.stdin.read()
    ended.set()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
