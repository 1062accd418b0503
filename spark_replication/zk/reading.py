"""What controllers and brokers both read: topics, partitions, brokers. Pipelined; values are checked as they enter.

Each node gives a value or a reason (Z1): a node that cannot be read is left out, and named in `unreadable`. Only the
folders themselves must be readable: without /brokers/topics nobody knows what is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.law.writes import StoredPartition
from spark_replication.model import (
    BrokerEpoch,
    ClusterInfo,
    ClusterSettings,
    ControllerInfo,
    Registration,
    TopicConfig,
    TopicPartition,
    number_of,
)
from spark_replication.zk import paths
from spark_replication.zk.contents import Contents
from spark_replication.zk.operations import Folder, Node, UnreadNode
from spark_replication.zk.session import Watch


class NodeReads(Protocol):
    """How nodes are read, such as by a session. What may not be read is UnreadNode. watch: called once, when what was
    read changes."""

    def read_now(self, path: str) -> Node | None: ...
    def read_each(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | UnreadNode | None]: ...
    def folder_now(self, path: str, watch: Watch | None = None) -> Folder: ...

    def children_now(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of the children, sorted; empty if there is no such node."""

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[list[str] | UnreadNode]: ...


class Reading(Contents):
    """One pass over what is stored, in any order of its parts."""

    def __init__(self, reads: NodeReads) -> None:
        super().__init__()
        self._reads = reads

    def topic_nodes(self, named: Collection[str] | None = None) -> dict[str, Node]:
        """The nodes of these topics; of all if `named` is None. A topic that is not there, or is deleted during the
        read, is left out."""
        names = self._reads.children_now(paths.TOPICS) if named is None else list(named)
        nodes = self._reads.read_each([paths.topic(name) for name in names])
        found: dict[str, Node] = {}
        for name, node in zip(names, nodes, strict=True):
            if isinstance(node, Node):
                found[name] = node
            elif node is not None:
                self._hide_topic(name, paths.topic(name), node.why)
        return found

    def topics(self, nodes: Mapping[str, Node] | None = None) -> dict[str, StoredTopic]:
        """Topics with their settings. If its settings cannot be read, a topic is left out: nobody knows what holds for
        it."""
        nodes = self.topic_nodes() if nodes is None else nodes
        configs = self._reads.read_each([paths.topic_config(name) for name in nodes])
        found: dict[str, StoredTopic] = {}
        for (name, node), config in zip(nodes.items(), configs, strict=True):
            state = self.topic(name, node)
            settings = TopicConfig() if config is None else self._value(config, TopicConfig, paths.topic_config(name))
            if state is None or settings is None:
                self._topics.add(name)
            else:
                later = max((each for each in (node, config) if isinstance(each, Node)), key=lambda each: each.zxid)
                found[name] = StoredTopic(state, node.version, settings, later.zxid, later.modified_ms)
        return found

    def cluster_id(self) -> str:
        """Empty if it cannot be read, or no controller was here yet."""
        (node,) = self._reads.read_each([paths.CLUSTER])
        cluster = None if node is None else self._value(node, ClusterInfo, paths.CLUSTER)
        return "" if cluster is None else cluster.cluster_id

    def controller(self) -> ControllerInfo | None:
        """The process that commands. None if there is none, or if its node cannot be read."""
        (node,) = self._reads.read_each([paths.CONTROLLER])
        return None if node is None else self._value(node, ControllerInfo, paths.CONTROLLER)

    def settings(self) -> ClusterSettings:
        """The cluster's settings; none if they cannot be read."""
        (node,) = self._reads.read_each([paths.CLUSTER_CONFIG])
        if node is None:
            return ClusterSettings()
        settings = self._value(node, ClusterSettings, paths.CLUSTER_CONFIG)
        self._settings |= settings is None
        return ClusterSettings() if settings is None else settings

    def partitions(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, StoredPartition]:
        """The leaderAndISR of those that have one: a partition may be assigned, and have none yet."""
        partitions = list(wanted)
        nodes = self._reads.read_each([paths.leader_and_isr(partition) for partition in partitions])
        return self.stored(dict(zip(partitions, nodes, strict=True)))

    def removed(
        self, nodes: Mapping[str, Node], assigned: Iterable[TopicPartition], found: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """The assigned partitions whose leaderAndISR was there once, and has been removed by somebody.

        Its folder is still there; or the topic's node says that a folder below it was removed, which nobody here does
        before the whole topic goes.
        """
        missing = [each for each in assigned if each not in found and each not in self._partitions]
        folders = self._reads.read_each([paths.partition(partition) for partition in missing])
        return frozenset(
            partition
            for partition, folder in zip(missing, folders, strict=True)
            if folder is not None or nodes[partition.topic].children_changes > nodes[partition.topic].children
        )

    def hide_removed(self, removed: Iterable[TopicPartition]) -> None:
        """Hide what a controller is about to make again: until then nobody knows to whom its records belong."""
        for partition in removed:
            self._partitions.add(partition)
            self._note(
                paths.leader_and_isr(partition),
                "somebody has removed it: a controller makes it again, and logs decide who leads",
            )

    def tombstones(
        self,
        nodes: Mapping[str, Node],
        topics: Mapping[str, StoredTopic],
        assigned: Mapping[TopicPartition, StoredPartition],
    ) -> dict[TopicPartition, StoredPartition]:
        """The leaderAndISR of partitions that were removed from a topic that lives (E4).

        A topic's node says how many children it has. They are listed only if there are more of them than assigned
        partitions. A topic whose children cannot be listed is hidden, since nobody knows which partitions it had.
        """
        known = Counter(partition.topic for partition in assigned)
        names = [name for name, node in nodes.items() if name in topics and node.children > known[name]]
        listed = self._reads.children_many([paths.topic(name) for name in names])
        wanted: list[TopicPartition] = []
        for name, children in zip(names, listed, strict=True):
            if isinstance(children, UnreadNode):
                self._hide_topic(name, paths.topic(name), children.why)
            else:
                numbers = [number for child in children if (number := number_of(child)) is not None]
                assigned_numbers = topics[name].state.partitions
                wanted += [TopicPartition(name, number) for number in numbers if number not in assigned_numbers]
        return self.partitions(sorted(wanted))

    def brokers(self, watch: Watch | None = None) -> BrokersRead:
        """Read registrations, each with the watch, and then epochs: so an epoch is never older than its registration.
        The `unreadable` of the result names brokers only."""
        own = Reading(self._reads)
        folder = own._reads.folder_now(paths.BROKER_IDS, watch)
        nodes = own._reads.read_each([f"{paths.BROKER_IDS}/{id_}" for id_ in folder.names], watch)
        known = own._reads.children_now(paths.BROKER_EPOCHS)
        epochs = own._reads.read_each([f"{paths.BROKER_EPOCHS}/{id_}" for id_ in known])
        brokers = own._by_broker(paths.BROKER_IDS, folder.names, nodes, Registration, own._brokers)
        broker_epochs = own._by_broker(paths.BROKER_EPOCHS, known, epochs, BrokerEpoch, own._epochs)
        self._reasons.update(own._reasons)
        self._brokers |= own._brokers
        self._epochs |= own._epochs
        made = {
            broker: node.made
            for name, node in zip(folder.names, nodes, strict=True)
            if isinstance(node, Node) and (broker := number_of(name)) in brokers
        }
        return BrokersRead(
            brokers=brokers,
            broker_epochs=broker_epochs,
            unreadable=own.unreadable,
            registered=made,
            zxid=folder.zxid,
        )
