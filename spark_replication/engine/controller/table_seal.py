"""One seal of a topic's table, step by step: load, compare, seal, and load again whenever nobody knows (TB1, TB5). The
table of an earlier topic is taken over first, whatever a controller before this one has done of it (TB7).

take over → the last version → as loaded
          → fails → answered: why
load → the table has all of it → answered
     → seal → stored → answered
            → refused → load
            → not answered → load
     → fails → answered: why
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.controller.events import TableAnswered
from spark_replication.core.tables.sealing import ends_told, named_anew
from spark_replication.core.tables.table import TableVersion
from spark_replication.model import Epoch, PartitionNumber, TableOrigin

ATTEMPTS_MAX = 20


class TakeOverTable(msgspec.Struct, frozen=True):
    """Call TopicTable.take_over, and report `taken_over` or `failed`."""

    origin: TableOrigin


class LoadForSeal(msgspec.Struct, frozen=True):
    """Call TopicTable.load, and report `loaded` or `failed`."""


class SealTable(msgspec.Struct, frozen=True):
    """Call TopicTable.seal, and report `sealed`, `refused` or `failed`."""

    on: TableVersion
    epochs: Mapping[PartitionNumber, Epoch]


SealStep = TakeOverTable | LoadForSeal | SealTable | TableAnswered


class TableSeal:
    """Each method takes what came of the step before, and returns the next one. TableAnswered is the last."""

    def __init__(
        self, topic: str, topic_id: str, epochs: Mapping[PartitionNumber, Epoch], restores: TableOrigin | None = None
    ) -> None:
        self._topic, self._topic_id = topic, topic_id
        self._epochs = epochs
        self._restores = restores
        self._sealing: TableVersion | None = None
        self._attempts = 0

    def begin(self) -> SealStep:
        return LoadForSeal() if self._restores is None else TakeOverTable(self._restores)

    def taken_over(self, version: TableVersion) -> SealStep:
        return self.loaded(version)

    def loaded(self, version: TableVersion) -> SealStep:
        anew = named_anew(version, self._epochs)
        if not anew:
            return self._told(version)
        self._attempts += 1
        if self._attempts > ATTEMPTS_MAX:
            return self.given_up(f"others wrote it {ATTEMPTS_MAX} times meanwhile")
        self._sealing = version
        return SealTable(version, anew)

    def sealed(self, made: TableVersion) -> SealStep:
        return self._told(made)

    def refused(self) -> SealStep:
        self._sealing = None
        return LoadForSeal()

    def failed(self, why: str) -> SealStep:
        """Not answered. What could not be loaded cannot be sealed now; a seal may have been stored."""
        if self._sealing is None:
            return self.given_up(why)
        self._sealing = None
        return LoadForSeal()

    def _told(self, version: TableVersion) -> TableAnswered:
        return TableAnswered(topic=self._topic, topic_id=self._topic_id, told=ends_told(version, self._epochs))

    def given_up(self, why: str) -> TableAnswered:
        return TableAnswered(topic=self._topic, topic_id=self._topic_id, failed=tuple(sorted(self._epochs)), why=why)
