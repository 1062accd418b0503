"""When an election must wait for the topic's table, and where the partition's log goes on after it (TB5).

Offsets below the table's end are never given twice. A leader that holds every acknowledged record has them all, since
writers add committed rows alone. A leader from outside ISR and ELR may not, nor does a partition that is added again:
so before either leads, the table is sealed at the epoch that it will lead at.

| the topic     | its table has named        | then                                                               |
| ------------- | -------------------------- | ------------------------------------------------------------------ |
| has no table  |                            | it is elected at once, and `start_at` stays                        |
| has one       | an epoch below             | the table is sealed at this epoch; until then the partition waits  |
| has one       | this epoch                 | it is elected: `start_at` is the table's end                       |
| has one       | a later epoch              | ZooKeeper is as of an earlier time: an epoch above that one begins |

A seal counts for the one epoch that it names: another leader may have led, and been read, in between.

So it is with each partition of a topic that is restored from a table (TB7), before it is made: it begins at the first
epoch above those that the table names.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.tables.table import TableVersion
from spark_replication.model import Epoch, Offset, PartitionNumber


class TableEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where a table has a partition's end, and the highest leader epoch that it names for the partition."""

    epoch: Epoch
    end: Offset


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What a controller knows of one seal. Its successor asks again."""

    #: The leader epoch that is to be named.
    epoch: Epoch
    #: When the table was asked.
    asked_ms: int
    #: What the table has said since; None if nothing yet.
    told: TableEnd | None = None
    #: Why it could not be sealed when it was last tried; empty while nothing is known.
    why: str = ""


class Sealing(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition's table asks of who elects its leader."""

    has_table: bool
    known: Seal | None = None
    #: The topic goes on with a table that was there before it.
    is_restored: bool = False

    def is_needed(self, epoch: Epoch) -> bool:
        """Whether the table must be sealed before anybody from outside leads at this epoch."""
        return self.has_table and self._told(epoch) is None

    def start_at(self, epoch: Epoch) -> Offset:
        """The offset below which a leader from outside, at this epoch, gives none."""
        assert not self.is_needed(epoch), f"nobody has sealed the table at epoch {epoch}"
        told = self._told(epoch)
        return 0 if told is None else told.end

    @property
    def first_epoch(self) -> Epoch:
        """The epoch at which a partition begins that nobody has made before. One that is restored begins above all
        epochs that the table names, as far as that is known (TB7)."""
        if not self.is_restored or self.known is None:
            return 0
        ahead = self.ahead
        return self.known.epoch if ahead is None else ahead + 1

    @property
    def ahead(self) -> Epoch | None:
        """A later epoch than was to be named, which the table has; None if it has none."""
        told = None if self.known is None else self.known.told
        return told.epoch if told is not None and self.known is not None and told.epoch > self.known.epoch else None

    def _told(self, epoch: Epoch) -> TableEnd | None:
        told = self.known.told if self.known is not None and self.known.epoch == epoch else None
        return told if self.has_table and told is not None and told.epoch == epoch else None


NO_TABLE = Sealing(has_table=False)


def is_due(seal: Seal | None, epoch: Epoch, now_ms: int, retry_ms: int) -> bool:
    """Whether to ask for a seal at this epoch: not if it was asked a moment ago, and nobody knows what came of it."""
    return seal is None or seal.epoch != epoch or (seal.told is None and now_ms - seal.asked_ms >= retry_ms)


def named_anew(version: TableVersion, asked: Mapping[PartitionNumber, Epoch]) -> dict[PartitionNumber, Epoch]:
    """The epochs that the seal is to name on this version: those above what it has. Of the others it tells what it
    has."""
    return {partition: epoch for partition, epoch in sorted(asked.items()) if version.epoch_of(partition) < epoch}


def ends_told(version: TableVersion, asked: Mapping[PartitionNumber, Epoch]) -> dict[PartitionNumber, TableEnd]:
    """What the version says of these partitions, once they are sealed."""
    return {
        partition: TableEnd(epoch=max(version.epoch_of(partition), 0), end=version.end_of(partition) or 0)
        for partition in sorted(asked)
    }
