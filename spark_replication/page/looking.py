"""A question that is asked again and again, for as long as somebody wants to know, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from spark_replication.errors import ReplicationError
from spark_replication.page.answers import Age
from spark_replication.process.clock import now_ms

WANTED_S = 5.0  # since somebody wanted to know
# Of the time, what this thread may keep a processor for: the controller and brokers may have no other.
SHARE_MAX = 0.1
STOP_S = 0.5

log = logging.getLogger(__name__)


class Look:
    """ask: asks, and hands the answer on. told: called after each try, on this thread."""

    def __init__(self, name: str, ask: Callable[[], None], told: Callable[[], None], every_s: float) -> None:
        self._ask = ask
        self._told = told
        self._every_s = every_s
        self._changed = threading.Condition()  # guards everything below
        self._wanted_until_s = 0.0
        self._stopped = False
        self._age = Age()
        self._tries = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def stop(self) -> None:
        """A question under way is not waited for beyond STOP_S: its answer interests nobody."""
        self.end()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def want(self) -> None:
        with self._changed:
            is_asleep = time.monotonic() >= self._wanted_until_s
            self._wanted_until_s = time.monotonic() + WANTED_S
            if is_asleep:
                self._changed.notify_all()

    @property
    def age(self) -> Age:
        return self._age

    @property
    def tries(self) -> int:
        """How often it was asked, with or without an answer."""
        return self._tries

    def _run(self) -> None:
        while self._await_wanted():
            began_s, used_s = time.monotonic(), time.thread_time()
            self._age = self._asked()
            self._tries += 1
            self._told()
            used_s = time.thread_time() - used_s
            pause_s = max(self._every_s - (time.monotonic() - began_s), used_s * (1 / SHARE_MAX - 1))
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, pause_s)

    def _await_wanted(self) -> bool:
        """False: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or time.monotonic() < self._wanted_until_s)
            return not self._stopped

    def _asked(self) -> Age:
        try:
            self._ask()
        except ReplicationError as error:
            return Age(as_of_ms=self._age.as_of_ms, error=str(error))
        except Exception as error:
            # One answer that cannot be shown: whoever looks is told, and the next one may be another.
            log.exception("%s met an error that nobody expected: please report", self._thread.name)
            return Age(as_of_ms=self._age.as_of_ms, error=f"an error that nobody expected: {error!r}")
        return Age(as_of_ms=now_ms())
