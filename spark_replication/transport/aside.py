"""A few threads for work that may take long, or wait for a disk: they do it for a loop, and post the result to it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from spark_replication.transport.socket_loop import SocketLoop

Result = TypeVar("Result")


class Aside:
    """The queue is bounded: each partition has one fetch, one answer, and one batch of each producer in it at a time,
    and each reader one answer."""

    def __init__(self, loop: SocketLoop, threads: int, *, name: str) -> None:
        self._loop = loop
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def do(self, work: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """The loop calls `then` with the result. An exception of `work` is a mistake of this program."""

        def done() -> None:
            result = work()
            self._loop.post(lambda: then(result))

        self._asked.put(done)

    def stop(self, timeout_s: float) -> None:
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            work()
