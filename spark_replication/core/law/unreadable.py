"""What of ZooKeeper's could be read only as a reason why not: garbage, a newer version, no permission (Z1).

It is one topic's, partition's or broker's trouble: nobody decides about it, and what it says is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.model import BrokerId, TopicPartition


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    #: Why, by the path of the node.
    reasons: Mapping[str, str] = {}
    #: Topics whose assignment or settings cannot be read: which partitions they have is not known.
    topics: frozenset[str] = frozenset()
    #: Partitions of other topics whose leaderAndISR cannot be read.
    partitions: frozenset[TopicPartition] = frozenset()
    #: Brokers whose registration is there, and cannot be read.
    brokers: frozenset[BrokerId] = frozenset()
    #: Brokers whose epoch, and so whose clean chain, cannot be read.
    epochs: frozenset[BrokerId] = frozenset()
    #: /config/cluster cannot be read.
    settings: bool = False

    def hides(self, partition: TopicPartition) -> bool:
        return partition.topic in self.topics or partition in self.partitions

    def hides_of(self, topic: str) -> bool:
        """The topic, or a partition of it."""
        return topic in self.topics or any(partition.topic == topic for partition in self.partitions)

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
