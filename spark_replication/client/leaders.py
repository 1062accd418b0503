"""Finds the leaders that a producer's senders wait for.

One thread asks, however many partitions wait: one answer tells of all of them. Whoever begins to wait while it asks is
told after the next answer.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from spark_replication.client.deadline import Deadline
from spark_replication.client.routes import Routes
from spark_replication.core.routing import Route
from spark_replication.errors import BrokerNotAvailable, ReplicationError, mistake
from spark_replication.model import TopicPartition

# After a round that took so long, the thread rests for so many times as long: decoding the routes to thousands of
# partitions takes processors that brokers need to elect leaders. A broker that does not answer is no reason to rest.
REST, REST_S_MAX = 2, 0.2

# How much of the time that a batch has left may be spent with asking: so the reason is known when its time is over.
SHARE_OF_TIME = 0.9
ASK_MS_MIN = 50


class Seeker(Protocol):
    partition: TopicPartition

    def found(self, route: Route | ReplicationError) -> None:
        """Take the route that a broker told of, or the reason why there is none."""


class Leaders:
    """Thread-safe."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, Seeker]] = []
        self._asking: threading.Thread | None = None
        self._closed = False

    def ask(self, seeker: Seeker, by_s: float) -> None:
        """Have the seeker told of its leader, on the asking thread, soon and by this time. Raises BrokerNotAvailable if
        nobody can ask."""
        with self._changed:
            if self._asking is None:
                asking = threading.Thread(target=self._ask, name="producer-asks", daemon=True)
                try:
                    asking.start()
                except RuntimeError as error:  # the process may have no more threads
                    raise BrokerNotAvailable(f"no thread to ask for a leader: {error}") from error
                self._asking = asking
            self._waiting.append((by_s, seeker))
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Tell nobody any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            asking = self._asking
        if asking is not None:
            asking.join(timeout_s)

    def _ask(self) -> None:
        waiting: list[tuple[float, Seeker]] = []
        try:
            while waiting := self._take():
                began_s = time.monotonic()
                self._tell(waiting)
                rest_s = min(REST * (time.monotonic() - began_s), REST_S_MAX)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, rest_s)
        except BaseException as error:
            with self._changed:
                self._asking = None  # whoever asks next starts another thread
                untold, self._waiting = waiting + self._waiting, []
            for _, seeker in untold:
                seeker.found(mistake(error, "the search for a leader"))
            raise

    def _take(self) -> list[tuple[float, Seeker]]:
        """Wait for seekers. None of them: it was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            waiting, self._waiting = self._waiting, []
            return [] if self._closed else waiting

    def _tell(self, waiting: list[tuple[float, Seeker]]) -> None:
        """Leaves nobody in `waiting`."""
        left_s = min(by_s for by_s, _ in waiting) - time.monotonic()
        deadline = Deadline(max(ASK_MS_MIN, SHARE_OF_TIME * left_s * 1000))
        unasked: ReplicationError | None = None
        try:
            self._routes.renew([seeker.partition for _, seeker in waiting], deadline)
        except ReplicationError as error:
            unasked = error
        while waiting:
            _, seeker = waiting.pop()
            seeker.found(unasked or self._leader_of(seeker.partition))

    def _leader_of(self, partition: TopicPartition) -> Route | ReplicationError:
        try:
            return self._routes.latest(partition)
        except ReplicationError as error:
            return error
