"""Threads: one that takes work in turn, timers, and what they cost this process."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable

from spark_replication.errors import ReplicationError

# The clock of a process: the time of day at its start, moved on by a clock that never jumps.
#
# Records get their timestamps from it, and lag is measured by it. Otherwise, if somebody set the time of day, followers
# would leave the ISR, or never would.

_OFFSET_NS = time.time_ns() - time.monotonic_ns()


def now_ms() -> int:
    return (time.monotonic_ns() + _OFFSET_NS) // 1_000_000


# How busy this process is. A busy process sends less often, and more at a time: a busy broker is limited by threads
# that wake each other, here and at its peers.

BUSY_CORES = 0.6  # CPU use from which on the process counts as busy; the GIL limits it to little more than 1
LOOK_S = 0.05


class Load:
    """The load of this process. Threads that share one may measure once more than they must."""

    def __init__(self) -> None:
        self._looked_s, self._used_s = time.monotonic(), time.process_time()
        self._busy = False

    @property
    def is_busy(self) -> bool:
        """Whether the process is busy, as last measured."""
        now_s = time.monotonic()
        took_s = now_s - self._looked_s
        if took_s >= LOOK_S:
            used_s = time.process_time()
            self._busy = used_s - self._used_s >= BUSY_CORES * took_s
            self._looked_s, self._used_s = now_s, used_s
        return self._busy


# A thread whose owner can find out that it ended too early.


class Worker(threading.Thread):
    """A thread that may die. Python reports the error itself (threading.excepthook)."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._begun = self._stopped = False

    def run(self) -> None:
        self._begun = True
        self._work()

    def stop(self) -> None:
        """Allow the thread to end. If its work returns before that, the thread has died as well, whatever made it
        return."""
        self._stopped = True

    @property
    def died(self) -> bool:
        return self._begun and not self._stopped and not self.is_alive()


def name_of_dead(workers: Iterable[Worker]) -> str:
    """The name of a worker that has died; empty if none has."""
    return next((worker.name for worker in workers if worker.died), "")


# Runs a process's recurring actions on one thread, each at its own interval.

STOP_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class Timers:
    """An action that takes long delays the others: give it a Timers of its own."""

    def __init__(self, name: str) -> None:
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Add an action. Only before `start`."""
        heapq.heappush(self._due, (time.monotonic() + interval_s, len(self._due), interval_s, action))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while self._due and not self._stopped.wait(max(0.0, self._due[0][0] - time.monotonic())):
            _, number, interval_s, action = self._due[0]
            try:
                action()
            except ReplicationError as error:
                log.warning("%s: %s", getattr(action, "__name__", action), error)
            heapq.heapreplace(self._due, (time.monotonic() + interval_s, number, interval_s, action))
