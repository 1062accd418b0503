"""Programs of the load, each a process of its own. One prints `ready` once it has begun, and then, for each line of its
input, a line about what it did for it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import msgspec

from spark_replication.admin.bench.probes import cpu_s_of
from spark_replication.admin.bench.side import Target
from spark_replication.errors import ReplicationError, RequestTimedOut

TIMEOUT_S = 600.0


class Used(NamedTuple):
    """What programs did that were asked for the same at the same time, and the processor time of that."""

    #: Of each.
    took_ns: list[list[int]]
    brokers_s: float
    clients_s: float


class Programs:
    """Use `kept`."""

    def __init__(self, side: Target, running: Sequence[subprocess.Popen[str]]) -> None:
        self._side = side
        self._running = running

    def ask(self, line: str) -> list[list[int]]:
        """What each of them took."""
        for each in self._running:
            _tell(each, line)
        return [msgspec.json.decode(_answer(each), type=list[int]) for each in self._running]

    def used(self, line: str) -> Used:
        brokers_s, clients_s = self._used_s()
        took_ns = self.ask(line)
        brokers_after_s, clients_after_s = self._used_s()
        return Used(took_ns, brokers_after_s - brokers_s, clients_after_s - clients_s)

    def _used_s(self) -> tuple[float, float]:
        return cpu_s_of(self._side.pids), cpu_s_of(each.pid for each in self._running)


@contextmanager
def kept(side: Target, command: Sequence[str], times: int = 1) -> Iterator[Programs]:
    """This program so many times, ready to be asked. It does not outlive the block."""
    with ExitStack() as running:
        yield Programs(side, [running.enter_context(_ready(command)) for _ in range(times)])


def command_of(module: str, work: msgspec.Struct) -> list[str]:
    return [sys.executable, "-m", module, msgspec.json.encode(work).decode()]


def answer(does: Callable[[list[str]], list[int]]) -> None:
    """The whole life of a program: it says `ready`, and then what `does` returns for the words of each line."""
    _say("ready")
    for line in sys.stdin:
        _say(msgspec.json.encode(does(line.split())).decode())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def _ready(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            assert program.stdout is not None
            if program.stdout.readline() != "ready\n":
                raise ReplicationError(f"a program of the load did not begin: {_ended(program)}")
            yield program
        finally:
            program.kill()


def _ended(process: subprocess.Popen[str]) -> str:
    """How a program ended that should not have."""
    try:
        printed, said = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RequestTimedOut(f"a program of the load did not end within {TIMEOUT_S:.0f} s") from error
    return f"it ended with exit code {process.returncode}: {printed[-500:]}{said[-1_500:]}"


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # then it has ended: its answer tells how
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    until_s = time.monotonic() + TIMEOUT_S
    giving_up = threading.Timer(TIMEOUT_S, process.kill)
    giving_up.start()
    try:
        line = process.stdout.readline()
    finally:
        giving_up.cancel()
    if line:
        return line
    if time.monotonic() >= until_s:
        raise RequestTimedOut(f"a program of the load did not answer within {TIMEOUT_S:.0f} s")
    raise ReplicationError(f"a program of the load was asked and did not answer: {_ended(process)}")
