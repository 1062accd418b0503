"""How groups of writes become multi()s, and what a node as read says about a write. Pure.

A group's operations stand or fall together, so a group is never split. Groups share a multi() up to a number of bytes
and operations; a check that several of them need is in it once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

from spark_replication.core.writes import BrokerRemoval, Group, PartitionWrite, TopicWrite, Write
from spark_replication.errors import InvalidRequest
from spark_replication.model import ABSENT, TopicConfig, TopicPartition, encode
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
    bare: partitions whose parent is there already (somebody removed a leaderAndISR by hand).
    """

    __slots__ = ("bare", "bytes", "checks", "group", "number", "operations", "unsure")

    def __init__(self, number: int, group: Group, root_bytes: int) -> None:
        self.number = number
        self.group = group
        self.unsure = False
        self.bare: frozenset[TopicPartition] = frozenset()
        self.checks = tuple(dict.fromkeys(check for write in group for check in _checks(write)))
        self.operations = self._operations()
        self.bytes = sum(_bytes(operation) + root_bytes for operation in (*self.checks, *self.operations))
        if self.bytes > GROUP_BYTES_MAX:
            raise InvalidRequest(
                f"{len(group)} writes that must be stored together take {self.bytes} bytes, and ZooKeeper takes "
                f"{GROUP_BYTES_MAX} at once: ask for fewer partitions in one request"
            )

    def create_below(self, parents_there: frozenset[TopicPartition]) -> None:
        self.bare |= parents_there
        self.operations = self._operations()

    def _operations(self) -> tuple[Operation, ...]:
        return tuple(operation for write in self.group for operation in _operations(write, self.bare))


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
        if isinstance(write, PartitionWrite) and write.version == ABSENT:
            yield paths.topic(write.partition.topic)
            yield paths.partition(write.partition)


def standing(item: Item, nodes: Mapping[str, Node | None]) -> Standing:
    """Only a group whose answer was lost can be stored: a rejected multi() has stored nothing."""
    if item.unsure and all(_is_stored(write, nodes[written_path(write)]) for write in item.group):
        return Standing.STORED
    checks_hold = all(
        (node := nodes[check.path]) is not None and check.version in (EXISTS, node.version) for check in item.checks
    )
    return Standing.OPEN if checks_hold and all(_holds(write, nodes) for write in item.group) else Standing.LOST


def parents_there(item: Item, nodes: Mapping[str, Node | None]) -> frozenset[TopicPartition]:
    return frozenset(
        write.partition
        for write in item.group
        if isinstance(write, PartitionWrite)
        and write.version == ABSENT
        and nodes[paths.partition(write.partition)] is not None
    )


def versions_stored(item: Item, nodes: Mapping[str, Node | None]) -> tuple[tuple[int, int], ...]:
    """Of a group that is stored."""
    found = (nodes[written_path(write)] for write in item.group)
    return tuple((0, 0) if node is None else (node.version, node.zxid) for node in found)


def _is_stored(write: Write, node: Node | None) -> bool:
    if isinstance(write, BrokerRemoval):
        return node is None
    return node is not None and node.version == write.version + 1 and node.data == encode(write.state)


def _holds(write: Write, nodes: Mapping[str, Node | None]) -> bool:
    node = nodes[written_path(write)]
    if isinstance(write, BrokerRemoval):
        return node is not None
    if write.version != ABSENT:
        return node is not None and node.version == write.version
    return node is None and (isinstance(write, TopicWrite) or nodes[paths.topic(write.partition.topic)] is not None)


# What a write is in ZooKeeper.


def written_path(write: Write) -> str:
    """The node whose version the write names."""
    match write:
        case PartitionWrite():
            return paths.leader_and_isr(write.partition)
        case TopicWrite():
            return paths.topic(write.topic)
        case BrokerRemoval():
            return paths.broker_id(write.broker)


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


def _operations(write: Write, bare: frozenset[TopicPartition]) -> Iterator[Operation]:
    match write:
        case PartitionWrite(version=version) if version != ABSENT:
            yield SetData(paths.leader_and_isr(write.partition), encode(write.state), version)
        case PartitionWrite():
            if write.partition not in bare:
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


def _bytes(operation: Operation) -> int:
    data = operation.data if isinstance(operation, (Create, SetData)) else b""
    return len(operation.path.encode()) + len(data) + OPERATION_BYTES
