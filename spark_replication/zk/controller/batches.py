"""How groups of writes become multi()s, and what nodes that were read say about a write. Pure.

The operations of a group are stored together or not at all, so a group is never split. Groups share a multi() up to a
number of bytes and of operations; a check that several groups need is in it once. The codec of a write (write_kinds)
says what the write is in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from spark_replication.core.law.standing import SeenWrite, proof
from spark_replication.core.law.writes import Group, Made, Write
from spark_replication.errors import InvalidRequest
from spark_replication.model import ABSENT
from spark_replication.zk.controller.write_kinds import codec_of
from spark_replication.zk.operations import EXISTS, Check, Create, Node, Operation, SetData

MULTI_BYTES_MAX = 512 << 10
MULTI_OPERATIONS_MAX = 1_000
# A single group may be larger: up to what ZooKeeper takes (jute.maxbuffer, 1 MB) less room for headers. Past that the
# server drops the connection, at each attempt.
GROUP_BYTES_MAX = 1_000_000
OPERATION_BYTES = 80  # added by ZooKeeper and kazoo to path and data: headers, lengths, ACL


class Item:
    """A group on its way."""

    __slots__ = ("_there", "bytes", "checks", "group", "number", "operations", "unsure")

    def __init__(self, number: int, group: Group, root_bytes: int) -> None:
        #: Its place among the answers.
        self.number = number
        self.group = group
        #: It was sent and the answer was lost, so it may be stored.
        self.unsure = False
        self._there: dict[str, bool] = {}
        self.checks = tuple(dict.fromkeys(check for write in group for check in codec_of(write).checks(write)))
        self.operations = self._operations()
        self.bytes = sum(_bytes(operation) + root_bytes for operation in (*self.checks, *self.operations))
        if self.bytes > GROUP_BYTES_MAX:
            raise InvalidRequest(
                f"{len(group)} writes that must be stored together take {self.bytes} bytes, and ZooKeeper takes "
                f"{GROUP_BYTES_MAX} at once: ask for fewer partitions in one request"
            )

    def learn(self, nodes: Mapping[str, Node | None]) -> bool:
        """Leave out operations whose node somebody else has made or removed already. False: nothing has changed."""
        before = self.operations
        self._there = {
            path: nodes[path] is not None for write in self.group for path in codec_of(write).either_way(write)
        }
        self.operations = self._operations()
        return self.operations != before

    def _operations(self) -> tuple[Operation, ...]:
        return tuple(operation for write in self.group for operation in codec_of(write).operations(write, self._there))


def pack(items: Iterable[Item], operations_max: int = MULTI_OPERATIONS_MAX) -> Iterator[list[Item]]:
    """The items in order, as many to a multi() as its limits allow."""
    batch: list[Item] = []
    size = operations = 0
    for item in items:
        count = len(item.checks) + len(item.operations)
        if batch and (size + item.bytes > MULTI_BYTES_MAX or operations + count > operations_max):
            yield batch
            batch, size, operations = [], 0, 0
        batch.append(item)
        size += item.bytes
        operations += count
    if batch:
        yield batch


def multi_of(batch: Iterable[Item], epoch_check: Check) -> list[tuple[Operation, Item | None]]:
    """The operations, each with its item. Checks come first, that of the epoch foremost, and have no item."""
    items = list(batch)
    shared = dict.fromkeys(check for item in items for check in item.checks)
    return [
        (epoch_check, None),
        *((check, None) for check in shared),
        *((operation, item) for item in items for operation in item.operations),
    ]


def waves_of(items: Iterable[Item]) -> list[list[Item]]:
    """Split the items so that a group comes after earlier groups that write the same topic or partition.

    Within a wave multi()s overlap, and repeated ones come last, so there is no order within a wave.
    """
    written: dict[str, int] = {}
    waves: list[list[Item]] = []
    for item in items:
        needed = {path for write in item.group for path in codec_of(write).needs(write)}
        wave = 1 + max((written[path] for path in needed if path in written), default=-1)
        for write in item.group:
            written[written_path(write)] = wave
        if wave == len(waves):
            waves.append([])
        waves[wave].append(item)
    return waves


# How a failed multi() is sorted out.


def paths_of(item: Item) -> Iterator[str]:
    """The nodes that decide what became of the group."""
    for check in item.checks:
        yield check.path
    for write in item.group:
        codec = codec_of(write)
        yield codec.path(write)
        yield from codec.either_way(write)
        yield from codec.also_read(write)


def looks_at(item: Item, nodes: Mapping[str, Node | None]) -> list[SeenWrite]:
    return [_look(write, nodes) for write in item.group]


def _look(write: Write, nodes: Mapping[str, Node | None]) -> SeenWrite:
    codec = codec_of(write)
    node = nodes[codec.path(write)]
    checks_hold = all(
        (checked := nodes[check.path]) is not None and check.version in (EXISTS, checked.version)
        for check in codec.checks(write)
    )
    return SeenWrite(
        write,
        version=ABSENT if node is None else node.version,
        shows=codec.is_stored(write, nodes),
        holds=checks_hold and codec.holds(write, nodes),
    )


def made_by(looks: Sequence[SeenWrite], nodes: Mapping[str, Node | None]) -> tuple[Made, ...]:
    """What the writes of a stored group made. looks: as `looks_at` returns them."""
    proving = proof(looks)
    node = None if proving is None else nodes[written_path(proving)]
    return tuple(codec_of(look.write).made(look.write, nodes, node) for look in looks)


def written_path(write: Write) -> str:
    return codec_of(write).path(write)


def _bytes(operation: Operation) -> int:
    data = operation.data if isinstance(operation, (Create, SetData)) else b""
    return len(operation.path.encode()) + len(data) + OPERATION_BYTES
