"""A thread whose owner can find out that it ended before it was to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


class Worker(threading.Thread):
    """Python tells of the error itself (threading.excepthook)."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._begun = self._stopped = False

    def run(self) -> None:
        self._begun = True
        self._work()

    def stop(self) -> None:
        """From now on it may end: whose work returns before that has died as well, of whatever let it return."""
        self._stopped = True

    @property
    def died(self) -> bool:
        return self._begun and not self._stopped and not self.is_alive()


def name_of_dead(workers: Iterable[Worker]) -> str:
    """Of one of them; empty if none has died."""
    return next((worker.name for worker in workers if worker.died), "")
