"""A ZooKeeper whose answers wait (zk.controller.committing.CommitRequests, zk.broker.isr_writes.IsrRequests)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk import paths
from spark_replication.zk.operations import Committed, Operation, UnreadNode


class ZooKeeper:
    """Requests, each of which is carried out, and answered, when the story says so."""

    address = "zookeeper"
    root_bytes = 0

    def __init__(self) -> None:
        self.tree = Znodes((*paths.BASE, paths.CONTROLLER_EPOCH))
        self.sent: list[tuple[str, Callable[[], Any], Callable[[Any], None]]] = []
        self.multis: list[Sequence[Operation]] = []
        self.unread: set[str] = set()
        self.most_in_flight = 0

    def commit(self, operations: Sequence[Operation], then: Callable[[Any], None]) -> None:
        self.multis.append(operations)
        self._send("commit", partial(self.tree.multi, tuple(operations)), then)

    def read(self, path: str, then: Callable[[Any], None]) -> None:
        self._send("read", partial(self._read_one, path), then)

    def stat(self, path: str, then: Callable[[Any], None]) -> None:
        self._send("stat", partial(self.tree.read, path), then)

    def read_some(self, paths: Sequence[str], then: Callable[[Any], None]) -> None:
        self._send("read", partial(self._read, tuple(paths)), then)

    def children(self, path: str, then: Callable[[Any], None]) -> None:
        self._send("children", partial(self.tree.children, path), then)

    def _read(self, wanted: Sequence[str]) -> list[Any]:
        return [UnreadNode("no") if path in self.unread else self.tree.read(path) for path in wanted]

    def _read_one(self, path: str) -> Any:
        return self._read([path])[0]

    def _send(self, what: str, operate: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.sent.append((what, operate, then))
        self.most_in_flight = max(self.most_in_flight, sum(each == "commit" for each, _, _ in self.sent))

    def answer(self, place: int = 0) -> None:
        _, operate, then = self.sent.pop(place)
        then(operate())

    def answer_all(self, place: int = 0) -> None:
        while self.sent:
            self.answer(place)

    def fail(self, outcome: object, *, stored: bool = False) -> None:
        """The next answer is this one."""
        _, operate, then = self.sent.pop(0)
        if stored:
            operate()
        then(outcome)

    def write(self, *operations: Operation) -> None:
        assert isinstance(self.tree.multi(operations), Committed)
