"""How groups of writes become multi()s, and what a node as read says about a write. Pure.

A group's operations stand or fall together, so a group is never split. Groups share a multi() up to a number of bytes
and operations; a check that several of them need is in it once.

A write either names the version that it was decided against, or is one that only controllers make (their epoch is in
every multi()): such a one is done also if what it makes is there already, or what it removes is gone.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from spark_replication.core.law.writes import (
    BrokerRemoval,
    ClusterConfigWrite,
    DeletionMark,
    Group,
    PartitionRemoval,
    PartitionWrite,
    RequestRemoval,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
    Write,
)
from spark_replication.errors import InvalidRequest
from spark_replication.model import ABSENT, TopicConfig, encode
from spark_replication.zk import paths
from spark_replication.zk.session import EXISTS, Check, Create, Delete, Node, Operation, SetData

MULTI_BYTES_MAX = 512 << 10
MULTI_OPERATIONS_MAX = 1_000
# A single group may be larger: up to what ZooKeeper takes (jute.maxbuffer, 1 MB) less room for headers. Past that the
# server drops the connection, for ever again.
GROUP_BYTES_MAX = 1_000_000
OPERATION_BYTES = 80  # what ZooKeeper and kazoo add to path and data: headers, lengths, ACL


class Item:
    """A group on its way. number: its place among the answers.

    unsure: it was sent, and the answer was lost: it may be stored.
    """

    __slots__ = ("_there", "bytes", "checks", "group", "number", "operations", "unsure")

    def __init__(self, number: int, group: Group, root_bytes: int) -> None:
        self.number = number
        self.group = group
        self.unsure = False
        self._there: dict[str, bool] = {}
        self.checks = tuple(dict.fromkeys(check for write in group for check in _checks(write)))
        self.operations = self._operations()
        self.bytes = sum(_bytes(operation) + root_bytes for operation in (*self.checks, *self.operations))
        if self.bytes > GROUP_BYTES_MAX:
            raise InvalidRequest(
                f"{len(group)} writes that must be stored together take {self.bytes} bytes, and ZooKeeper takes "
                f"{GROUP_BYTES_MAX} at once: ask for fewer partitions in one request"
            )

    def learn(self, nodes: Mapping[str, Node | None]) -> bool:
        """What somebody else made or removed already is not asked for again. False: it is all as was thought."""
        before = self.operations
        self._there = {path: nodes[path] is not None for write in self.group for path in _either_way(write)}
        self.operations = self._operations()
        return self.operations != before

    def _operations(self) -> tuple[Operation, ...]:
        return tuple(operation for write in self.group for operation in _operations(write, self._there))


def pack(items: Iterable[Item]) -> Iterator[list[Item]]:
    """In order, as many to a multi() as its limits allow."""
    batch: list[Item] = []
    size = operations = 0
    for item in items:
        count = len(item.checks) + len(item.operations)
        if batch and (size + item.bytes > MULTI_BYTES_MAX or operations + count > MULTI_OPERATIONS_MAX):
            yield batch
            batch, size, operations = [], 0, 0
        batch.append(item)
        size += item.bytes
        operations += count
    if batch:
        yield batch


def multi_of(batch: Iterable[Item], epoch_check: Check) -> list[tuple[Operation, Item | None]]:
    """The operations, each with the item it belongs to; None for the checks, which come first, the epoch's foremost."""
    items = list(batch)
    shared = dict.fromkeys(check for item in items for check in item.checks)
    return [
        (epoch_check, None),
        *((check, None) for check in shared),
        *((operation, item) for item in items for operation in item.operations),
    ]


def waves_of(items: Iterable[Item]) -> list[list[Item]]:
    """Split so that a group comes after those before it which wrote the same topic or partition.

    Within a wave multi()s overlap, and what is sent again comes last: order means nothing there.
    """
    written: dict[str, int] = {}
    waves: list[list[Item]] = []
    for item in items:
        needed = {path for write in item.group for path in _needed(write)}
        wave = 1 + max((written[path] for path in needed if path in written), default=-1)
        for write in item.group:
            written[written_path(write)] = wave
        if wave == len(waves):
            waves.append([])
        waves[wave].append(item)
    return waves


# What a failed multi() is sorted out by.


class Standing(enum.Enum):
    STORED = "what is there is what the group wrote"
    OPEN = "every condition holds: it can be sent"
    LOST = "a condition fails, and will for ever"


def paths_of(item: Item) -> Iterator[str]:
    """The nodes that decide where the group stands."""
    for check in item.checks:
        yield check.path
    for write in item.group:
        yield written_path(write)
        yield from _either_way(write)
        match write:
            case PartitionWrite(version=version) if version == ABSENT:
                yield paths.topic(write.partition.topic)
            case TopicRemoval():
                yield paths.TOPICS  # it tells the zxid


def standing(item: Item, nodes: Mapping[str, Node | None]) -> Standing:
    """Only a group whose answer was lost can be stored: a rejected multi() has stored nothing."""
    if item.unsure and all(_is_stored(write, nodes) for write in item.group):
        return Standing.STORED
    checks_hold = all(
        (node := nodes[check.path]) is not None and check.version in (EXISTS, node.version) for check in item.checks
    )
    return Standing.OPEN if checks_hold and all(_holds(write, nodes) for write in item.group) else Standing.LOST


def versions_stored(item: Item, nodes: Mapping[str, Node | None]) -> tuple[tuple[int, int], ...]:
    """Of a group that is stored."""
    return tuple(_version_stored(write, nodes) for write in item.group)


def _version_stored(write: Write, nodes: Mapping[str, Node | None]) -> tuple[int, int]:
    if isinstance(write, TopicRemoval):
        parent = nodes[paths.TOPICS]
        return 0, 0 if parent is None else parent.children_zxid
    node = nodes[written_path(write)]
    return (0, 0) if node is None else (node.version, node.zxid)


def _is_stored(write: Write, nodes: Mapping[str, Node | None]) -> bool:
    node = nodes[written_path(write)]
    match write:
        case PartitionWrite() | TopicWrite():
            return node is not None and node.version == write.version + 1 and node.data == encode(write.state)
        case TopicConfigWrite() | ClusterConfigWrite():
            return node is not None and node.data == encode(write.config)
        case DeletionMark():
            return node is not None
        case BrokerRemoval():
            return node is None
        case PartitionRemoval() | TopicRemoval() | RequestRemoval():
            return all(nodes[path] is None for path in _either_way(write))
        case _:
            assert_never(write)


def _holds(write: Write, nodes: Mapping[str, Node | None]) -> bool:
    """Its own condition."""
    node = nodes[written_path(write)]
    match write:
        case PartitionWrite(version=version) | TopicWrite(version=version) if version != ABSENT:
            return node is not None and node.version == version
        case PartitionWrite():
            return node is None and nodes[paths.topic(write.partition.topic)] is not None
        case TopicWrite():
            return node is None
        case BrokerRemoval():
            return node is not None
        case _:
            return True


# What a write is in ZooKeeper.


def written_path(write: Write) -> str:
    """The node that the write is about, whose version it names if it names one."""
    match write:
        case PartitionWrite() | PartitionRemoval():
            return paths.leader_and_isr(write.partition)
        case TopicWrite() | TopicRemoval():
            return paths.topic(write.topic)
        case BrokerRemoval():
            return paths.broker_id(write.broker)
        case DeletionMark():
            return paths.deletion_mark(write.topic)
        case TopicConfigWrite():
            return paths.topic_config(write.topic)
        case ClusterConfigWrite():
            return paths.CLUSTER_CONFIG
        case RequestRemoval():
            return write.path
        case _:
            assert_never(write)


def _either_way(write: Write) -> tuple[str, ...]:
    """The nodes that may be there or not, whatever the write does to them."""
    match write:
        case PartitionWrite(version=version) if version == ABSENT:
            return (paths.partition(write.partition),)  # somebody removed a leaderAndISR by hand
        case PartitionRemoval():
            return paths.leader_and_isr(write.partition), paths.partition(write.partition)
        case TopicRemoval():
            return (
                paths.topic(write.topic),
                paths.topic_id(write.topic_id),
                paths.topic_config(write.topic),
                paths.deletion_mark(write.topic),
            )
        case DeletionMark() | TopicConfigWrite() | ClusterConfigWrite() | RequestRemoval():
            return (written_path(write),)
        case _:
            return ()


def _needed(write: Write) -> tuple[str, ...]:
    """The nodes that a group before this one may have to write first."""
    if isinstance(write, PartitionWrite):
        return paths.topic(write.partition.topic), written_path(write)
    return (written_path(write),)


def _checks(write: Write) -> Iterator[Check]:
    match write:
        case PartitionWrite():
            for broker, epoch in sorted(write.relies_on.items()):
                yield Check(paths.broker_epoch(broker), epoch)
        case BrokerRemoval():
            yield Check(paths.broker_epoch(write.broker), write.epoch)


def _operations(write: Write, there: Mapping[str, bool]) -> Iterator[Operation]:
    """there: which of the nodes that may be there or not are; if nothing is said, as the write expects it."""
    match write:
        case PartitionWrite(version=version) if version != ABSENT:
            yield SetData(paths.leader_and_isr(write.partition), encode(write.state), version)
        case PartitionWrite():
            if not there.get(paths.partition(write.partition), False):
                yield Create(paths.partition(write.partition))
            yield Create(paths.leader_and_isr(write.partition), encode(write.state))
        case TopicWrite(version=version) if version != ABSENT:
            yield SetData(paths.topic(write.topic), encode(write.state), version)
            if write.config is not None:
                yield SetData(paths.topic_config(write.topic), encode(write.config), EXISTS)
        case TopicWrite():
            yield Create(paths.topic(write.topic), encode(write.state))
            yield Create(paths.topic_id(write.state.topic_id))
            yield Create(paths.topic_config(write.topic), encode(write.config or TopicConfig()))
        case BrokerRemoval():
            yield Delete(paths.broker_id(write.broker), EXISTS)
        case _:
            yield from _controllers_operations(write, there)


def _controllers_operations(
    write: DeletionMark | PartitionRemoval | TopicRemoval | TopicConfigWrite | ClusterConfigWrite | RequestRemoval,
    there: Mapping[str, bool],
) -> Iterator[Operation]:
    """Of a write that names no version."""
    match write:
        case DeletionMark():
            if not there.get(written_path(write), False):
                yield Create(written_path(write))
        case TopicConfigWrite() | ClusterConfigWrite():
            path, data = written_path(write), encode(write.config)
            yield SetData(path, data, EXISTS) if there.get(path, True) else Create(path, data)
        case PartitionRemoval() | TopicRemoval() | RequestRemoval():
            for path in _either_way(write):
                if there.get(path, True):
                    yield Delete(path, EXISTS)
        case _:
            assert_never(write)


def _bytes(operation: Operation) -> int:
    data = operation.data if isinstance(operation, (Create, SetData)) else b""
    return len(operation.path.encode()) + len(data) + OPERATION_BYTES
