"""Runs a process's recurring actions on one thread, each at its own interval."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable

from spark_replication.errors import ReplicationError

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
