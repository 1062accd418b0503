"""A few threads for work that may take long, or wait for a disk: they do it for a connection, and its loop gets what
came of it.

An error of the work that nobody expected is what came of it, unless a partition was in hand: that ends the process
(engine.replica.partition.is_half_done). An error of whoever gets it ends the connection.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from spark_replication.engine.replica.partition import is_half_done
from spark_replication.errors import ReplicationError, mistake
from spark_replication.process.logs import log_mistake
from spark_replication.transport.sockets.socket_loop import Connected, SocketLoop

Result = TypeVar("Result")

log = logging.getLogger(__name__)


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

    def of(self, connection: Connected) -> AsideOf:
        return AsideOf(self, connection)

    def do(
        self, connection: Connected, work: Callable[[], Result], then: Callable[[Result | ReplicationError], None]
    ) -> None:
        """The loop calls `then`, even if the connection has ended meanwhile: it has something to give back, perhaps."""

        def done() -> None:
            self._loop.post(partial(self._loop.perform, connection, partial(then, _came_of(work))))

        self._asked.put(done)

    def do_alone(self, work: Callable[[], Result], then: Callable[[Result | ReplicationError], None]) -> None:
        """For no connection."""
        self._asked.put(lambda: self._loop.post(partial(then, _came_of(work))))

    def stop(self, timeout_s: float) -> None:
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            work()


class AsideOf(NamedTuple):
    """An engine.ends.put_end.AsideThreads."""

    aside: Aside
    connection: Connected

    def do(self, work: Callable[[], Result], then: Callable[[Result | ReplicationError], None]) -> None:
        self.aside.do(self.connection, work, then)


def _came_of(work: Callable[[], Result]) -> Result | ReplicationError:
    try:
        return work()
    except ReplicationError as error:
        return error
    except Exception as error:
        if is_half_done(error):
            raise
        log_mistake(log, error, "work for a connection failed")
        return mistake(error, "work for this connection")
