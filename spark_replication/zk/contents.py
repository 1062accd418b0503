"""What nodes that were read say. Pure; values are checked as they enter.

Each node gives a value or a reason (Z1): a node that cannot be read is left out, and named in `unreadable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import StoredAssignment, StoredPartition
from spark_replication.errors import CorruptState
from spark_replication.model import (
    BrokerId,
    ClusterSettings,
    PartitionState,
    TopicConfig,
    TopicPartition,
    TopicState,
    Value,
    decode,
    number_of,
)
from spark_replication.zk import paths
from spark_replication.zk.operations import Node, UnreadNode

Kind = TypeVar("Kind", bound=Value)
Read = Node | UnreadNode | None


class Contents:
    """Nodes that were read, in any order. `unreadable` gathers the reasons."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._topics: set[str] = set()
        self._partitions: set[TopicPartition] = set()
        self._brokers: set[BrokerId] = set()
        self._epochs: set[BrokerId] = set()
        self._settings = False

    @property
    def unreadable(self) -> Unreadable:
        return Unreadable(
            reasons=dict(sorted(self._reasons.items())),
            topics=frozenset(self._topics),
            partitions=frozenset(self._partitions),
            brokers=frozenset(self._brokers),
            epochs=frozenset(self._epochs),
            settings=self._settings,
        )

    def topic(self, name: str, node: Node | None) -> TopicState | None:
        """The topic in a node that was read; None if it cannot be read."""
        state = None if node is None else self._value(node, TopicState, paths.topic(name))
        if node is not None and state is None:
            self._topics.add(name)
        return state

    def stored(self, nodes: Mapping[TopicPartition, Read]) -> dict[TopicPartition, StoredPartition]:
        """The values of leaderAndISR nodes that were read."""
        found: dict[TopicPartition, StoredPartition] = {}
        for partition, node in nodes.items():
            if node is not None:
                state = self._value(node, PartitionState, paths.leader_and_isr(partition))
                if state is None or not isinstance(node, Node):
                    self._partitions.add(partition)
                else:
                    found[partition] = StoredPartition(state, *node.made)
        return found

    def _by_broker(
        self, folder: str, names: Sequence[str], nodes: Sequence[Read], kind: type[Kind], hidden: set[BrokerId]
    ) -> dict[BrokerId, Kind]:
        found: dict[BrokerId, Kind] = {}
        for name, node in zip(names, nodes, strict=True):
            broker = number_of(name)
            if broker is None:
                self._note(f"{folder}/{name}", "its name is not the number of a broker")
            elif node is not None:
                value = self._value(node, kind, f"{folder}/{name}")
                if value is None:
                    hidden.add(broker)
                else:
                    found[broker] = value
        return found

    def _value(self, node: Node | UnreadNode, kind: type[Kind], path: str) -> Kind | None:
        if isinstance(node, UnreadNode):
            self._note(path, node.why)
            return None
        try:
            return decode(node.data, kind, path)
        except CorruptState as error:
            self._note(path, error.message)
            return None

    def _hide_topic(self, name: str, path: str, why: str) -> None:
        self._topics.add(name)
        self._note(path, why)

    def _note(self, path: str, why: str) -> None:
        self._reasons[path] = why


def is_held(path: str) -> bool:
    """Whether controllers load that node once only: if it could not be read, a later candidacy has to load it."""
    return _kind_at(path) is not None


def is_readable(path: str, node: Read) -> bool:
    """Whether a node that could not be read before can be read now, or is gone."""
    kind = _kind_at(path)
    if node is None or kind is None:
        return True
    if isinstance(node, UnreadNode):
        return False
    try:
        decode(node.data, kind, path)
    except CorruptState:
        return False
    return True


def _kind_at(path: str) -> type[Value] | None:
    if path == paths.CLUSTER_CONFIG:
        return ClusterSettings
    if path.endswith(f"/{paths.LEADER_AND_ISR}"):
        return PartitionState
    if path.startswith(f"{paths.TOPIC_CONFIGS}/"):
        return TopicConfig
    return TopicState if path.startswith(f"{paths.TOPICS}/") else None


def stored_assignment(topic: str, node: Node) -> StoredAssignment:
    """The assignment in that node. CorruptState: it holds none."""
    state = decode(node.data, TopicState, paths.topic(topic))
    return StoredAssignment(state, *node.made)


def stored_partition(partition: TopicPartition, node: Node) -> StoredPartition:
    """The leaderAndISR in that node. CorruptState: it holds none."""
    state = decode(node.data, PartitionState, paths.leader_and_isr(partition))
    return StoredPartition(state, *node.made)
