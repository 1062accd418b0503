"""Requests below /admin: any ZooKeeper client may write them, and the controller removes them when they are done.

| node                          | data                     | what is asked for                                      |
| ----------------------------- | ------------------------ | ------------------------------------------------------ |
| partitions_reassigned/[t]/[p] | replicas: `[4, 5]` (a)   | that the partition moves there, in order of preference |
| partitions_add/[t]/[p]        | replicas, likewise       | that there is such a partition                         |
| partitions_remove/[t]/[p]     | none                     | that this last partition of its topic goes             |
| delete_topics/[t]             | none                     | that the topic goes                                    |
| preferred_replica_election    | none, or `["foo-3"]` (b) | that preferred replicas lead these; none: all that can |

(a) or `{"v": 1, "replicas": [4, 5]}`. (b) or `{"v": 1, "partitions": ["foo-3"]}`.

A node that cannot be read as a request is logged and left: its writer may correct it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from spark_replication.core.controller.events import Requested
from spark_replication.decoding import UNDECODABLE, from_json
from spark_replication.messages.requests import (
    AddPartitions,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
)
from spark_replication.model import BrokerId, TopicPartition, number_of, require, shortened
from spark_replication.zk import paths
from spark_replication.zk.operations import Node, UnreadNode
from spark_replication.zk.reading import NodeReads
from spark_replication.zk.session import Watch

VERSION = 1
UNREAD = Node(b"", -2, -1, -1, 0)  # stands for a node that may not be read
_FOLDERS = (paths.REASSIGNED, paths.ADDED, paths.REMOVED)

Kind = TypeVar("Kind")


class FoundRequest(NamedTuple):
    """A node below /admin."""

    path: str
    node: Node
    #: None if the node is no request.
    asked: Request | None
    #: Why it is none.
    why: str = ""

    @property
    def requested(self) -> Requested | None:
        return None if self.asked is None else Requested(asked=self.asked, path=self.path)


class _Replicas(msgspec.Struct, forbid_unknown_fields=True):
    replicas: Annotated[tuple[BrokerId, ...], msgspec.Meta(min_length=1)]
    v: int = VERSION

    def __post_init__(self) -> None:
        require(self.v == VERSION, f"version {self.v} is not known here, {VERSION} is")


class _Partitions(msgspec.Struct, forbid_unknown_fields=True):
    partitions: tuple[str, ...] | None = None
    v: int = VERSION

    def __post_init__(self) -> None:
        require(self.v == VERSION, f"version {self.v} is not known here, {VERSION} is")
        for name in self.partitions or ():
            TopicPartition.parse(name)


def read_requests(reads: NodeReads, watch: Watch | None = None) -> list[FoundRequest]:
    """Everything below /admin, in an order in which it can be done: partitions are added at a topic's tail in ascending
    order, and removed from there in descending order. watch: called for nodes that come and go."""
    if watch is not None:
        reads.children_now(paths.ADMIN, watch)
    folders = [*_FOLDERS, paths.DELETE_TOPICS]
    closed: dict[str, str] = {}  # folders that may not be listed, and why
    *topics, deleted = _listed(reads, folders, watch, closed)
    named = [f"{folder}/{topic}" for folder, names in zip(_FOLDERS, topics, strict=True) for topic in names]
    wanted = [paths.deletion_mark(topic) for topic in deleted]
    for path, numbers in zip(named, _listed(reads, named, watch, closed), strict=True):
        ordered = sorted(numbers, key=_place)
        wanted += [f"{path}/{number}" for number in (reversed(ordered) if path.startswith(paths.REMOVED) else ordered)]
    wanted.append(paths.PREFERRED_ELECTION)
    found = list(_found(wanted, reads.read_each(wanted)))
    return [*found, *(FoundRequest(path, UNREAD, None, why) for path, why in closed.items())]


def _listed(
    reads: NodeReads, folders: Sequence[str], watch: Watch | None, closed: dict[str, str]
) -> list[Sequence[str]]:
    names: list[Sequence[str]] = []
    for folder, found in zip(folders, reads.children_many(folders, watch), strict=True):
        if isinstance(found, UnreadNode):
            closed[folder] = found.why
        names.append(() if isinstance(found, UnreadNode) else found)
    return names


def _place(name: str) -> tuple[int, str]:
    number = number_of(name)
    return (-1 if number is None else number), name


def _found(wanted: Sequence[str], nodes: Sequence[Node | UnreadNode | None]) -> Iterator[FoundRequest]:
    for path, node in zip(wanted, nodes, strict=True):
        if isinstance(node, UnreadNode):
            yield FoundRequest(path, UNREAD, None, node.why)
        elif node is not None:
            try:
                yield FoundRequest(path, node, asked_by(path, node.data))
            except (ValueError, *UNDECODABLE) as error:
                yield FoundRequest(path, node, None, str(error))


def asked_by(path: str, data: bytes) -> Request:
    """The request in a node. Raises ValueError, or an error of msgspec's, if it is none."""
    if path == paths.PREFERRED_ELECTION:
        return ElectLeaders(kind="preferred", partitions=_named_partitions(data))
    folder, _, name = path.rpartition("/")
    if folder == paths.DELETE_TOPICS:
        return DeleteTopic(topic=name)
    folder, _, topic = folder.rpartition("/")
    number = number_of(name)
    if number is None:
        raise ValueError(f"{shortened(name)} is not the number of a partition")
    partition = TopicPartition(topic, number)
    if folder == paths.REMOVED:
        return RemovePartitions(partitions={topic: (partition.partition,)})
    replicas = _replicas(data)
    if folder == paths.ADDED:
        return AddPartitions(assignments={topic: {partition.partition: replicas}})
    return Reassign(targets={str(partition): replicas})


def _replicas(data: bytes) -> tuple[BrokerId, ...]:
    listed = data.lstrip().startswith(b"[")
    return from_json(b'{"replicas":%b}' % data if listed else data, _Replicas).replicas


def _named_partitions(data: bytes) -> tuple[str, ...] | None:
    if not data.strip():
        return None
    listed = data.lstrip().startswith(b"[")
    return from_json(b'{"partitions":%b}' % data if listed else data, _Partitions).partitions
