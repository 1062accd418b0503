"""What a controller knows: ClusterState, and the facts that decisions are made from.

ClusterState is the one mutable thing of core, since a copy per event would cost 100,000 partitions each time: it
changes by `apply_*` alone, and, but for recoveries and failed replicas, only to what ZooKeeper holds already.
Decisions read it and return values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from spark_replication.config import Settings, settings_from, with_topic
from spark_replication.core.controller import reassignment
from spark_replication.core.controller.events import BrokersRead, Requested
from spark_replication.core.controller.widening import CompareSchemas, incomparable
from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import Policy
from spark_replication.core.law.states import PARTITION, REPLICA, State, partition_state, retire, walk
from spark_replication.core.law.unclean_recovery import Recovery
from spark_replication.core.law.writes import StoredPartition
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import (
    BrokerEpoch,
    BrokerId,
    ClusterSettings,
    Registration,
    ReplicaOf,
    TopicConfig,
    TopicPartition,
    TopicState,
)

# Elections from outside ISR and ELR: acknowledged records may be missing.
_UNCLEAN = frozenset({"last_known_leader", "unclean", "unclean_recovery", "designated"})
_NOTHING: frozenset[TopicPartition] = frozenset()


class StoredTopic(msgspec.Struct, frozen=True):
    state: TopicState
    version: int
    config: TopicConfig


class LoadedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a new controller reads, after it has fenced its predecessor (C3).

    settings: what holds for this process where `stored_settings` (/config/cluster) says nothing. partitions: those of
    every assignment, and the tombstones of removed ones (E4). requests: what lies below /admin; deleting: the topics
    that are marked there.
    """

    cluster_id: str
    controller_epoch: int
    settings: Settings
    stored_settings: ClusterSettings = ClusterSettings()
    topics: dict[str, StoredTopic]
    partitions: dict[TopicPartition, StoredPartition]
    brokers: dict[BrokerId, Registration]
    broker_epochs: dict[BrokerId, BrokerEpoch]
    deleting: frozenset[str] = frozenset()
    requests: tuple[Requested, ...] = ()


class ClusterState:
    """Mirrors ZooKeeper in memory. Invariant: what is in here of topics, partitions and brokers is stored there.

    leaderless: the assigned partitions that have none. new_replicas: those that a reassignment is adding, and which
    have been alive since. recoveries: unclean recoveries under way. now_ms: when the present event happened. defaults:
    the settings that hold where ZooKeeper says nothing. open_requests: below /admin, with the partitions that they
    move.
    """

    def __init__(self, loaded: LoadedCluster, compare_schemas: CompareSchemas = incomparable) -> None:
        self.compare_schemas = compare_schemas
        self.cluster_id = loaded.cluster_id
        self.controller_epoch = loaded.controller_epoch
        self.now_ms = 0
        self.topics: dict[str, StoredTopic] = {}
        self.topics_made = 0
        self.deleting: set[str] = set(loaded.deleting)
        self.partitions: dict[TopicPartition, StoredPartition] = {}
        self.leaderless: set[TopicPartition] = set()
        self.reassigning: set[TopicPartition] = set()
        self.new_replicas: set[tuple[TopicPartition, BrokerId]] = set()
        self.recoveries: dict[TopicPartition, Recovery] = {}
        self.unclean_elections = 0
        self.requests = loaded.requests
        self.open_requests: dict[str, frozenset[TopicPartition]] = {}
        self.registered: dict[BrokerId, Registration] = dict(loaded.brokers)
        self.broker_epochs: dict[BrokerId, BrokerEpoch] = dict(loaded.broker_epochs)
        self.brokers = Brokers.of(self.registered, self.broker_epochs)
        self._failed: dict[BrokerId, frozenset[TopicPartition]] = {}
        self._hosted: dict[BrokerId, set[TopicPartition]] = {}
        self.defaults = msgspec.to_builtins(loaded.settings)
        self.apply_settings(loaded.stored_settings)
        for topic, stored in loaded.topics.items():
            self.apply_topic(topic, stored)
        self.partitions.update(loaded.partitions)
        self.leaderless = {p for p in self.all_partitions() if not self.is_led(p)}

    # What was stored

    def apply_settings(self, stored: ClusterSettings) -> None:
        self.stored_settings = stored
        self.settings = settings_from(self.defaults, stored.settings)
        self._settings_of: dict[str, Settings] = {}

    def apply_topic_config(self, topic: str, config: TopicConfig) -> None:
        self.topics[topic] = msgspec.structs.replace(self.topics[topic], config=config)
        self._settings_of.pop(topic, None)

    def apply_topic(self, topic: str, stored: StoredTopic) -> None:
        known = self.topics.get(topic)
        before = known.state.partitions if known is not None else {}
        for number in before.keys() - stored.state.partitions.keys():
            partition = TopicPartition(topic, number)
            self._apply_replicas(partition, before[number], ())
            retire(PARTITION, partition, self.partition_state(partition))
            self.leaderless.discard(partition)
            self.reassigning.discard(partition)
            self.recoveries.pop(partition, None)
            self._failed = {broker: failed - {partition} for broker, failed in self._failed.items()}
        for number, replicas in stored.state.partitions.items():
            partition = TopicPartition(topic, number)
            if number not in before:
                walk(PARTITION, partition, "nonexistent", "new")
                self.leaderless.add(partition)
            self._apply_replicas(partition, before.get(number, ()), replicas)
            if reassignment.in_flight(stored.state, number):
                self.reassigning.add(partition)
            elif partition in self.reassigning:
                self.reassigning.discard(partition)
                self.new_replicas.difference_update((partition, replica) for replica in replicas)
        self.topics[topic] = stored
        self._settings_of.pop(topic, None)

    def _apply_replicas(
        self, partition: TopicPartition, before: tuple[BrokerId, ...], after: tuple[BrokerId, ...]
    ) -> None:
        if before == after:
            return
        for broker in set(before) - set(after):
            retire(REPLICA, f"{partition} on {broker}", self.replica_state(partition, broker))
            self._hosted[broker].discard(partition)
            self.new_replicas.discard((partition, broker))
        for broker in set(after) - set(before):
            walk(REPLICA, f"{partition} on {broker}", "nonexistent", "new")
            self._hosted.setdefault(broker, set()).add(partition)
            if before and broker in self.brokers.live:
                self.new_replicas.add((partition, broker))

    def apply_partition(self, partition: TopicPartition, stored: StoredPartition) -> bool:
        """False: what is known is as new or newer."""
        known = self.partitions.get(partition)
        if known is not None and known.version >= stored.version:
            return False
        before = self.partition_state(partition)
        self.partitions[partition] = stored
        if self._failed and known is not None:
            # Its leader has let it in again: its disk is well. Else the two would undo each other's work for ever.
            joined = stored.state.isr - known.state.isr
            self._failed = {b: f - {partition} if b in joined else f for b, f in self._failed.items()}
        leader_before = None if known is None else known.state.leader
        if stored.state.leader not in (None, leader_before) and stored.state.elected in _UNCLEAN:
            self.unclean_elections += 1
        if before == "nonexistent":
            return True  # a tombstone, or one that is being made again
        after: State = "offline" if stored.state.leader is None else "online"
        if before != after or after == "online":
            walk(PARTITION, partition, before, after)
        if after == "online":
            self.leaderless.discard(partition)
            self.recoveries.pop(partition, None)
        else:
            self.leaderless.add(partition)
        return True

    def apply_removed_partition(self, partition: TopicPartition) -> None:
        """Its topic is being deleted: there is not even a tombstone."""
        self.partitions.pop(partition, None)
        self.leaderless.discard(partition)
        self.recoveries.pop(partition, None)

    def apply_removed_topic(self, topic: str) -> None:
        known = self.topics.pop(topic, None)
        self.deleting.discard(topic)
        self._settings_of.pop(topic, None)
        for number, replicas in known.state.partitions.items() if known is not None else ():
            partition = TopicPartition(topic, number)
            for broker in replicas:
                self._hosted[broker].discard(partition)
                self.new_replicas.discard((partition, broker))
            self.apply_removed_partition(partition)
            self.reassigning.discard(partition)

    def apply_brokers(self, read: BrokersRead) -> tuple[frozenset[BrokerId], frozenset[BrokerId], frozenset[BrokerId]]:
        """Whose life ended, whose began (one that came back before its loss was seen is in both), and who began to
        shut down."""
        before, now = self.registered, read.brokers
        lost = frozenset(b for b, known in before.items() if b not in now or now[b].epoch != known.epoch)
        started = frozenset(b for b, found in now.items() if b not in before or before[b].epoch != found.epoch)
        was_electable = self.brokers.electable
        self.registered = dict(read.brokers)
        self.broker_epochs = dict(read.broker_epochs)
        self.brokers = Brokers.of(self.registered, self.broker_epochs)
        for broker in lost:
            self._failed.pop(broker, None)  # its next life tries its disk again
        if lost and self.new_replicas:
            self.new_replicas = {(partition, broker) for partition, broker in self.new_replicas if broker not in lost}
        stopping = (was_electable & self.brokers.live) - self.brokers.electable - started
        return lost, started, stopping

    def has(self, replica: ReplicaOf) -> bool:
        """Of the topic of that name that there is now."""
        topic = self.topics.get(replica.partition.topic)
        return (
            topic is not None
            and topic.state.topic_id == replica.topic_id
            and replica.partition.partition in topic.state.partitions
        )

    def apply_failed(self, broker: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        """Until that broker starts again."""
        self._failed[broker] = self._failed.get(broker, _NOTHING) | frozenset(partitions)

    def apply_request(self, path: str, moving: frozenset[TopicPartition]) -> None:
        """A reassignment below /admin has begun, or what of it met another write is asked for again."""
        self.open_requests[path] = self.open_requests.get(path, _NOTHING) | moving

    def apply_removed_request(self, path: str) -> None:
        self.open_requests.pop(path, None)

    def apply_recoveries(self, recoveries: Mapping[TopicPartition, Recovery | None]) -> None:
        """None: it is over."""
        for partition, found in recoveries.items():
            if found is None:
                self.recoveries.pop(partition, None)
            else:
                self.recoveries[partition] = found

    # What is known

    def assigned(self, partition: TopicPartition) -> bool:
        topic = self.topics.get(partition.topic)
        return topic is not None and partition.partition in topic.state.partitions

    def replicas(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        return self.topics[partition.topic].state.partitions[partition.partition]

    def is_led(self, partition: TopicPartition) -> bool:
        stored = self.partitions.get(partition)
        return stored is not None and stored.state.leader is not None

    def leader_epoch(self, partition: TopicPartition) -> int:
        stored = self.partitions.get(partition)
        return 0 if stored is None else stored.state.leader_epoch

    def brokers_of(self, partition: TopicPartition) -> Brokers:
        """Who may be counted on for this partition."""
        if not self._failed:
            return self.brokers
        return self.brokers.without(frozenset(b for b, failed in self._failed.items() if partition in failed))

    def partition_state(self, partition: TopicPartition) -> State:
        if not self.assigned(partition):
            return "nonexistent"
        stored = self.partitions.get(partition)
        return partition_state(self.replicas(partition), None if stored is None else stored.state)

    def replica_state(self, partition: TopicPartition, broker: BrokerId) -> State:
        if not self.assigned(partition) or broker not in self.replicas(partition):
            return "nonexistent"
        brokers = self.brokers_of(partition)
        if broker not in brokers.live:
            return "offline"
        stored = self.partitions.get(partition)
        if broker not in brokers.electable and (stored is None or stored.state.leader != broker):
            return "offline"  # its broker shuts down, and it was told to stop (S2)
        if stored is None or (partition, broker) in self.new_replicas:
            return "new"
        return "online"

    def settings_of(self, topic: str) -> Settings:
        """The cluster's settings with the topic's overrides; computed once."""
        found = self._settings_of.get(topic)
        if found is None:
            found = with_topic(self.settings, self.topics[topic].config.settings)
            self._settings_of[topic] = found
        return found

    def policy_of(self, topic: str) -> Policy:
        return Policy.of(self.settings_of(topic), recovery_enabled=self.settings.unclean_recovery_enabled)

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

    def led_by(self, broker: BrokerId) -> list[TopicPartition]:
        """What a broker that shuts down still has to hand over (L2)."""
        return [
            p for p in self.hosted_by([broker]) if p in self.partitions and self.partitions[p].state.leader == broker
        ]

    def command(self, partition: TopicPartition) -> PartitionCommand:
        return _command(partition, self.topics[partition.topic], self.partitions[partition])


def commands_of(
    topics: Mapping[str, StoredTopic], partitions: Mapping[TopicPartition, StoredPartition]
) -> list[PartitionCommand]:
    """Each that is assigned, as brokers are told of it; sorted."""
    return [
        _command(partition, topics[partition.topic], stored)
        for partition, stored in sorted(partitions.items())
        if partition.topic in topics and partition.partition in topics[partition.topic].state.partitions
    ]


def _command(partition: TopicPartition, topic: StoredTopic, stored: StoredPartition) -> PartitionCommand:
    """The partition as persisted."""
    return PartitionCommand(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=topic.state.topic_id,
        replicas=topic.state.partitions[partition.partition],
        state=stored.state,
        partition_epoch=stored.version,
        adding=topic.state.adding.get(partition.partition, ()),
        removing=topic.state.removing.get(partition.partition, ()),
    )
