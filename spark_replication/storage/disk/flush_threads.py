"""Flushes logs on a few threads that wait for the disk, so that nobody who has a partition has to."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from spark_replication.errors import StorageFailed
from spark_replication.ports import Flush

CLOSE_TIMEOUT_S = 60.0  # what a healthy disk needs for all logs of a broker, many times over

Ended = Callable[[StorageFailed | None], None]


class FlushThreads:
    """A ports.Flusher. Its queue is bounded by the number of logs: each has one flush at a time."""

    def __init__(self, threads: int) -> None:
        self._waiting: queue.SimpleQueue[tuple[Flush, Ended] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name="flush", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def flush(self, flush: Flush, ended: Ended) -> None:
        self._waiting.put((flush, ended))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End the threads after all flushes that were asked for. The caller must have no partition. Returns False if a
        disk has not answered within `timeout_s`: then nobody knows what is on it."""
        for _ in self._threads:
            self._waiting.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (asked := self._waiting.get()) is not None:
            flush, ended = asked
            ended(failure(flush))


class FlushAtOnce:
    """A ports.Flusher without threads, for a process that has but one."""

    def flush(self, flush: Flush, ended: Ended) -> None:
        ended(failure(flush))


def failure(flush: Flush) -> StorageFailed | None:
    """Perform the flush. Returns why it failed, or None."""
    try:
        flush.perform()
    except StorageFailed as failed:
        return failed
    return None
