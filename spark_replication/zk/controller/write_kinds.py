"""What each kind of write is in ZooKeeper: a codec for each, found by `codec_of`, which mypy proves complete. Pure.

Some writes name the version that they were decided against. The others are made by controllers only, whose epoch is in
every multi(): such a write is also done if what it makes is there already, or what it removes is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, assert_never

from spark_replication.core.law.writes import (
    BrokerRemoval,
    ClusterConfigWrite,
    DeletionMark,
    Made,
    PartitionRemoval,
    PartitionWrite,
    RequestRemoval,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
    Write,
)
from spark_replication.model import ABSENT, TopicConfig, encode
from spark_replication.zk import paths
from spark_replication.zk.operations import EXISTS, Check, Create, Delete, Node, Operation, SetData

Nodes = Mapping[str, Node | None]  # as read, by path; None: there is none
Kind = TypeVar("Kind")


class Codec(ABC, Generic[Kind]):
    """How one kind of write becomes operations, and how nodes show that it is stored."""

    @abstractmethod
    def path(self, write: Kind) -> str:
        """The node that the write is about, whose version it names if it names one."""

    @abstractmethod
    def operations(self, write: Kind, there: Mapping[str, bool]) -> Iterator[Operation]:
        """The operations that store it. there: of each node of `either_way`, whether it exists. Any
        other node is taken to be as the write expects it."""

    @abstractmethod
    def is_stored(self, write: Kind, nodes: Nodes) -> bool:
        """Whether the nodes show what it writes."""

    def holds(self, write: Kind, nodes: Nodes) -> bool:
        """Whether its own condition holds."""
        return True

    def made(self, write: Kind, nodes: Nodes, proof: Node | None) -> Made:
        """What a stored write made. proof: a node that the same multi() wrote, and nobody since."""
        node = nodes[self.path(write)]
        return Made() if node is None else node.made

    def needs(self, write: Kind) -> tuple[str, ...]:
        """The nodes that a group before this one may have to write first."""
        return (self.path(write),)

    def checks(self, write: Kind) -> Iterable[Check]:
        """The conditions on nodes that it does not write."""
        return ()

    def either_way(self, write: Kind) -> tuple[str, ...]:
        """The nodes that may be there or not before the write."""
        return ()

    def also_read(self, write: Kind) -> tuple[str, ...]:
        """More nodes to read, which tell what became of the write, or what it made."""
        return ()


Versioned = TypeVar("Versioned", bound=PartitionWrite | TopicWrite)


class _AtVersion(Codec[Versioned]):
    """A write at `version`. ABSENT: it makes the node."""

    def holds(self, write: Versioned, nodes: Nodes) -> bool:
        node = nodes[self.path(write)]
        return node is None if write.version == ABSENT else node is not None and node.version == write.version

    def is_stored(self, write: Versioned, nodes: Nodes) -> bool:
        node = nodes[self.path(write)]
        return node is not None and node.version == write.version + 1 and node.data == encode(write.state)

    def made(self, write: Versioned, nodes: Nodes, proof: Node | None) -> Made:
        return super().made(write, nodes, proof) if proof is None else proof.made._replace(version=write.version + 1)


class _Partition(_AtVersion[PartitionWrite]):
    def path(self, write: PartitionWrite) -> str:
        return paths.leader_and_isr(write.partition)

    def operations(self, write: PartitionWrite, there: Mapping[str, bool]) -> Iterator[Operation]:
        if write.version != ABSENT:
            yield SetData(self.path(write), encode(write.state), write.version)
            return
        folder = paths.partition(write.partition)
        if not there.get(folder, False):
            yield Create(folder)
        yield Create(self.path(write), encode(write.state))

    def holds(self, write: PartitionWrite, nodes: Nodes) -> bool:
        return super().holds(write, nodes) and all(nodes[topic] is not None for topic in self.also_read(write))

    def needs(self, write: PartitionWrite) -> tuple[str, ...]:
        return paths.topic(write.partition.topic), self.path(write)

    def checks(self, write: PartitionWrite) -> Iterable[Check]:
        return [Check(paths.broker_epoch(broker), epoch) for broker, epoch in sorted(write.relies_on.items())]

    def either_way(self, write: PartitionWrite) -> tuple[str, ...]:
        # The folder is there if somebody removed a leaderAndISR by hand.
        return (paths.partition(write.partition),) if write.version == ABSENT else ()

    def also_read(self, write: PartitionWrite) -> tuple[str, ...]:
        return (paths.topic(write.partition.topic),) if write.version == ABSENT else ()


class _Topic(_AtVersion[TopicWrite]):
    def path(self, write: TopicWrite) -> str:
        return paths.topic(write.topic)

    def operations(self, write: TopicWrite, there: Mapping[str, bool]) -> Iterator[Operation]:
        config_path = paths.topic_config(write.topic)
        if write.version != ABSENT:
            yield SetData(self.path(write), encode(write.state), write.version)
            if write.config is not None:
                yield SetData(config_path, encode(write.config), EXISTS)
            return
        yield Create(self.path(write), encode(write.state))
        yield Create(paths.topic_id(write.state.topic_id))
        yield Create(config_path, encode(write.config or TopicConfig()))


class _Broker(Codec[BrokerRemoval]):
    """Removes the registration of a broker's life, if that is still at the given epoch."""

    def path(self, write: BrokerRemoval) -> str:
        return paths.broker_id(write.broker)

    def operations(self, write: BrokerRemoval, there: Mapping[str, bool]) -> Iterator[Operation]:
        yield Delete(self.path(write), EXISTS)

    def is_stored(self, write: BrokerRemoval, nodes: Nodes) -> bool:
        return nodes[self.path(write)] is None

    def holds(self, write: BrokerRemoval, nodes: Nodes) -> bool:
        return nodes[self.path(write)] is not None

    def checks(self, write: BrokerRemoval) -> Iterable[Check]:
        return [Check(paths.broker_epoch(write.broker), write.epoch)]


class _Mark(Codec[DeletionMark]):
    def path(self, write: DeletionMark) -> str:
        return paths.deletion_mark(write.topic)

    def operations(self, write: DeletionMark, there: Mapping[str, bool]) -> Iterator[Operation]:
        if not there.get(self.path(write), False):
            yield Create(self.path(write))

    def is_stored(self, write: DeletionMark, nodes: Nodes) -> bool:
        return nodes[self.path(write)] is not None

    def either_way(self, write: DeletionMark) -> tuple[str, ...]:
        return (self.path(write),)


class _Config(Codec[TopicConfigWrite | ClusterConfigWrite]):
    def path(self, write: TopicConfigWrite | ClusterConfigWrite) -> str:
        return paths.topic_config(write.topic) if isinstance(write, TopicConfigWrite) else paths.CLUSTER_CONFIG

    def operations(
        self, write: TopicConfigWrite | ClusterConfigWrite, there: Mapping[str, bool]
    ) -> Iterator[Operation]:
        path, data = self.path(write), encode(write.config)
        yield SetData(path, data, EXISTS) if there.get(path, True) else Create(path, data)

    def is_stored(self, write: TopicConfigWrite | ClusterConfigWrite, nodes: Nodes) -> bool:
        node = nodes[self.path(write)]
        return node is not None and node.data == encode(write.config)

    def either_way(self, write: TopicConfigWrite | ClusterConfigWrite) -> tuple[str, ...]:
        return (self.path(write),)


class _Removal(Codec[Kind]):
    """Removes all the nodes that `either_way` names. The first of them is the one that the write is about."""

    def path(self, write: Kind) -> str:
        return self.either_way(write)[0]

    def operations(self, write: Kind, there: Mapping[str, bool]) -> Iterator[Operation]:
        return (Delete(path, EXISTS) for path in self.either_way(write) if there.get(path, True))

    def is_stored(self, write: Kind, nodes: Nodes) -> bool:
        return all(nodes[path] is None for path in self.either_way(write))


class _PartitionRemoval(_Removal[PartitionRemoval]):
    def either_way(self, write: PartitionRemoval) -> tuple[str, ...]:
        return paths.leader_and_isr(write.partition), paths.partition(write.partition)


class _TopicRemoval(_Removal[TopicRemoval]):
    def either_way(self, write: TopicRemoval) -> tuple[str, ...]:
        return (
            paths.topic(write.topic),
            paths.topic_id(write.topic_id),
            paths.topic_config(write.topic),
            paths.deletion_mark(write.topic),
        )

    def also_read(self, write: TopicRemoval) -> tuple[str, ...]:
        return (paths.TOPICS,)  # its pzxid is the zxid of the removal

    def made(self, write: TopicRemoval, nodes: Nodes, proof: Node | None) -> Made:
        parent = nodes[paths.TOPICS]
        return Made() if parent is None else Made(zxid=parent.children_zxid)


class _RequestRemoval(_Removal[RequestRemoval]):
    def either_way(self, write: RequestRemoval) -> tuple[str, ...]:
        return (write.path,)


_PARTITION, _TOPIC, _BROKER, _MARK, _CONFIG = _Partition(), _Topic(), _Broker(), _Mark(), _Config()
_PARTITION_REMOVAL, _TOPIC_REMOVAL, _REQUEST_REMOVAL = _PartitionRemoval(), _TopicRemoval(), _RequestRemoval()


def codec_of(write: Write) -> Codec[Any]:
    match write:
        case PartitionWrite():
            return _PARTITION
        case TopicWrite():
            return _TOPIC
        case BrokerRemoval():
            return _BROKER
        case DeletionMark():
            return _MARK
        case TopicConfigWrite() | ClusterConfigWrite():
            return _CONFIG
        case PartitionRemoval():
            return _PARTITION_REMOVAL
        case TopicRemoval():
            return _TOPIC_REMOVAL
        case RequestRemoval():
            return _REQUEST_REMOVAL
        case _:
            assert_never(write)
