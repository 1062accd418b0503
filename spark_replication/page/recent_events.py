"""Remembers for a moment what viewers ask for, such as events: twenty pages that show the same events ask once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from spark_replication.errors import ReplicationError
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent
from spark_replication.page.answers import Age, Events
from spark_replication.page.asking import Cluster
from spark_replication.process.threads import now_ms

FRESH_S = 1.0
SHARE_MAX = 0.1  # the share of time that repeating one question may take
REMEMBERED_MAX = 64  # questions
ASKED_AT_ONCE_MAX = 2  # each reads a table
TURN_S = 2.0


Asked = TypeVar("Asked", bound=Hashable)
Answer = TypeVar("Answer")


class Remembered(Generic[Asked, Answer]):
    """Thread-safe. While a question has no new answer, its last one is returned, with its age and the error."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turns = threading.BoundedSemaphore(ASKED_AT_ONCE_MAX)
        self._lock = threading.Lock()  # guards what follows
        #: The answer to each question, after the time until which it is fresh.
        self._found: OrderedDict[Asked, tuple[float, Answer]] = OrderedDict()

    def asked(self, asked: Asked) -> Answer:
        """The answer of the cluster. Raises ReplicationError if there is none."""
        raise NotImplementedError

    def failed(self, known: Answer | None, why: str) -> Answer:
        """What is answered in its place. known: the last answer, if there was one."""
        raise NotImplementedError

    def about(self, asked: Asked) -> Answer:
        known = self._known(asked)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        if not self._turns.acquire(timeout=TURN_S):
            return self._failed(known, "others are asking for this: wait a moment")
        try:
            known = self._known(asked)  # whoever had the turn before may have asked the same
            if known is not None and time.monotonic() < known[0]:
                return known[1]
            began_s = time.monotonic()
            found = self.asked(asked)
            fresh_s = max(FRESH_S, (time.monotonic() - began_s) / SHARE_MAX)
        except ReplicationError as error:
            found, fresh_s = self._failed(known, str(error)), FRESH_S
        finally:
            self._turns.release()
        self._remember(asked, found, time.monotonic() + fresh_s)
        return found

    def _known(self, asked: Asked) -> tuple[float, Answer] | None:
        with self._lock:
            return self._found.get(asked)

    def _remember(self, asked: Asked, found: Answer, until_s: float) -> None:
        with self._lock:
            self._found[asked] = (until_s, found)
            self._found.move_to_end(asked)
            while len(self._found) > REMEMBERED_MAX:
                self._found.popitem(last=False)

    def _failed(self, known: tuple[float, Answer] | None, why: str) -> Answer:
        return self.failed(None if known is None else known[1], why)


class RecentEvents(Remembered[DescribeEvents, Events]):
    def asked(self, asked: DescribeEvents) -> Events:
        found: list[ToldEvent] = self._cluster.events(
            partitions=[str(partition) for partition in asked.partitions],
            topics=asked.topics,
            brokers=asked.brokers,
            cause=asked.cause,
            last=asked.last,
        )
        return Events(events=tuple(found), age=Age(as_of_ms=now_ms()))

    def failed(self, known: Events | None, why: str) -> Events:
        if known is None:
            return Events(events=(), age=Age(error=why))
        return Events(events=known.events, age=Age(as_of_ms=known.age.as_of_ms, error=why))
