"""ZooKeeper as a controller uses it: win, load, write, watch, resign (C1).

One store is one candidacy, on a session of its own: once deposed it stores nothing more, and another store is needed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from spark_replication.config import Settings
from spark_replication.core.claims.campaigning import Campaigning, Won
from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.core.controller.events import BrokersRead, NodesUnreadable, PartitionsRead, Requested
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import Deposed, Group, GroupAnswer
from spark_replication.errors import NotController, ReplicationError, RequestTimedOut
from spark_replication.model import (
    ClusterInfo,
    ControllerInfo,
    HeldDirectory,
    decode,
    encode,
)
from spark_replication.process.threads import name_of_dead
from spark_replication.zk import paths
from spark_replication.zk.claims import perform
from spark_replication.zk.controller.admin_requests import FoundRequest
from spark_replication.zk.controller.committing import Committing
from spark_replication.zk.controller.loading import load
from spark_replication.zk.controller.request_looking import Deletions
from spark_replication.zk.controller.request_watch import RequestWatch
from spark_replication.zk.controller.watch import ControllerWatch
from spark_replication.zk.node_watch import NodeWatch
from spark_replication.zk.operations import (
    EXISTS,
    Check,
    Create,
    Delete,
    Node,
    Rejected,
    RejectionReason,
)
from spark_replication.zk.posted_requests import Post, PostedRequests
from spark_replication.zk.session import ConnectionLost, Session, SessionState

ENSURE_ATTEMPTS_MAX = 20

log = logging.getLogger(__name__)


class ZooKeeperControllerStore:
    """What a candidacy reads and writes."""

    def __init__(self, session: Session, settings: Settings, post: Post, on_deposed: Callable[[str], None]) -> None:
        """settings: what holds where /config/cluster says nothing else. post: has a call made on the thread that
        commits, after those that were posted before. on_deposed(reason): called once, on any thread, unless it
        resigned before."""
        self._session = session
        self._post = post
        self._settings = settings
        self._on_deposed = on_deposed
        self._lock = threading.Lock()
        self._over = False
        self._epoch_version: int | None = None
        self._committing: Committing | None = None
        self._watch: ControllerWatch | None = None
        self._request_watch: RequestWatch | None = None
        self._requests: list[FoundRequest] = []
        self._unreadable = ALL_READ
        self._deletions = Deletions()
        self._watches: list[NodeWatch] = []

    def campaign(self, id: str, host: str, port: int, held: HeldDirectory | None = None) -> LoadedCluster | None:
        """Win /controller and read everything. None: another commands; try again when `watch_vacancy` says so.

        held: the directory whose lock this process holds. A predecessor in that directory is dead, whatever its session
        says, and its node goes. An error ends the candidacy as a whole: the session is closed.
        """
        if self._epoch_version is not None:
            return None
        try:
            cluster = self._ensure_cluster()
            wanted = ControllerInfo(id=id, host=host, port=port, epoch=0, held=held)
            won = perform(self._session, Campaigning(wanted))
            return None if won is None else self._load(cluster, won)
        except ReplicationError:
            self.resign()
            raise

    def watch_vacancy(self, on_vacant: Callable[[], None]) -> None:
        """Call `on_vacant` whenever /controller is found gone. On kazoo's thread, so it must not block."""
        self._watches.append(
            NodeWatch(self._session, paths.CONTROLLER, lambda node: on_vacant() if node is None else None)
        )

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        """See ports.ControllerStore. On the thread that calls what is posted; there `then` is called, too."""
        if self._committing is None:
            then([Deposed()] * len(groups))
        elif self._deletions.sent(groups):
            self._committing.commit(groups, partial(self._deletions_answered, groups, then))
        else:
            self._committing.commit(groups, then)

    def _deletions_answered(
        self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None], answers: list[GroupAnswer]
    ) -> None:
        self._deletions.answered(groups, answers)
        then(answers)

    def watch(self, on_event: Callable[[BrokersRead | PartitionsRead | NodesUnreadable | Requested], None]) -> None:
        """Report to `on_event`, on threads of the store's: first the brokers as they are, then every change, and each
        request below /admin once."""
        assert self._epoch_version is not None, "watch() is for who has won"
        check = Check(paths.CONTROLLER_EPOCH, self._epoch_version)
        self._watch = ControllerWatch(self._session, check, on_event, self._depose, self._unreadable)
        self._request_watch = RequestWatch(self._session, on_event, self._requests, self._deletions)

    def dead_thread(self) -> str:
        """The name of a thread that has died, without which this controller is blind; empty if none has."""
        parts = (self._watch, self._request_watch)
        return name_of_dead(part.worker for part in parts if part is not None)

    def resign(self) -> None:
        """Let the next controller in at once, and close the session. Not from a callback of this store's session."""
        with self._lock:
            self._over = True
        self._stop()
        if self._epoch_version is not None and self._session.connected:
            check = Check(paths.CONTROLLER_EPOCH, self._epoch_version)
            try:
                self._session.commit_now((check, Delete(paths.CONTROLLER, EXISTS)))
            except ReplicationError as error:
                log.info("resigned by the end of the session: %s", error)
        self._session.close()

    # Winning.

    def _ensure_cluster(self) -> ClusterInfo:
        node = self._session.read_now(paths.CLUSTER)
        if node is None:
            for path in paths.BASE:
                self._ensure(Create(path))
            # It is made last, so that whoever sees it finds everything else.
            self._ensure(Create(paths.CLUSTER, encode(ClusterInfo(cluster_id=str(uuid.uuid4())))))
            node = self._session.read_now(paths.CLUSTER)
            if node is None:
                raise NotController(f"{paths.CLUSTER} was removed by somebody while this controller started: retry")
        return decode(node.data, ClusterInfo, paths.CLUSTER)

    def _ensure(self, create: Create) -> None:
        for _ in range(ENSURE_ATTEMPTS_MAX):
            try:
                outcome = self._session.commit_now((create,))
            except ConnectionLost:
                continue
            if isinstance(outcome, Rejected) and outcome.reason is not RejectionReason.NODE_EXISTS:
                raise ReplicationError(f"{create.path} cannot be made in ZooKeeper: {outcome.reason.value}")
            return
        raise RequestTimedOut(f"the connection to ZooKeeper broke {ENSURE_ATTEMPTS_MAX} times: check the network")

    def _load(self, cluster: ClusterInfo, won: Won) -> LoadedCluster:
        self._epoch_version = won.epoch_version
        requests = PostedRequests(self._session, self._post)
        self._committing = Committing(requests, self._epoch_version, self._depose, self._met)
        self._session.listen(self._session_changed)
        self._watches.append(NodeWatch(self._session, paths.CONTROLLER, self._controller_read))
        loaded, self._requests = load(self._session, self._settings, cluster.cluster_id, won.info.epoch)
        self._unreadable = loaded.unreadable
        self._deletions.begin(loaded.deleting)
        return loaded

    def _met(self, unreadable: Unreadable) -> None:
        if self._watch is not None:
            self._watch.met(unreadable)

    # Losing.

    def _controller_read(self, node: Node | None) -> None:
        if node is None:
            self._depose_aside(f"{paths.CONTROLLER} is gone")
        elif node.owner != self._session.id:
            self._depose_aside("another controller took over")

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._depose_aside("the ZooKeeper session has ended")

    def _depose_aside(self, reason: str) -> None:
        """Depose on another thread than kazoo's: whoever is told may resign, which waits for kazoo's threads."""
        threading.Thread(target=self._depose, args=(reason,), name="controller-deposed", daemon=True).start()

    def _depose(self, reason: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._stop()
        self._on_deposed(reason)

    def _stop(self) -> None:
        for watch in self._watches:
            watch.cancel()
        if self._watch is not None:
            self._watch.stop()
        if self._request_watch is not None:
            self._request_watch.stop()
        if self._committing is not None:
            self._committing.depose()
