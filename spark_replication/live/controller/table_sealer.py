"""Seals topics' tables for a controller (TB5): engine.controller.table_seal, by delta-rs, on threads of its own.

A store that does not answer holds up a thread for as long as it is waited for; the controller never waits. What a
thread says after its candidacy is over is true all the same, and nobody waits for it.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from typing import NamedTuple

from spark_replication.core.controller.events import TableAnswered
from spark_replication.engine.controller.table_seal import LoadForSeal, SealStep, SealTable, TableSeal, TakeOverTable
from spark_replication.errors import ReplicationError, TableChanged
from spark_replication.model import Epoch, PartitionNumber, TableOrigin
from spark_replication.ports import TopicTable
from spark_replication.process.threads import Worker

THREADS = 4

log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    topic: str
    topic_id: str
    epochs: Mapping[PartitionNumber, Epoch]
    restores: TableOrigin | None


class ThreadedTableSealer:
    """ports.TableSealer. Its threads begin with the first seal."""

    def __init__(self, table_of: Callable[[str, str], TopicTable], answered: Callable[[TableAnswered], None]) -> None:
        """table_of: the table of a topic, by its name and its topic_id. The threads call both."""
        self._table_of = table_of
        self._answered = answered
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._workers: list[Worker] = []

    def seal(
        self, topic: str, topic_id: str, epochs: Mapping[PartitionNumber, Epoch], restores: TableOrigin | None
    ) -> None:
        if not self._workers:
            self._workers = [Worker(self._run, f"seals-{number}") for number in range(THREADS)]
            for worker in self._workers:
                worker.start()
        self._asked.put(_Asked(topic, topic_id, epochs, restores))

    def close(self) -> None:
        """Begin no more seals."""
        for worker in self._workers:
            worker.stop()
            self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            answer = self._sealed(asked)
            if answer.why:
                log.warning("the table of %s could not be sealed: %s", asked.topic, answer.why)
            self._answered(answer)

    def _sealed(self, asked: _Asked) -> TableAnswered:
        work = TableSeal(asked.topic, asked.topic_id, asked.epochs, asked.restores)
        try:
            table = self._table_of(asked.topic, asked.topic_id)
        except ReplicationError as error:
            return work.given_up(error.message)
        step = work.begin()
        while not isinstance(step, TableAnswered):
            step = _done(step, work, table)
        return step


def _done(step: TakeOverTable | LoadForSeal | SealTable, work: TableSeal, table: TopicTable) -> SealStep:
    try:
        if isinstance(step, TakeOverTable):
            return work.taken_over(table.take_over(step.origin))
        if isinstance(step, LoadForSeal):
            return work.loaded(table.load())
        return work.sealed(table.seal(step.on, step.epochs))
    except TableChanged:
        return work.refused()
    except ReplicationError as error:
        return work.failed(error.message)
