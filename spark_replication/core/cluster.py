"""What a controller knows: ClusterState, the events that change it, and the facts that decisions are made from.

ClusterState is the one mutable thing of core, since a copy per event would cost 100,000 partitions each time: it
changes by `apply_*` alone, and only to what ZooKeeper holds already. Decisions read it and return values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from spark_replication.config import Settings, with_topic
from spark_replication.core.writes import StoredPartition
from spark_replication.messages import CreateTopic, PartitionCommand
from spark_replication.model import (
    BrokerEpoch,
    BrokerId,
    Registration,
    TopicConfig,
    TopicPartition,
    TopicState,
)


class StoredTopic(msgspec.Struct, frozen=True):
    state: TopicState
    version: int
    config: TopicConfig


class LoadedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a new controller reads, after it has fenced its predecessor (C3)."""

    cluster_id: str
    controller_epoch: int
    settings: Settings
    topics: dict[str, StoredTopic]
    partitions: dict[TopicPartition, StoredPartition]
    brokers: dict[BrokerId, Registration]
    broker_epochs: dict[BrokerId, BrokerEpoch]


# Events: what happened, in the past tense. An adapter reads what a watch pointed at and tells it whole.


class TookOver(msgspec.Struct, frozen=True):
    """This controller won /controller, and has loaded everything."""


class BrokersRead(msgspec.Struct, frozen=True, kw_only=True):
    """/brokers/ids changed: all that are registered now, and the epochs of those that ever were."""

    brokers: dict[BrokerId, Registration]
    broker_epochs: dict[BrokerId, BrokerEpoch]


class PartitionsRead(msgspec.Struct, frozen=True):
    """Leaders changed their ISR, or a write of ours met another: what is stored now."""

    partitions: dict[TopicPartition, StoredPartition]


class BrokerDeathReported(msgspec.Struct, frozen=True):
    """A guardian, or a broken control connection, says that this life of the broker has ended."""

    broker: BrokerId
    epoch: int


class TopicRequested(msgspec.Struct, frozen=True):
    """`request` is the number under which the answer is owed."""

    request: int
    creation: CreateTopic
    topic_id: str


Event = TookOver | BrokersRead | PartitionsRead | BrokerDeathReported | TopicRequested


class Brokers(msgspec.Struct, frozen=True):
    """Who may be counted on, at one moment.

    live: registered. electable: live and not shutting down (L1). epochs: the present one of each broker that ever
    registered. clean_since: the first epoch of its unbroken chain of clean registrations (I8).
    """

    live: frozenset[BrokerId]
    electable: frozenset[BrokerId]
    epochs: Mapping[BrokerId, int]
    clean_since: Mapping[BrokerId, int]

    @classmethod
    def of(cls, registered: Mapping[BrokerId, Registration], broker_epochs: Mapping[BrokerId, BrokerEpoch]) -> Brokers:
        return cls(
            live=frozenset(registered),
            electable=frozenset(broker for broker, found in registered.items() if not found.shutting_down),
            epochs={broker: found.epoch for broker, found in broker_epochs.items()},
            clean_since={broker: found.clean_since for broker, found in broker_epochs.items()},
        )

    def void(self, joined: Mapping[BrokerId, int]) -> frozenset[BrokerId]:
        """The members that registered uncleanly after they joined: whatever they had may be gone (I8)."""
        return frozenset(broker for broker, epoch in joined.items() if epoch < self.clean_since.get(broker, 0))


class ClusterState:
    """Mirrors ZooKeeper in memory. Invariant: nothing is in here that is not stored there."""

    def __init__(self, loaded: LoadedCluster) -> None:
        self.cluster_id = loaded.cluster_id
        self.controller_epoch = loaded.controller_epoch
        self.settings = loaded.settings
        self.topics: dict[str, StoredTopic] = {}
        self.partitions: dict[TopicPartition, StoredPartition] = dict(loaded.partitions)
        self.registered: dict[BrokerId, Registration] = dict(loaded.brokers)
        self.broker_epochs: dict[BrokerId, BrokerEpoch] = dict(loaded.broker_epochs)
        self.brokers = Brokers.of(self.registered, self.broker_epochs)
        self._hosted: dict[BrokerId, set[TopicPartition]] = {}
        self._settings_of: dict[str, Settings] = {}
        for topic, stored in loaded.topics.items():
            self.apply_topic(topic, stored)

    def apply_topic(self, topic: str, stored: StoredTopic) -> None:
        self.topics[topic] = stored
        self._settings_of.pop(topic, None)
        for partition, replicas in stored.state.partitions.items():
            for broker in replicas:
                self._hosted.setdefault(broker, set()).add(TopicPartition(topic, partition))

    def apply_partition(self, partition: TopicPartition, stored: StoredPartition) -> bool:
        """False: what is known is as new or newer."""
        known = self.partitions.get(partition)
        if known is not None and known.version >= stored.version:
            return False
        self.partitions[partition] = stored
        return True

    def apply_brokers(self, read: BrokersRead) -> tuple[frozenset[BrokerId], frozenset[BrokerId]]:
        """Whose life ended, and whose began; a broker that came back before its loss was seen is in both."""
        before, now = self.registered, read.brokers
        lost = frozenset(b for b, known in before.items() if b not in now or now[b].epoch != known.epoch)
        started = frozenset(b for b, found in now.items() if b not in before or before[b].epoch != found.epoch)
        self.registered = dict(read.brokers)
        self.broker_epochs = dict(read.broker_epochs)
        self.brokers = Brokers.of(self.registered, self.broker_epochs)
        return lost, started

    def replicas(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        return self.topics[partition.topic].state.partitions[partition.partition]

    def settings_of(self, topic: str) -> Settings:
        """The cluster's settings with the topic's overrides; computed once."""
        found = self._settings_of.get(topic)
        if found is None:
            found = with_topic(self.settings, self.topics[topic].config.settings)
            self._settings_of[topic] = found
        return found

    def all_partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Of every assignment (or of one topic's), whether it has a leaderAndISR yet or not; sorted."""
        topics = sorted(self.topics) if topic is None else [topic]
        return [
            TopicPartition(name, partition)
            for name in topics
            for partition in sorted(self.topics[name].state.partitions)
        ]

    def hosted_by(self, brokers: Iterable[BrokerId]) -> list[TopicPartition]:
        """The partitions with a replica on any of these; sorted."""
        return sorted(set().union(*(self._hosted.get(broker, set()) for broker in brokers)))

    def command(self, partition: TopicPartition) -> PartitionCommand:
        """The partition as persisted, as brokers are told of it."""
        topic = self.topics[partition.topic]
        stored = self.partitions[partition]
        return PartitionCommand(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=topic.state.topic_id,
            replicas=topic.state.partitions[partition.partition],
            state=stored.state,
            partition_epoch=stored.version,
        )
