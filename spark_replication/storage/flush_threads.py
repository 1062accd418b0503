"""Where logs are flushed: a few threads that wait for the disk, so that nobody who holds a guard does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from spark_replication.errors import StorageFailed
from spark_replication.ports import Flush

Ended = Callable[[StorageFailed | None], None]


class FlushThreads:
    """ports.Flusher. What waits here is bounded by the number of logs: each has one flush at a time."""

    def __init__(self, threads: int) -> None:
        self._waiting: queue.SimpleQueue[tuple[Flush, Ended] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name="flush", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def flush(self, flush: Flush, ended: Ended) -> None:
        self._waiting.put((flush, ended))

    def close(self) -> None:
        """After all that was asked for. Not under a guard: those that end take theirs."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (asked := self._waiting.get()) is not None:
            flush, ended = asked
            ended(failure(flush))


class FlushAtOnce:
    """ports.Flusher without a thread, for who has but one."""

    def flush(self, flush: Flush, ended: Ended) -> None:
        ended(failure(flush))


def failure(flush: Flush) -> StorageFailed | None:
    """Perform it: why it failed, or None."""
    try:
        flush.perform()
    except StorageFailed as failed:
        return failed
    return None
