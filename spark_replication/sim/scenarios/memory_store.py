"""ZooKeeper as dictionaries, for stories of one controller that is answered at once: versions, conditions, and groups
that are stored whole or not at all. Where answers are late or lost, sim.world.znodes takes its place.

It counts round trips, and can let its controller die after any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.core.controller.cluster import LoadedCluster, StoredTopic
from spark_replication.core.controller.events import BrokersRead, Requested
from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import (
    BrokerRemoval,
    ClusterConfigWrite,
    DeletionMark,
    Deposed,
    Group,
    GroupAnswer,
    IsrWrite,
    Made,
    PartitionRemoval,
    PartitionWrite,
    Refused,
    RequestRemoval,
    Stored,
    StoredAssignment,
    StoredPartition,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
    Write,
)
from spark_replication.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    ReplicationError,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from spark_replication.messages.requests import DeleteTopic
from spark_replication.model import ABSENT, BrokerEpoch, BrokerId, ClusterSettings, Registration, TopicPartition

GROUPS_PER_MULTI = 1_000


class ControllerDied(Exception):
    """The simulated controller's process ended here."""


class MemoryStore:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.controller_epoch = 0
        self.topics: dict[str, StoredTopic] = {}
        self.partitions: dict[TopicPartition, StoredPartition] = {}
        self.registered: dict[BrokerId, Registration] = {}
        self.registrations_made: dict[BrokerId, Made] = {}
        self._registered_zxid = 0  # when a registration last came or went
        self.broker_epochs: dict[BrokerId, BrokerEpoch] = {}
        self.stored_settings = ClusterSettings()
        self.deleting: set[str] = set()
        self.requests: dict[str, Requested] = {}
        self.unreadable = ALL_READ
        self.removed: set[TopicPartition] = set()  # whose leaderAndISR somebody has removed
        self.round_trips = 0
        self.dies_after: int | None = None
        self.zxid = 0

    def load(self) -> LoadedCluster:
        """Raise the controller epoch (C1), and return what the controller that has just won reads."""
        self.controller_epoch += 1
        return self.loaded(self.controller_epoch)

    def loaded(self, controller_epoch: int) -> LoadedCluster:
        return LoadedCluster(
            cluster_id="scenario",
            controller_epoch=controller_epoch,
            settings=self.settings,
            stored_settings=ClusterSettings() if self.unreadable.settings else self.stored_settings,
            topics=self.readable_topics(),
            partitions=self.readable_partitions(),
            brokers={b: found for b, found in self.registered.items() if b not in self.unreadable.brokers},
            broker_epochs={b: found for b, found in self.broker_epochs.items() if b not in self.unreadable.epochs},
            deleting=frozenset(self.deleting),
            requests=tuple(self.requests[path] for path in sorted(self.requests)),
            removed=frozenset(self.removed),
            unreadable=self.unreadable,
            zxid=self._next_zxid(),
        )

    def readable_topics(self) -> dict[str, StoredTopic]:
        return {name: found for name, found in self.topics.items() if name not in self.unreadable.topics}

    def readable_partitions(self) -> dict[TopicPartition, StoredPartition]:
        return {found: stored for found, stored in self.partitions.items() if not self.unreadable.hides(found)}

    def readable_partition(self, partition: TopicPartition) -> StoredPartition | None:
        """A partition, for whoever knows its topic already. None if it cannot be read, or is not there."""
        return None if partition in self.unreadable.partitions else self.partitions.get(partition)

    def spoil(self, *partitions: TopicPartition, topics: Iterable[str] = ()) -> None:
        """Write garbage there: nobody can read it, and its version rises. The value before is kept for `mend`."""
        self.unreadable |= Unreadable(
            reasons={str(found): "garbage" for found in (*partitions, *topics)},
            topics=frozenset(topics),
            partitions=frozenset(partitions),
        )
        self._raise_versions(partitions, topics)

    def remove(self, partition: TopicPartition) -> None:
        """Remove a leaderAndISR, as a person does who takes that for a cure."""
        del self.partitions[partition]
        self.removed.add(partition)

    def _is_gone(self, partitions: frozenset[TopicPartition] = frozenset(), topic: str = "") -> None:
        """Forget the garbage of nodes that are removed."""
        self.unreadable = replace(
            self.unreadable,
            partitions=self.unreadable.partitions - partitions,
            topics=self.unreadable.topics - {topic},
        )

    def _raise_versions(self, partitions: Iterable[TopicPartition], topics: Iterable[str]) -> None:
        for partition in sorted(self.partitions.keys() & set(partitions)):
            stored = self.partitions[partition]
            self._store_partition(partition, StoredPartition(stored.state, stored.version + 1, self._next_zxid()))
        for topic in sorted(self.topics.keys() & set(topics)):
            known = self.topics[topic]
            self.topics[topic] = replace(known, version=known.version + 1, zxid=self._next_zxid())

    @property
    def brokers(self) -> Brokers:
        return Brokers.of(self.registered, self.broker_epochs)

    def brokers_read(self) -> BrokersRead:
        hidden = self.unreadable
        return BrokersRead(
            brokers={b: found for b, found in self.registered.items() if b not in hidden.brokers},
            broker_epochs={b: found for b, found in self.broker_epochs.items() if b not in hidden.epochs},
            unreadable=Unreadable(brokers=hidden.brokers, epochs=hidden.epochs),
            registered=dict(self.registrations_made),
            zxid=self._registered_zxid,
        )

    def register(self, broker: BrokerId, *, clean: bool, rack: str | None) -> None:
        before = self.broker_epochs.get(broker)
        epoch = 0 if before is None else before.epoch + 1
        clean_since = before.clean_since if clean and before is not None else epoch
        incarnation = f"{broker}-{epoch}"
        self.broker_epochs[broker] = BrokerEpoch(epoch=epoch, incarnation=incarnation, clean_since=clean_since)
        self.put_registration(
            broker,
            Registration(
                host=f"host-{broker}", port=1, replication_port=2, epoch=epoch, incarnation=incarnation, rack=rack
            ),
        )

    def put_registration(self, broker: BrokerId, registration: Registration, version: int = 0) -> None:
        """Store a registration. Version 0 is a new node, which takes the place of one that is there."""
        self.registered[broker] = registration
        self.registrations_made[broker] = Made(version, self._next_zxid())
        if version == 0:
            self._registered_zxid = self.zxid

    def remove_registration(self, broker: BrokerId) -> bool:
        """Remove a registration. False if there is none."""
        if self.registered.pop(broker, None) is None:
            return False
        self._registered_zxid = self._next_zxid()
        return True

    def shut_down(self, broker: BrokerId) -> None:
        """Mark the broker as shutting down: it is not to be elected, or to join an ISR (L2)."""
        self.put_registration(broker, replace(self.registered[broker], shutting_down=True), 1)

    def change_isr(self, write: IsrWrite) -> ReplicationError | None:
        """Store a leader's write. None if it is stored, else the condition that failed."""
        stored = self.partitions.get(write.partition)
        topic = self.topics.get(write.partition.topic)
        if stored is None or topic is None or topic.state.topic_id != write.topic_id:
            return UnknownTopicOrPartition(f"there is no {write.partition} of topic {write.topic_id}")
        refused = _refusal(write, stored, self.brokers)
        if refused is None:
            self._store_partition(write.partition, StoredPartition(write.state, stored.version + 1, self._next_zxid()))
        return refused

    def session(self, controller_epoch: int) -> MemorySession:
        return MemorySession(self, controller_epoch)

    def group(self, group: Group) -> GroupAnswer:
        if not all(self._holds(write) for write in group):
            return self._refused(group)
        self._next_zxid()
        return Stored(tuple(self._store(write) for write in group))

    def _refused(self, group: Group) -> Refused:
        written = [write.partition for write in group if isinstance(write, PartitionWrite)]
        current = {partition: self.readable_partition(partition) for partition in written}
        topics = {w.topic: self._assignment(w.topic) for w in group if isinstance(w, TopicWrite)}
        return Refused(current, topics, frozenset(self.removed.intersection(written)))

    def _assignment(self, topic: str) -> StoredAssignment | None:
        known = None if topic in self.unreadable.topics else self.topics.get(topic)
        return None if known is None else StoredAssignment(known.state, known.version, known.zxid)

    def _holds(self, write: Write) -> bool:
        match write:
            case PartitionWrite(partition=partition, version=version, relies_on=relies_on):
                stored = self.partitions.get(partition)
                at = ABSENT if stored is None else stored.version
                relied_on = all(self.broker_epochs[b].epoch == e for b, e in relies_on.items())
                return at == version and relied_on
            case TopicWrite(topic=topic, version=version):
                known = self.topics.get(topic)
                return (ABSENT if known is None else known.version) == version
            case BrokerRemoval(broker=broker, epoch=epoch):
                return broker in self.registered and self.broker_epochs[broker].epoch == epoch
            case TopicConfigWrite(topic=topic) | TopicRemoval(topic=topic):
                return topic in self.topics
            case DeletionMark() | PartitionRemoval() | ClusterConfigWrite() | RequestRemoval():
                return True
            case _:
                assert_never(write)

    def _store(self, write: Write) -> Made:
        zxid = self.zxid  # of the whole group
        match write:
            case PartitionWrite(partition=partition, state=state, version=version):
                self._store_partition(partition, StoredPartition(state, version + 1, zxid))
                return Made(version + 1, zxid)
            case TopicWrite(topic=topic, state=topic_state, config=config, version=version):
                kept = self.topics[topic].config if config is None else config
                self.topics[topic] = StoredTopic(topic_state, version + 1, kept, zxid)
                return Made(version + 1, zxid)
            case BrokerRemoval(broker=broker):
                self.remove_registration(broker)
            case DeletionMark(topic=topic):
                self.deleting.add(topic)
            case PartitionRemoval(partition=partition):
                self.partitions.pop(partition, None)
                self._is_gone(frozenset({partition}))
            case TopicRemoval(topic=topic):
                del self.topics[topic]
                self._is_gone(topic=topic)
                self.removed = {each for each in self.removed if each.topic != topic}
                self.deleting.discard(topic)
                # Below /admin, a request to delete a topic is the mark itself.
                marks = [path for path, found in self.requests.items() if found.asked == DeleteTopic(topic=topic)]
                for path in marks:
                    del self.requests[path]
            case TopicConfigWrite(topic=topic, config=config):
                self.topics[topic] = replace(self.topics[topic], config=config, zxid=zxid)
            case ClusterConfigWrite(config=settings):
                self.stored_settings = settings
            case RequestRemoval(path=path):
                self.requests.pop(path, None)
            case _:
                assert_never(write)
        return Made(0, zxid)

    def _store_partition(self, partition: TopicPartition, stored: StoredPartition) -> None:
        self.partitions[partition] = stored
        self.removed.discard(partition)

    def _next_zxid(self) -> int:
        self.zxid += 1
        return self.zxid


def _refusal(write: IsrWrite, stored: StoredPartition, brokers: Brokers) -> ReplicationError | None:
    """The condition of a leader's write that fails, as the multi() of zk.broker.isr_writes checks them (I1, I3)."""
    if write.state.leader_epoch != stored.state.leader_epoch:
        return FencedLeaderEpoch(f"{write.partition} is at leader epoch {stored.state.leader_epoch}")
    if write.version != stored.version:
        return InvalidUpdateVersion(f"{write.partition} is at partition epoch {stored.version}, not {write.version}")
    if brokers.epochs.get(write.broker) != write.broker_epoch:
        return StaleBrokerEpoch(f"broker {write.broker} has registered again since epoch {write.broker_epoch}")
    for replica, epoch in sorted(write.joining.items()):
        if replica not in brokers.electable or brokers.epochs[replica] != epoch:
            return IneligibleReplica(f"broker {replica} is not registered at epoch {epoch}, or is shutting down")
    return None


class MemorySession:
    """ports.ControllerStore, as the holder of one controller epoch."""

    def __init__(self, store: MemoryStore, controller_epoch: int) -> None:
        self._store = store
        self._controller_epoch = controller_epoch

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        answers: list[GroupAnswer] = []
        for first in range(0, len(groups), GROUPS_PER_MULTI):
            if self._store.dies_after == 0:
                raise ControllerDied
            self._store.round_trips += 1
            if self._store.dies_after is not None:
                self._store.dies_after -= 1
            for group in groups[first : first + GROUPS_PER_MULTI]:
                deposed = self._store.controller_epoch != self._controller_epoch
                answers.append(Deposed() if deposed else self._store.group(group))
        if self._store.dies_after == 0:
            raise ControllerDied
        then(answers)
