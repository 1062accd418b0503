"""One node, kept up to date in memory.

ZooKeeper fires a watch once, and does not say what changed. So a watch is set before each read, and every event leads
to both again: a change during the read has its own event, and none is lost. Answers come in the order of their
execution: the last one is the newest.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from spark_replication.errors import ReplicationError
from spark_replication.zk.operations import Node
from spark_replication.zk.session import NotPermitted, ReadOutcome, Session

LOOK_S = 5.0  # between two tries to look at a node that this session may not even look at


class NodeWatch:
    """Calls `on_read` after every read, until the session ends: with None while there is no such node, and with a node
    without data while its data may not be read."""

    def __init__(self, session: Session, path: str, on_read: Callable[[Node | None], None]) -> None:
        self.current: Node | None = None
        self._session = session
        self._path = path
        self._on_read = on_read
        self._first = threading.Event()
        self._cancelled = False
        self._arm(None)

    def wait_first(self, timeout_s: float) -> bool:
        """Wait until `current` is known. False: the time is up."""
        return self._first.wait(timeout_s)

    def cancel(self) -> None:
        self._cancelled = True

    def _arm(self, _event: object) -> None:
        if not self._cancelled:
            self._session.stat(self._path, self._seen, self._arm)

    def _seen(self, outcome: ReadOutcome) -> None:
        if isinstance(outcome, NotPermitted):
            # No event comes when that changes, or when the node goes: what was known holds until the next look.
            self._first.set()
            timer = threading.Timer(LOOK_S, self._arm, (None,))
            timer.daemon = True
            timer.start()
        elif outcome is None or isinstance(outcome, ReplicationError):
            self._read(outcome)
        else:
            # If the data may not be read, the stat still says that the node is there, and whose it is.
            seen = outcome
            self._session.read(self._path, lambda read: self._read(seen if isinstance(read, NotPermitted) else read))

    def _read(self, outcome: ReadOutcome) -> None:
        ended = isinstance(outcome, ReplicationError)
        if not isinstance(outcome, ReplicationError):
            self.current = outcome
        self._first.set()
        if not ended and not self._cancelled:
            self._on_read(self.current)


def wait_for_node(session: Session, path: str, timeout_s: float) -> Node | None:
    """Wait for the node. None: the time is up before it is there."""
    found: queue.SimpleQueue[Node] = queue.SimpleQueue()
    watch = NodeWatch(session, path, lambda node: None if node is None else found.put(node))
    try:
        return found.get(timeout=timeout_s)
    except queue.Empty:
        return None
    finally:
        watch.cancel()
