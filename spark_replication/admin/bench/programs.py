"""Programs of the load, each a process of its own. One prints `ready` once it has begun. Then it does what each line of
its input asks for and prints a line about it, or it goes on until its input ends.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import msgspec

from spark_replication.admin.bench.load import cpu_s_of
from spark_replication.admin.bench.replicate import Progress
from spark_replication.admin.bench.side import Rows, Side
from spark_replication.errors import ReplicationError, RequestTimedOut

TIMEOUT_S = 600.0
#: Java compiles its code meanwhile: Kafka is slower by half before.
WARM_UP_ROWS = 1_000_000
STEADY_ROUNDS = 3
STEADY = 1.1


class Round(NamedTuple):
    """What programs did that were asked for the same at the same time."""

    printed: list[str]
    #: Processor time.
    brokers_s: float
    clients_s: float


class Programs:
    """Use `kept`."""

    def __init__(self, side: Side, running: Sequence[subprocess.Popen[str]]) -> None:
        self._side = side
        self._running = running

    def ask(self, line: str) -> Round:
        brokers_s, clients_s = self._used_s()
        for each in self._running:
            _tell(each, line)
        printed = [_answer(each) for each in self._running]
        brokers_after_s, clients_after_s = self._used_s()
        return Round(printed, brokers_after_s - brokers_s, clients_after_s - clients_s)

    def _used_s(self) -> tuple[float, float]:
        return cpu_s_of(self._side.pids), cpu_s_of(tuple(each.pid for each in self._running))


@contextmanager
def kept(side: Side, command: Sequence[str], times: int = 1) -> Iterator[Programs]:
    """This program so many times, ready to be asked. It does not outlive the block."""
    with ExitStack() as running:
        yield Programs(side, [running.enter_context(ready(command)) for _ in range(times)])


def warm_up(rows: int, rate: Callable[[], float], within_s: float, what: str, progress: Progress) -> None:
    """Have rounds of so many rows, which `rate` runs, until all that runs is warm: WARM_UP_ROWS at least, and rates
    that are steady. It says so if they are not after `within_s`."""
    began_s = time.monotonic()
    rates: list[float] = []
    while time.monotonic() - began_s < within_s:
        rates.append(rate())
        last = rates[-STEADY_ROUNDS:]
        is_steady = len(last) == STEADY_ROUNDS and max(last) < STEADY * min(last)
        if is_steady and len(rates) * rows >= WARM_UP_ROWS:
            progress(
                f"{what}: warm after {len(rates) * rows:,} rows, {rates[0]:.0f} MB/s at first, {rates[-1]:.0f} now"
            )
            return
    if rates:
        seen = ", ".join(f"{each:.0f}" for each in rates)
        progress(f"{what}: not steady after {len(rates) * rows:,} rows and {within_s:.0f} s: {seen} MB/s")


def produced_mb_per_s(found: Round, of: Rows, batches: int) -> float:
    """The rates of producers that sent so many batches each, added up."""
    sent_bytes = batches * of.rows_a_batch * of.row_bytes
    return sum(sent_bytes / int(took_ns) * 1e3 for took_ns in found.printed)


def send(side: Side, topic: str, of: Rows, batches: int) -> None:
    """Have so many batches in the topic."""
    with kept(side, side.producer(topic, of)) as program:
        program.ask(str(batches))


def decoded_ns(found: Round) -> list[int]:
    (printed,) = found.printed
    return msgspec.json.decode(printed, type=list[int])


@contextmanager
def ready(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The program, once it has printed `ready`. It does not outlive the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            assert program.stdout is not None
            if program.stdout.readline() != "ready\n":
                raise ReplicationError(f"a program of the load did not begin: {ended(program)}")
            yield program
        finally:
            program.kill()


def ended(process: subprocess.Popen[str], told: str | None = None) -> str:
    """What the program prints until it has ended. told: what it reads meanwhile."""
    try:
        printed, said = process.communicate(told, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RequestTimedOut(f"a program of the load did not end within {TIMEOUT_S:.0f} s") from error
    if process.returncode != 0:
        raise ReplicationError(
            f"a program of the load ended with exit code {process.returncode}: {printed[-500:]}{said[-1_500:]}"
        )
    return printed


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
    raise ReplicationError(f"a program of the load ended when it was asked: {ended(process)}")
