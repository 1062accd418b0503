"""The load of a measurement: the same batch again and again, as fast as answers come, or so many a second.

A Target takes the load. Two targets that are measured by the same code can be compared.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from spark_replication.errors import ReplicationError, RequestTimedOut

IN_FLIGHT_BYTES = 16 << 20
IN_FLIGHT_BATCHES_MAX = 2_000
ANSWERS_TIMEOUT_S = 60.0
WARM_UP_SHARE = 0.25  # of a measurement's time, spent before it begins
_TICKS_PER_S = 100.0  # of /proc/<pid>/stat: Linux shows hundredths of seconds, whatever its clock


class Target(Protocol):
    """Takes batches on several streams, and reports when each is acknowledged."""

    streams: int
    batch_bytes: int
    pids: tuple[int, ...]  # the processes that serve it

    def begin(self, answers: AnswerReader) -> None: ...
    def send(self, stream: int) -> None: ...
    def close(self) -> None: ...


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    mb_per_s: float
    cpu_s_per_gb: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class AnswerReader:
    """Counts the batches in flight. A stream's answers come in the order of its batches."""

    def __init__(self, streams: int) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._sent_s: list[deque[float]] = [deque() for _ in range(streams)]
        self._in_flight = 0
        self._waits_below = 0
        self._answered = 0
        self._error: ReplicationError | None = None
        self.latencies_s: list[float] = []

    @property
    def answered(self) -> int:
        return self._answered

    def sent(self, stream: int, at_s: float) -> None:
        with self._changed:
            self._sent_s[stream].append(at_s)
            self._in_flight += 1

    def came(self, stream: int, count: int) -> None:
        now_s = time.perf_counter()
        with self._changed:
            for _ in range(count):
                self.latencies_s.append(now_s - self._sent_s[stream].popleft())
            self._in_flight -= count
            self._answered += count
            if self._in_flight < self._waits_below:
                self._changed.notify()

    def failed(self, error: ReplicationError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify()

    def wait_below(self, in_flight: int) -> None:
        """Wait until fewer than so many batches are in flight."""
        with self._changed:
            self._waits_below = in_flight
            while self._in_flight >= in_flight and self._error is None:
                if not self._changed.wait(ANSWERS_TIMEOUT_S):
                    raise RequestTimedOut(f"{self._in_flight} batches have no answer after {ANSWERS_TIMEOUT_S} s")
            self._waits_below = 0
            if self._error is not None:
                raise self._error


def fill(target: Target, batches: int) -> None:
    """Send so many batches over the target's streams in turn, until all are acknowledged."""
    answers = AnswerReader(target.streams)
    target.begin(answers)
    window = _window(target)
    for number in range(batches):
        answers.wait_below(window)
        _send(target, answers, number, time.perf_counter())
    answers.wait_below(1)


def rate(target: Target, seconds: float) -> Rate:
    """Send as fast as possible until all is acknowledged, with so much in flight that nobody waits for the client."""
    answers = AnswerReader(target.streams)
    target.begin(answers)
    window = _window(target)
    _once_each(target, answers)
    number = _send_for(target, answers, window, seconds * WARM_UP_SHARE, 0)
    answered, cpu_s, start_s = answers.answered, _cpu_s(target), time.perf_counter()
    _send_for(target, answers, window, seconds, number)
    answers.wait_below(1)
    took_s = time.perf_counter() - start_s
    moved = (answers.answered - answered) * target.batch_bytes
    used_s = _cpu_s(target) - cpu_s
    return Rate(mb_per_s=moved / took_s / 1e6, cpu_s_per_gb=used_s / moved * 1e9)


def _once_each(target: Target, answers: AnswerReader) -> None:
    """Send a batch on each stream, unmeasured: the first batch of a stream makes files."""
    for stream in range(target.streams):
        _send(target, answers, stream, time.perf_counter())
    answers.wait_below(1)


def _send_for(target: Target, answers: AnswerReader, window: int, seconds: float, number: int) -> int:
    end_s = time.perf_counter() + seconds
    while (now_s := time.perf_counter()) < end_s:
        answers.wait_below(window)
        _send(target, answers, number, now_s)
        number += 1
    return number


def _window(target: Target) -> int:
    """How many batches may be in flight."""
    return max(1, min(IN_FLIGHT_BATCHES_MAX, IN_FLIGHT_BYTES // target.batch_bytes))


def _send(target: Target, answers: AnswerReader, number: int, at_s: float) -> None:
    """Send a batch on the stream whose turn it is."""
    stream = number % target.streams
    answers.sent(stream, at_s)
    target.send(stream)


def latency(target: Target, seconds: float, batches_per_s: int) -> Latency:
    """Measure from when a batch was due until its answer, so that one batch's wait counts for those behind it, too."""
    answers = AnswerReader(target.streams)
    target.begin(answers)
    first_s = time.perf_counter()
    warm_up = int(seconds * WARM_UP_SHARE * batches_per_s)
    for number in range(warm_up + int(seconds * batches_per_s)):
        due_s = first_s + number / batches_per_s
        time.sleep(max(0.0, due_s - time.perf_counter()))
        _send(target, answers, number, due_s)
    answers.wait_below(1)
    return percentiles(answers.latencies_s[warm_up:])


def percentiles(latencies_s: Sequence[float]) -> Latency:
    thousandths = statistics.quantiles(latencies_s, n=1_000, method="inclusive")
    return Latency(
        p50_ms=round(1_000 * thousandths[499], 2),
        p99_ms=round(1_000 * thousandths[989], 2),
        p999_ms=round(1_000 * thousandths[998], 2),
        max_ms=round(1_000 * max(latencies_s), 2),
    )


def _cpu_s(target: Target) -> float:
    """The CPU time of the processes that serve, and of the client, which is this process."""
    return time.process_time() + cpu_s_of(target.pids)


def cpu_s_of(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        # The program's name, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return total
