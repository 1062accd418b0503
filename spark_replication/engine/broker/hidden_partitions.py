"""Partitions whose state in ZooKeeper a broker could not read as it registered (Z1).

An earlier life of the broker may have written there what no controller has heard of. Led by a controller's command, the
broker could lead with an outdated ISR, and acknowledge what a member of the true ISR does not have. So it carries out
no command about such a partition until it has read the state itself: it answers NOT_READY, and the command is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import TopicPartition


class HiddenPartitions:
    def __init__(self) -> None:
        self._unreadable = ALL_READ
        #: Those of which nobody has told since, and those that are assigned and have no state yet. Clients hear that
        #: they are there (TopicMetadata.hidden).
        self.untold: set[TopicPartition] = set()

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all hidden partitions."""
        return self._unreadable.topics | {partition.topic for partition in self._unreadable.partitions}

    def hides(self, partition: TopicPartition) -> bool:
        return self._unreadable.hides(partition)

    def registered(self, unreadable: Unreadable) -> None:
        self._unreadable = unreadable
        self.told(unreadable)

    def told(self, unreadable: Unreadable) -> None:
        """Somebody tells of all partitions but these. Nobody knows better than before which ones a hidden topic has."""
        kept = {partition for partition in self.untold if partition.topic in unreadable.topics}
        self.untold = kept | unreadable.partitions

    def read(self, known: Iterable[PartitionCommand], unreadable: Unreadable) -> list[PartitionCommand]:
        """Take in what was read of their topics since. Returns the partitions that can be read now."""
        before, self._unreadable = self._unreadable, unreadable
        return [each for each in known if before.hides(each.topic_partition) and not self.hides(each.topic_partition)]
