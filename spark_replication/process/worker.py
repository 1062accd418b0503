"""A thread whose owner can find out that it died of an error that nobody expected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


class Worker(threading.Thread):
    """Python tells of the error itself (threading.excepthook)."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._begun = self._ended = False

    def run(self) -> None:
        self._begun = True
        self._work()
        self._ended = True

    @property
    def died(self) -> bool:
        return self._begun and not self._ended and not self.is_alive()


def name_of_dead(workers: Iterable[Worker]) -> str:
    """Of one of them; empty if none has died."""
    return next((worker.name for worker in workers if worker.died), "")
