"""What cannot be read in ZooKeeper, and why: garbage, a newer version, no permission (Z1).

It is the trouble of one topic, partition or broker: nobody decides about it, and its node is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.model import BrokerId, TopicPartition


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    #: Why the node at each path cannot be read.
    reasons: Mapping[str, str] = {}
    #: Topics whose assignment or settings cannot be read: which partitions they have is not known.
    topics: frozenset[str] = frozenset()
    #: Partitions of other topics whose leaderAndISR cannot be read.
    partitions: frozenset[TopicPartition] = frozenset()
    #: Brokers that are registered, and whose registration cannot be read.
    brokers: frozenset[BrokerId] = frozenset()
    #: Brokers whose epoch, and so whose clean chain, cannot be read.
    epochs: frozenset[BrokerId] = frozenset()
    #: Whether /config/cluster cannot be read.
    settings: bool = False

    def hides(self, partition: TopicPartition) -> bool:
        return partition.topic in self.topics or partition in self.partitions

    def hides_of(self, topic: str) -> bool:
        """Whether the topic, or a partition of it, is hidden."""
        return topic in self.topics or any(partition.topic == topic for partition in self.partitions)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """The hidden partitions of a topic whose assignment can be read, in order."""
        return sorted(partition for partition in self.partitions if partition.topic == topic)

    def __or__(self, other: Unreadable) -> Unreadable:
        return Unreadable(
            reasons={**self.reasons, **other.reasons},
            topics=self.topics | other.topics,
            partitions=self.partitions | other.partitions,
            brokers=self.brokers | other.brokers,
            epochs=self.epochs | other.epochs,
            settings=self.settings or other.settings,
        )


ALL_READ = Unreadable()
