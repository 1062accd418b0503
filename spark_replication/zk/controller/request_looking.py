"""Which requests below /admin the controller is told of: each once, however often it is read.

- A node is known by its path and mzxid, so one that was removed and written again, or corrected, is a new request.
- The mark of a deletion that this controller itself carries out is no request: a late one would delete a topic that was
  made again meanwhile.
- A node that cannot be read stays, and stands in the cluster's problems (Z1).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Iterator, Sequence

from spark_replication.core.controller.events import NodesUnreadable, Requested
from spark_replication.core.law.writes import DeletionMark, Group, GroupAnswer, Stored, TopicRemoval
from spark_replication.messages.requests import DeleteTopic
from spark_replication.model import shortened
from spark_replication.zk import paths
from spark_replication.zk.controller.admin_requests import FoundRequest, read_requests
from spark_replication.zk.controller.looking import LOOK_S, PAUSE_S_MAX, PAUSE_S_MIN
from spark_replication.zk.operations import Node
from spark_replication.zk.reading import NodeReads
from spark_replication.zk.session import Watch

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


class RequestLooking:
    def __init__(self, loaded: Iterable[FoundRequest], deletions: Deletions, look_s: float = LOOK_S) -> None:
        """loaded: requests that the controller has read already, and is not told of again."""
        self._deletions = deletions
        self._look_s = look_s
        self._known = {found.path: found.node.zxid for found in loaded if found.asked is not None}
        self._is_marked = True
        self._unreadable: dict[str, str] = {}
        self._over: frozenset[str] = frozenset()
        self._looks_at_s = self._not_before_s = 0.0
        self._pause_s = PAUSE_S_MIN

    def mark(self) -> None:
        self._is_marked = True

    @property
    def due_s(self) -> float:
        """When there is something to read. What cannot be read is read again from time to time: no event comes when an
        ACL is corrected."""
        if self._is_marked:
            return self._not_before_s
        return self._looks_at_s if self._unreadable else math.inf

    def taken(self) -> None:
        """Call it before a reading."""
        self._is_marked = False
        self._over = self._deletions.over()

    def failed(self, now_s: float) -> float:
        """Nothing could be read. Returns for how long nothing is due."""
        self._is_marked = True
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, PAUSE_S_MAX)
        self._not_before_s = now_s + pause_s
        return pause_s

    def found(self, found: Sequence[FoundRequest], now_s: float) -> Iterator[Requested | NodesUnreadable]:
        """What the controller is to be told."""
        self._pause_s = PAUSE_S_MIN
        unreadable = {each.path: each.why for each in found if each.asked is None}
        self._looks_at_s = now_s + self._look_s
        if unreadable != self._unreadable:
            self._unreadable = unreadable
            yield NodesUnreadable(paths.ADMIN, unreadable)
        for each in found:
            if self._known.get(each.path) != each.node.zxid:
                requested = each.requested
                if requested is None:
                    log.error(
                        "%s is left alone, since it is no request: %s. Correct or remove it",
                        shortened(each.path),
                        shortened(each.why),
                    )
                elif not self._is_ours(each):
                    log.info("%s asks for %s", each.path, requested.asked)
                    yield requested
        self._known = {each.path: each.node.zxid for each in found}
        marked = {each.asked.topic for each in found if isinstance(each.asked, DeleteTopic)}
        self._deletions.forget(self._over - marked)

    def _is_ours(self, found: FoundRequest) -> bool:
        created_zxid = found.node.created_zxid
        return isinstance(found.asked, DeleteTopic) and self._deletions.covers(found.asked.topic, created_zxid)


def looked_for(reads: NodeReads, watch: Watch | None = None) -> list[FoundRequest]:
    """Read all requests. What is none is read again under the watch, which else only fires for nodes that come and
    go."""
    found = read_requests(reads, watch)
    wrong = [each for each in found if each.asked is None]
    nodes = reads.read_each([each.path for each in wrong], watch) if wrong and watch is not None else []
    for each, node in zip(wrong, nodes, strict=False):
        if isinstance(node, Node) and node.zxid != each.node.zxid and watch is not None:
            watch(None)  # it was corrected in between
    return found
