"""Topics' tables in a scenario: whoever seals one is answered within the step.

tables: {foo: {0: {end: 10, epoch: 3}}}      # at the start; left out: no rows, no epoch
- table: {foo: unreadable}                   # until `table: {foo: readable}`
- table: {foo: {0: {end: 12, epoch: 5}}}     # another writer has committed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from spark_replication.core.controller.events import TableAnswered
from spark_replication.core.tables.table import TableVersion
from spark_replication.engine.controller.table_seal import LoadForSeal, SealTable, TableSeal
from spark_replication.model import Epoch, PartitionNumber, TableOrigin, TopicPartition
from spark_replication.sim.scenarios.expectation import expect_int, expect_keys, expect_mapping
from spark_replication.sim.world.topic_tables import TableInMemory

UNREADABLE, READABLE = "unreadable", "readable"


class ScenarioTables:
    """ports.TableSealer. Its answers are taken once the controller has done its step."""

    def __init__(self, document: Any) -> None:
        self._tables: dict[str, TableInMemory] = {}
        self._unreadable: set[str] = set()
        self._asked: list[tuple[str, str, Mapping[PartitionNumber, Epoch]]] = []
        self.change(document)

    def change(self, document: Any) -> None:
        for topic, found in expect_mapping(document, "tables").items():
            if found == UNREADABLE:
                self._unreadable.add(str(topic))
            elif found == READABLE:
                self._unreadable.discard(str(topic))
            else:
                self._store(str(topic), expect_mapping(found, f"the table of {topic}"))

    def _store(self, topic: str, document: Mapping[Any, Any]) -> None:
        table = self._table(topic)
        for number, given in document.items():
            name = f"partition {expect_int(number, 'a partition')} of the table of {topic}"
            keys = expect_keys(given, name, {"end", "epoch"}, {"end", "epoch"})
            version = table.version
            table.version = replace(
                version,
                number=0 if version.number is None else version.number + 1,
                ends={**version.ends, number: expect_int(keys["end"], "end")},
                epochs={**version.epochs, number: expect_int(keys["epoch"], "epoch")},
            )

    def version(self, partition: TopicPartition) -> TableVersion:
        return self._table(partition.topic).version

    def seal(
        self, topic: str, topic_id: str, epochs: Mapping[PartitionNumber, Epoch], restores: TableOrigin | None
    ) -> None:
        assert restores is None, "no topic of a scenario is restored"
        self._asked.append((topic, topic_id, epochs))

    def answer(self) -> TableAnswered | None:
        """The next answer that is owed."""
        if not self._asked:
            return None
        topic, topic_id, epochs = self._asked.pop(0)
        work = TableSeal(topic, topic_id, epochs)
        step = work.begin()
        while True:
            match step:
                case TableAnswered():
                    return step
                case LoadForSeal() if topic in self._unreadable:
                    step = work.failed(f"the table of {topic} cannot be read")
                case LoadForSeal():
                    step = work.loaded(self._table(topic).load())
                case SealTable(on=on, epochs=named):
                    step = work.sealed(self._table(topic).seal(on, named))

    def _table(self, topic: str) -> TableInMemory:
        return self._tables.setdefault(topic, TableInMemory())
