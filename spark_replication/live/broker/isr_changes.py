"""A leader's ISR changes on their way to ZooKeeper, counted by what became of them."""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.core.law.writes import IsrAnswer, IsrCommitted, IsrWrite
from spark_replication.ports import IsrStore


class CountedIsrChanges:
    """ports.IsrStore."""

    def __init__(self, store: IsrStore) -> None:
        self._store = store
        #: Stored changes by which a member left, or joined. Only the thread of ZooKeeper's answers counts.
        self.shrinks = self.expands = 0

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        def answered(answer: IsrAnswer) -> None:
            if isinstance(answer, IsrCommitted):
                self.shrinks += bool(write.leaving)
                self.expands += bool(write.joining)
            then(answer)

        self._store.change_isr(write, answered)
