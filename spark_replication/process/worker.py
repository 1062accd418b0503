"""A thread whose owner can find out that it ended too early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


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
