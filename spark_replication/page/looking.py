"""A question that a thread of its own repeats for as long as somebody wants to know, or seldom from then on."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from spark_replication.errors import ReplicationError
from spark_replication.page.answers import Age
from spark_replication.process.threads import now_ms

WANTED_S = 5.0  # how long a question is repeated after somebody wanted to know
# The share of time for which this thread may occupy a processor: the controller and brokers may have no other.
SHARE_MAX = 0.1
STOP_S = 0.5

log = logging.getLogger(__name__)


class Poller:
    def __init__(
        self,
        name: str,
        ask: Callable[[], None],
        told: Callable[[], None],
        every_s: float,
        *,
        seldom_s: float | None = None,
    ) -> None:
        """seldom_s: how often it is asked once nobody wants to know any longer. None: not at all."""
        #: Ask once, and hand the answer on.
        self._ask = ask
        #: Called after each try, on this thread.
        self._told = told
        self._every_s = every_s
        self._seldom_s = seldom_s
        self._changed = threading.Condition()  # guards everything below
        self._wanted_until_s = 0.0
        #: When the next of the seldom questions is due. From the first `want` on there is one.
        self._seldom_at_s = math.inf
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
        """Stop. A question under way is waited for at most STOP_S: nobody needs its answer."""
        self.end()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def want(self) -> None:
        with self._changed:
            is_asleep = time.monotonic() >= self._wanted_until_s
            self._wanted_until_s = time.monotonic() + WANTED_S
            if self._seldom_s is not None and self._seldom_at_s == math.inf:
                self._seldom_at_s = time.monotonic()
            if is_asleep:
                self._changed.notify_all()

    @property
    def age(self) -> Age:
        return self._age

    @property
    def tries(self) -> int:
        """How often the question was asked, with or without an answer."""
        return self._tries

    def _run(self) -> None:
        while self._await_turn():
            began_s, used_s = time.monotonic(), time.thread_time()
            self._age = self._asked()
            self._tries += 1
            self._told()
            used_s = time.thread_time() - used_s
            pause_s = max(self._every_s - (time.monotonic() - began_s), used_s * (1 / SHARE_MAX - 1))
            with self._changed:
                if self._seldom_s is not None:
                    self._seldom_at_s = began_s + self._seldom_s
                self._changed.wait_for(lambda: self._stopped, pause_s)

    def _await_turn(self) -> bool:
        """Wait until somebody wants to know, or until the next of the seldom questions. False if this thread is to
        end."""
        with self._changed:
            left_s = max(0.0, self._seldom_at_s - time.monotonic())
            self._changed.wait_for(self._is_turn, None if left_s == math.inf else left_s)
            return not self._stopped

    def _is_turn(self) -> bool:
        now_s = time.monotonic()
        return self._stopped or now_s < self._wanted_until_s or now_s >= self._seldom_at_s

    def _asked(self) -> Age:
        try:
            self._ask()
        except ReplicationError as error:
            return Age(as_of_ms=self._age.as_of_ms, error=str(error))
        except Exception as error:
            # One answer cannot be shown. The viewer is told why, and the next answer may do.
            log.exception("%s met an error that nobody expected: please report", self._thread.name)
            return Age(as_of_ms=self._age.as_of_ms, error=f"an error that nobody expected: {error!r}")
        return Age(as_of_ms=now_ms())
