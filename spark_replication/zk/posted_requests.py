"""Requests of a session whose answers come on one thread, that of whoever asks: committing.CommitRequests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spark_replication.zk.operations import Operation
from spark_replication.zk.session import Session

Post = Callable[[Callable[[], None]], object]
Then = Callable[[Any], None]


class PostedRequests:
    def __init__(self, session: Session, post: Post) -> None:
        self._session = session
        self._post = post
        self.address = session.address
        self.root_bytes = session.root_bytes

    def commit(self, operations: Sequence[Operation], then: Then) -> None:
        self._session.commit(operations, partial(self._answered, then))

    def stat(self, path: str, then: Then) -> None:
        self._session.stat(path, partial(self._answered, then))

    def read_some(self, paths: Sequence[str], then: Then) -> None:
        self._session.read_some(paths, partial(self._answered, then))

    def children(self, path: str, then: Then) -> None:
        self._session.children(path, partial(self._answered, then))

    def _answered(self, then: Then, outcome: Any) -> None:
        self._post(partial(then, outcome))
