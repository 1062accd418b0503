"""ZooKeeper's answers to a leader's ISR changes, given on a thread of the broker's.

ZooKeeper's client has one thread for the answers to everything that this broker asks: on it, a partition whose guard is
held over a slow disk would stop the registration, every reading, and all other partitions.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from threading import Thread
from typing import NamedTuple

from spark_replication.core.law.writes import IsrAnswer, IsrCommitted, IsrWrite
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.live.broker.patience import Patience
from spark_replication.model import TopicPartition
from spark_replication.ports import IsrStore

BUSY_S = 0.02  # so often it tries again to give what a busy partition did not take
STOP_S = 5.0

Guard = AbstractContextManager[object]


def guards_in(
    replicas: Callable[[], Mapping[TopicPartition, ReplicaLoop]],
) -> Callable[[TopicPartition], Guard | None]:
    def guard_of(partition: TopicPartition) -> Guard | None:
        replica = replicas().get(partition)
        return None if replica is None else replica.guard

    return guard_of


class _Answered(NamedTuple):
    write: IsrWrite
    then: Callable[[IsrAnswer], None]
    answer: IsrAnswer


class IsrAnswers:
    """ports.IsrStore. guard_of: of the partition's replica; None: there is none here any longer.

    A partition has one change in flight (I4), so their number bounds what waits here.
    shrinks, expands: the changes of this broker's that were stored, by which somebody left, or joined.
    """

    def __init__(self, store: IsrStore, guard_of: Callable[[TopicPartition], Guard | None]) -> None:
        self._store = store
        self._guard_of = guard_of
        self.shrinks = self.expands = 0
        self._answered: queue.SimpleQueue[_Answered | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._run, name="isr-answers", daemon=True)
        self._thread.start()

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        self._store.change_isr(write, lambda answer: self._answered.put(_Answered(write, then, answer)))

    def close(self) -> None:
        """What has not been taken by then is for nobody."""
        self._answered.put(None)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        busy: deque[_Answered] = deque()
        while True:
            try:
                answered = self._answered.get(timeout=BUSY_S if busy else None)
                if answered is None:
                    return
                self._count(answered)
                busy.append(answered)
            except queue.Empty:
                pass
            for _ in range(len(busy)):
                each = busy.popleft()
                if not self._gave(each):
                    busy.append(each)

    def _count(self, answered: _Answered) -> None:
        if isinstance(answered.answer, IsrCommitted):
            self.shrinks += bool(answered.write.leaving)
            self.expands += bool(answered.write.joining)

    def _gave(self, answered: _Answered) -> bool:
        """False: something else holds the partition."""
        guard = self._guard_of(answered.write.partition)
        if guard is None:
            answered.then(answered.answer)
            return True
        with Patience(0).holds(guard) as held:
            if held:
                answered.then(answered.answer)
            return held
