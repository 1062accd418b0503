"""Notices when a Spark session can run nothing any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

LOOK_S = 1.0


class SparkWatch:
    """Asks why_gone() again and again, between `start` and `stop`. Once that returns a reason, it calls on_gone(reason)
    on its own thread, and ends."""

    def __init__(self, why_gone: Callable[[], str], on_gone: Callable[[str], None]) -> None:
        self._why_gone = why_gone
        self._on_gone = on_gone
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop asking, without waiting for an on_gone that is running."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            reason = self._why_gone()
            if reason and not self._stopping.is_set():
                self._on_gone(reason)
                return
