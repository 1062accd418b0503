"""Partitions of which a broker could not read what ZooKeeper says as it registered (Z1).

An earlier life of the broker may have written there what no controller has heard of. By a controller's command it
would lead with an ISR that is over, and acknowledge what a member of the ISR does not have. So no command about any of
them is carried out until the broker has read it itself: it is NOT_READY for them, and is told again.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import TopicPartition


class HiddenPartitions:
    def __init__(self) -> None:
        self._unreadable = ALL_READ

    @property
    def topics(self) -> frozenset[str]:
        """Of all of them."""
        return self._unreadable.topics | {partition.topic for partition in self._unreadable.partitions}

    def hides(self, partition: TopicPartition) -> bool:
        return self._unreadable.hides(partition)

    def registered(self, unreadable: Unreadable) -> None:
        self._unreadable = unreadable

    def read(self, known: Iterable[PartitionCommand], unreadable: Unreadable) -> list[PartitionCommand]:
        """known, unreadable: what has been read since of their topics. Those that can be read now."""
        before, self._unreadable = self._unreadable, unreadable
        return [each for each in known if before.hides(each.topic_partition) and not self.hides(each.topic_partition)]
