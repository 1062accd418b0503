"""Requests to ZooKeeper and its answers, as values: nodes, operations of a multi(), outcomes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from kazoo import exceptions as kazoo_errors

from spark_replication.core.law.writes import Made
from spark_replication.model import EPOCH_MAX


class Node(NamedTuple):
    """A znode as read."""

    data: bytes
    version: int
    #: Its mzxid.
    zxid: int
    created_zxid: int
    #: The session that an ephemeral node ends with; 0 for any other node.
    owner: int
    children: int = 0
    #: Its pzxid: when a child last came or went.
    children_zxid: int = 0
    #: By the clock of the server that led then.
    modified_ms: int = 0
    #: Its cversion: how often a child came or went.
    children_changes: int = 0

    @property
    def made(self) -> Made:
        return Made(self.version, self.zxid, self.modified_ms)


NOWHERE = 0


class Folder(NamedTuple):
    """A znode's children as listed."""

    #: Sorted.
    names: list[str]
    #: The pzxid of the znode: when a child last came or went. NOWHERE if there is no such znode.
    zxid: int


class UnreadNode(NamedTuple):
    """The node is there, and this session may not read it."""

    why: str


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(NamedTuple):
    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    path: str
    version: int


class Check(NamedTuple):
    path: str
    version: int


Operation = Create | SetData | Delete | Check
# Many reads in one request save kazoo's CPU. Not more: the largest nodes are topics of 512 KB, and ZooKeeper holds a
# whole answer in memory.
READS_AT_ONCE_MAX = 32
EXISTS = -1  # as the version of a Check or a Delete: whichever it is at


class Committed(NamedTuple):
    """All operations of the multi() were stored."""

    #: What each SetData made; None for every other operation.
    stored: tuple[Made | None, ...]


class Rejected(NamedTuple):
    """Nothing of the multi() was stored."""

    #: The index of the operation that failed.
    operation: int
    reason: RejectionReason


class RejectionReason(enum.Enum):
    NO_NODE = "no such node"
    NODE_EXISTS = "the node exists"
    BAD_VERSION = "the node is at another version"
    NOT_EMPTY = "the node has children"
    OTHER = "ZooKeeper refused it"


_REASONS: dict[type[Exception], RejectionReason] = {
    kazoo_errors.NoNodeError: RejectionReason.NO_NODE,
    kazoo_errors.NodeExistsError: RejectionReason.NODE_EXISTS,
    kazoo_errors.BadVersionError: RejectionReason.BAD_VERSION,
    kazoo_errors.NotEmptyError: RejectionReason.NOT_EMPTY,
}
NOT_PERMITTED = "correct its ACL, or the credentials"


def is_possible(operation: Operation) -> bool:
    """Whether it can be sent: no znode is at a version beyond 31 bits, and kazoo's thread would die of packing one."""
    return isinstance(operation, Create) or EXISTS <= operation.version <= EPOCH_MAX


def node_of(answer: tuple[bytes, Any]) -> Node:
    data, stat = answer
    return _of_stat(data, stat)


def nodes_of(answers: Sequence[tuple[bytes, Any] | Exception | None]) -> list[Node | UnreadNode | None]:
    return [_node_or_reason(answer) for answer in answers]


def _node_or_reason(answer: tuple[bytes, Any] | Exception | None) -> Node | UnreadNode | None:
    if isinstance(answer, Exception):
        return UnreadNode(f"it may not be read: {NOT_PERMITTED}")
    return None if answer is None else node_of(answer)


def folder_of(answer: tuple[list[str], Any]) -> Folder:
    names, stat = answer
    return Folder(sorted(names), stat.pzxid)


def stat_of(stat: Any) -> Node | None:
    return None if stat is None else _of_stat(b"", stat)


def _of_stat(data: bytes, stat: Any) -> Node:
    return Node(
        data,
        stat.version,
        stat.mzxid,
        stat.czxid,
        stat.ephemeralOwner,
        stat.numChildren,
        stat.pzxid,
        stat.mtime,
        stat.cversion,
    )


def multi_outcome(operations: Sequence[Operation], results: Sequence[Any]) -> Committed | Rejected:
    """What became of a multi(). If it was rejected, ZooKeeper answers RolledBack for the operations before the culprit,
    and RuntimeInconsistency for those after it."""
    for place, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, kazoo_errors.RolledBackError):
            return Rejected(place, _REASONS.get(type(result), RejectionReason.OTHER))
    assert len(results) == len(operations), f"{len(results)} answers to {len(operations)} operations"
    return Committed(
        tuple(
            Made(result.version, result.mzxid, result.mtime) if isinstance(operation, SetData) else None
            for operation, result in zip(operations, results, strict=True)
        )
    )
