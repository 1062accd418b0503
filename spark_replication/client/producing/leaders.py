"""Finds the leaders that a producer's senders wait for, and what partitions its topics have gained.

One thread asks, however many partitions wait: one answer tells of all of them. Whoever begins to wait while it asks is
told after the next answer.

A key goes to another partition once its topic has more of them, and order by key holds only if all producers hear of
that soon. Nobody tells a producer, so the thread asks, once a second while the topic is written to: about its last
partition and the one that would be next. The answer is as small for a topic of a thousand partitions.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.core.routing import Route
from spark_replication.errors import BrokerNotAvailable, ReplicationError, mistake
from spark_replication.model import TopicPartition

# After a round that took so long, the thread rests for so many times as long: decoding the routes to thousands of
# partitions takes processors that brokers need to elect leaders. A broker that does not answer is no reason to rest.
REST, REST_S_MAX = 2, 0.2

# How much of the time that a batch has left may be spent with asking: so the reason is known when its time is over.
SHARE_OF_TIME = 0.9
WATCH_S = 1.0  # between two looks at a topic
WATCH_MS = 200  # how long one look may take: meanwhile nobody is told of a leader
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
        #: When each topic is looked at next, at the earliest.
        self._watched: dict[str, float] = {}
        self._looks: set[str] = set()
        self._asking: threading.Thread | None = None
        self._closed = False

    def ask(self, seeker: Seeker, by_s: float) -> None:
        """Have the seeker told of its leader, on the asking thread, soon and by this time. Raises BrokerNotAvailable if
        nobody can ask."""
        with self._changed:
            self._start()
            self._waiting.append((by_s, seeker))
            self._changed.notify()

    def watch(self, topic: str) -> None:
        """The topic is written to. Have a look at whether it has gained partitions, if the last look is a while ago."""
        now_s = time.monotonic()
        due_s = self._watched.get(topic)
        if due_s is not None and now_s < due_s:
            return
        with self._changed:
            self._watched[topic] = now_s + WATCH_S
            if due_s is None:
                return  # it was asked for just now
            with suppress(BrokerNotAvailable):  # without a thread nobody looks, and sends go on
                self._start()
                self._looks.add(topic)
                self._changed.notify()

    def _start(self) -> None:
        if self._asking is None:
            asking = threading.Thread(target=self._ask, name="producer-asks", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:  # the process may have no more threads
                raise BrokerNotAvailable(f"no thread to ask for a leader: {error}") from error
            self._asking = asking

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
            while True:
                waiting, looks = self._take()
                if not waiting and not looks:
                    return
                began_s = time.monotonic()
                if waiting:
                    self._tell(waiting)
                for topic in looks:
                    with suppress(ReplicationError):  # the next look may find more
                        self._routes.look_for_more(topic, Deadline(WATCH_MS))
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

    def _take(self) -> tuple[list[tuple[float, Seeker]], set[str]]:
        """Wait for seekers, and for topics to look at. None of them: it was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._looks or self._closed)
            waiting, self._waiting = self._waiting, []
            looks, self._looks = self._looks, set()
            return ([], set()) if self._closed else (waiting, looks)

    def _tell(self, waiting: list[tuple[float, Seeker]]) -> None:
        """Leave nobody in `waiting`."""
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
