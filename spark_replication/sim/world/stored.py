"""What the simulated ZooKeeper holds, as values: they follow its tree, multi() by multi(), and tell the checkers.

Nobody in the cast decides by these: brokers and controllers read the tree. Checkers and people do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import StoredPartition
from spark_replication.errors import CorruptState
from spark_replication.model import (
    BrokerEpoch,
    BrokerId,
    ClusterInfo,
    ClusterSettings,
    ControllerEpoch,
    PartitionState,
    Registration,
    TopicConfig,
    TopicPartition,
    TopicState,
    decode,
    encode,
)
from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk import paths
from spark_replication.zk.operations import EXISTS, Committed, Create, Delete, Node, Operation, Rejected, SetData

GARBAGE = b"garbage"
CLUSTER_ID = "simulated"

Kind = TypeVar("Kind", Registration, BrokerEpoch)


class Stored:
    def __init__(self, settings: Settings, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.settings = settings
        self.tree = Znodes(paths.BASE, now_ms)
        self.controller_epoch = 0
        self.topics: dict[str, StoredTopic] = {}
        self.partitions: dict[TopicPartition, StoredPartition] = {}
        self.registered: dict[BrokerId, Registration] = {}
        self.broker_epochs: dict[BrokerId, BrokerEpoch] = {}
        self.stored_settings = ClusterSettings()
        self.deleting: set[str] = set()
        #: What somebody has spoilt: of these, what was there before.
        self.unreadable = ALL_READ
        #: The partitions whose leaderAndISR somebody has removed.
        self.removed: set[TopicPartition] = set()
        #: What a controller epoch could not read as it took over.
        self.loaded_without: dict[int, Unreadable] = {}
        #: The controller epoch that the present write claims; None for anybody else's.
        self.writing: int | None = None
        self.partition_stored: Callable[[TopicPartition, str, StoredPartition], None] = lambda *_: None
        self.topic_stored: Callable[[str, TopicState | None, TopicState], None] = lambda *_: None
        self.store_changed: Callable[[], None] = lambda: None
        self._spoilt: dict[str, bytes] = {}
        self.multi([Create(paths.CLUSTER, encode(ClusterInfo(cluster_id=CLUSTER_ID)))])

    def multi(self, operations: Sequence[Operation], session: int = 0) -> Committed | Rejected:
        outcome = self.tree.multi(operations, session)
        changed = self.tree.changed
        for path in sorted(changed, key=_topics_first):
            self._follow(path, changed[path], self.tree.read(path))
        if changed:
            self.store_changed()
        return outcome

    # What people do to it

    def spoil(self, *partitions: TopicPartition, topics: Sequence[str] = ()) -> None:
        """Write garbage there: nobody can read it, and its version rises. `mend` writes again what was there."""
        for path in (*map(paths.leader_and_isr, partitions), *map(paths.topic, topics)):
            node = self.tree.read(path)
            if node is not None and path not in self._spoilt:
                self._spoilt[path] = node.data
                self.multi([SetData(path, GARBAGE, EXISTS)])

    def mend(self) -> None:
        spoilt, self._spoilt = self._spoilt, {}
        for path, before in spoilt.items():
            node = self.tree.read(path)
            if node is not None and node.data == GARBAGE:
                self.multi([SetData(path, before, EXISTS)])

    def remove(self, partition: TopicPartition) -> None:
        """Remove a leaderAndISR, as a person does who takes that for a cure."""
        self.multi([Delete(paths.leader_and_isr(partition), EXISTS)])

    # Following the tree

    def _follow(self, path: str, before: Node | None, node: Node | None) -> None:
        _, *names = path.split("/")
        match names:
            case ["brokers", "topics", topic]:
                if _was_written(before, node):
                    self._follow_topic(topic)
            case ["config", "topics", topic]:
                self._follow_topic(topic)
            case ["brokers", "topics", topic, number] if number.isdigit() and node is None:
                self.removed.discard(TopicPartition(topic, int(number)))
            case ["brokers", "topics", topic, number, paths.LEADER_AND_ISR]:
                self._follow_partition(TopicPartition(topic, int(number)), before, node)
            case ["brokers", "ids", broker]:
                _keep(self.registered, int(broker), node, Registration, path)
            case ["brokers", "epochs", broker]:
                _keep(self.broker_epochs, int(broker), node, BrokerEpoch, path)
            case ["config", "cluster"] if node is not None:
                self.stored_settings = decode(node.data, ClusterSettings, path)
            case ["controller_epoch"] if node is not None:
                self.controller_epoch = decode(node.data, ControllerEpoch, path).epoch
            case ["admin", "delete_topics", topic]:
                (self.deleting.discard if node is None else self.deleting.add)(topic)

    def _follow_topic(self, name: str) -> None:
        path = paths.topic(name)
        node, config = self.tree.read(path), self.tree.read(paths.topic_config(name))
        before = self.topics.get(name)
        if node is None:
            self.topics.pop(name, None)
            self.removed = {each for each in self.removed if each.topic != name}
            self._hide(path, None, topics=frozenset({name}))
            return
        try:
            state = decode(node.data, TopicState, path)
            self._hide(path, None, topics=frozenset({name}))
        except CorruptState as error:
            assert before is not None, "it was spoilt"
            state = before.state
            self._hide(path, error, topics=frozenset({name}))
        settings = TopicConfig() if config is None else decode(config.data, TopicConfig, paths.topic_config(name))
        later = node if config is None or node.zxid >= config.zxid else config
        self.topics[name] = StoredTopic(state, node.version, settings, later.zxid, later.modified_ms)
        if before is None or before.version != node.version:
            self.topic_stored(name, None if before is None else before.state, state)

    def _follow_partition(self, partition: TopicPartition, before: Node | None, node: Node | None) -> None:
        path = paths.leader_and_isr(partition)
        if node is None:
            self.partitions.pop(partition, None)
            if self.tree.read(paths.partition(partition)) is not None:
                self.removed.add(partition)
            self._hide(path, None, partitions=frozenset({partition}))
        elif _was_written(before, node):
            try:
                stored = StoredPartition(decode(node.data, PartitionState, path), *node.made)
                self._hide(path, None, partitions=frozenset({partition}))
            except CorruptState as error:
                stored = StoredPartition(self.partitions[partition].state, *node.made)
                self._hide(path, error, partitions=frozenset({partition}))
            self.partitions[partition] = stored
            self.removed.discard(partition)
            self.partition_stored(partition, self.topics[partition.topic].state.topic_id, stored)

    def _hide(
        self,
        path: str,
        why: CorruptState | None,
        *,
        topics: frozenset[str] = frozenset(),
        partitions: frozenset[TopicPartition] = frozenset(),
    ) -> None:
        known = self.unreadable
        if why is None and path not in known.reasons:
            return
        reasons = {of: each for of, each in known.reasons.items() if of != path}
        if why is not None:
            reasons[path] = why.message
        self.unreadable = replace(
            known,
            reasons=reasons,
            topics=known.topics - topics if why is None else known.topics | topics,
            partitions=known.partitions - partitions if why is None else known.partitions | partitions,
        )


def _topics_first(path: str) -> tuple[int, str]:
    """A partition is told of with its topic, which the same multi() may have made."""
    return path.count("/"), path


def _was_written(before: Node | None, node: Node | None) -> bool:
    """Whether the node itself changed, not its children alone."""
    if before is None or node is None:
        return True
    return (before.version, before.created_zxid) != (node.version, node.created_zxid)


def _keep(found: dict[BrokerId, Kind], broker: BrokerId, node: Node | None, kind: type[Kind], path: str) -> None:
    if node is None:
        found.pop(broker, None)
    else:
        found[broker] = decode(node.data, kind, path)
