"""ZooKeeper's tree: nodes with versions, and multi()s that are stored whole or not at all.

One zxid for each multi(), as ZooKeeper gives it. Nothing here takes time or fails: that is for whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from spark_replication.core.law.writes import Made
from spark_replication.zk.operations import (
    EXISTS,
    NOWHERE,
    Check,
    Committed,
    Create,
    Delete,
    Folder,
    Node,
    Operation,
    Rejected,
    RejectionReason,
    SetData,
    UnreadNode,
)

ROOT = Node(b"", 0, 0, 0, 0)


class _Refused(Exception):
    def __init__(self, reason: RejectionReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Znodes:
    def __init__(self, paths: Iterable[str] = (), now_ms: Callable[[], int] = lambda: 0) -> None:
        """paths: of nodes that are there from the start, parents first."""
        self.zxid = 0
        self._now_ms = now_ms
        self._nodes: dict[str, Node] = {"": ROOT}
        self._children: dict[str, set[str]] = {"": set()}
        #: The nodes as they were before the multi() under way.
        self._before: dict[str, Node | None] = {}
        for path in paths:
            assert isinstance(self.multi([Create(path)]), Committed), path

    def read(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> list[str] | None:
        """The names of the children, sorted; None if there is no such node."""
        names = self._children.get(path)
        return None if names is None else sorted(names)

    # zk.reading.NodeReads

    def read_now(self, path: str) -> Node | None:
        return self.read(path)

    def read_each(self, paths: Sequence[str], watch: object = None) -> list[Node | UnreadNode | None]:
        return [self.read(path) for path in paths]

    def folder_now(self, path: str, watch: object = None) -> Folder:
        node = self.read(path)
        return Folder([], NOWHERE) if node is None else Folder(self.children(path) or [], node.children_zxid)

    def children_now(self, path: str, watch: object = None) -> list[str]:
        return self.children(path) or []

    def children_many(self, paths: Sequence[str], watch: object = None) -> list[list[str] | UnreadNode]:
        return [self.children_now(path) for path in paths]

    def owned_by(self, session: int) -> list[str]:
        """The ephemeral nodes of a session."""
        return sorted(path for path, node in self._nodes.items() if session and node.owner == session)

    def multi(self, operations: Sequence[Operation], session: int = 0) -> Committed | Rejected:
        """Store all of the operations, or none. session: whose ephemeral nodes they make."""
        self._before = {}
        self.zxid += 1
        stored: list[Made | None] = []
        for place, operation in enumerate(operations):
            try:
                stored.append(self._carry_out(operation, session))
            except _Refused as refused:
                self._roll_back()
                return Rejected(place, refused.reason)
        return Committed(tuple(stored))

    @property
    def changed(self) -> dict[str, Node | None]:
        """What the last multi() changed: the nodes as they were before it. Empty if it was rejected."""
        return self._before

    def _carry_out(self, operation: Operation, session: int) -> Made | None:
        match operation:
            case Create():
                self._create(operation, session)
            case SetData(path=path, data=data, version=version):
                node = self._at(path, version)._replace(data=data, zxid=self.zxid, modified_ms=self._now_ms())
                node = node._replace(version=node.version + 1)
                self._put(path, node)
                return node.made
            case Delete(path=path, version=version):
                self._at(path, version)
                if self._children[path]:
                    raise _Refused(RejectionReason.NOT_EMPTY)
                self._put(path, None)
                self._child_changed(path)
            case Check(path=path, version=version):
                self._at(path, version)
            case _:
                assert_never(operation)
        return None

    def _create(self, wanted: Create, session: int) -> None:
        path = wanted.path
        parent = self._nodes.get(_parent(path))
        if parent is None:
            raise _Refused(RejectionReason.NO_NODE)
        if wanted.sequence:
            # The number of children that were ever made: a change of the number of children is one made or one gone.
            path = f"{path}{(parent.children_changes + parent.children) // 2:010d}"
        if path in self._nodes:
            raise _Refused(RejectionReason.NODE_EXISTS)
        owner = session if wanted.ephemeral else 0
        self._put(path, Node(wanted.data, 0, self.zxid, self.zxid, owner, 0, self.zxid, self._now_ms()))
        self._child_changed(path)

    def _at(self, path: str, version: int) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise _Refused(RejectionReason.NO_NODE)
        if version not in (EXISTS, node.version):
            raise _Refused(RejectionReason.BAD_VERSION)
        return node

    def _child_changed(self, path: str) -> None:
        name, folder = path.rpartition("/")[2], _parent(path)
        names = self._children[folder]
        if path in self._nodes:
            names.add(name)
        else:
            names.remove(name)
        parent = self._nodes[folder]
        changes = parent.children_changes + 1
        self._put(
            folder,
            parent._replace(children=len(names), children_zxid=self.zxid, children_changes=changes),
        )

    def _put(self, path: str, node: Node | None) -> None:
        self._before.setdefault(path, self._nodes.get(path))
        if node is None:
            del self._nodes[path]
            del self._children[path]
        else:
            self._nodes[path] = node
            self._children.setdefault(path, set())

    def _roll_back(self) -> None:
        for path, before in self._before.items():
            if before is None:
                self._nodes.pop(path, None)
                self._children.pop(path, None)
            else:
                self._nodes[path] = before
                self._children.setdefault(path, set())
        for path in self._before:
            if path:
                names = self._children.get(_parent(path))
                if names is not None:
                    (names.add if path in self._nodes else names.discard)(path.rpartition("/")[2])
        self._before = {}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
