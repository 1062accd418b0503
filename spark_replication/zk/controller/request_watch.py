"""Reports requests below /admin to the controller: each once, however often it is read.

- A node is known by its path and mzxid, so one that was removed and written again, or corrected, is a new request.
- The mark of a deletion that this controller itself carries out is no request: a late one would delete a topic that was
  made again meanwhile.
- A node that cannot be read stays, and stands in the cluster's problems (Z1).
- The watch ends only when it is stopped, or with its session.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence

from spark_replication.core.controller.events import NodesUnreadable, Requested
from spark_replication.core.law.writes import DeletionMark, Group, GroupAnswer, Stored, TopicRemoval
from spark_replication.errors import ReplicationError
from spark_replication.messages.requests import DeleteTopic
from spark_replication.model import shortened
from spark_replication.process.threads import Worker
from spark_replication.zk import paths
from spark_replication.zk.controller.admin_requests import FoundRequest, read_requests
from spark_replication.zk.operations import Node
from spark_replication.zk.session import Session, SessionLost

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
LOOK_S = 5.0

log = logging.getLogger(__name__)


class Deletions:
    """Deletions that this controller carries out, and the marks that belong to them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By topic, up to which zxid a mark belongs to the deletion; infinite while the deletion is under way.
        self._up_to: dict[str, float] = {}

    def begin(self, topics: Iterable[str]) -> None:
        with self._lock:
            self._up_to.update(dict.fromkeys(topics, math.inf))

    def sent(self, groups: Sequence[Group]) -> bool:
        """Call it before the groups are sent. True: call `answered` with their answers."""
        self.begin(write.topic for group in groups for write in group if isinstance(write, DeletionMark))
        return any(isinstance(write, TopicRemoval) for group in groups for write in group)

    def answered(self, groups: Sequence[Group], answers: Sequence[GroupAnswer]) -> None:
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, Stored):
                for write, made in zip(group, answer.made, strict=True):
                    if isinstance(write, TopicRemoval):
                        with self._lock:
                            self._up_to[write.topic] = made.zxid

    def over(self) -> frozenset[str]:
        with self._lock:
            return frozenset(topic for topic, up_to in self._up_to.items() if up_to < math.inf)

    def forget(self, topics: Iterable[str]) -> None:
        """Forget deletions whose marks were not found by a reading that began after they were over."""
        with self._lock:
            for topic in topics:
                if self._up_to.get(topic, math.inf) < math.inf:
                    del self._up_to[topic]

    def covers(self, topic: str, created_zxid: int) -> bool:
        with self._lock:
            return created_zxid <= self._up_to.get(topic, -1)


class RequestWatch:
    """Starts at once."""

    def __init__(
        self,
        session: Session,
        on_event: Callable[[Requested | NodesUnreadable], None],
        loaded: Iterable[FoundRequest],
        deletions: Deletions,
    ) -> None:
        """loaded: requests that the controller has read already, and is not told of again."""
        self._session = session
        self._on_event = on_event
        self._deletions = deletions
        self._known = {found.path: found.node.zxid for found in loaded if found.asked is not None}
        self._changed = threading.Condition()
        self._marked = True
        self._stopped = False
        self._unreadable: dict[str, str] = {}
        self.worker = Worker(self._run, "request-watch")
        self.worker.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self.worker.stop()
            self._changed.notify_all()

    def _mark(self, _event: object) -> None:
        with self._changed:
            self._marked = True
            self._changed.notify_all()

    def _run(self) -> None:
        pause_s = PAUSE_S_MIN
        while True:
            with self._changed:
                # No event comes when an ACL is corrected: what cannot be read is read again from time to time.
                self._changed.wait_for(lambda: self._stopped or self._marked, LOOK_S if self._unreadable else None)
                if self._stopped:
                    return
                self._marked = False
            try:
                self._read()
                pause_s = PAUSE_S_MIN
            except SessionLost as error:
                log.info("requests below /admin are no longer read: %s", error)
                return
            except ReplicationError as error:
                log.warning("requests below /admin wait for ZooKeeper, next look in %s s: %s", pause_s, error)
                self._mark(None)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _read(self) -> None:
        over = self._deletions.over()
        found = read_requests(self._session, self._mark)
        unreadable = {each.path: each.why for each in found if each.asked is None}
        if unreadable != self._unreadable:
            self._unreadable = unreadable
            self._on_event(NodesUnreadable(paths.ADMIN, unreadable))
        for each in found:
            if self._known.get(each.path) != each.node.zxid:
                self._known[each.path] = each.node.zxid
                self._take(each)
        self._known = {each.path: each.node.zxid for each in found}
        marked = {each.asked.topic for each in found if isinstance(each.asked, DeleteTopic)}
        self._deletions.forget(over - marked)

    def _take(self, found: FoundRequest) -> None:
        requested = found.requested
        if requested is None:
            log.error(
                "%s is left alone, since it is no request: %s. Correct or remove it",
                shortened(found.path),
                shortened(found.why),
            )
            # Only a watch on the node itself fires when its data changes.
            (node,) = self._session.read_each([found.path], self._mark)
            if isinstance(node, Node) and node.zxid != found.node.zxid:
                self._mark(None)
        elif not self._is_ours(found):
            log.info("%s asks for %s", found.path, requested.asked)
            self._on_event(requested)

    def _is_ours(self, found: FoundRequest) -> bool:
        created_zxid = found.node.created_zxid
        return isinstance(found.asked, DeleteTopic) and self._deletions.covers(found.asked.topic, created_zxid)
