"""ZooKeeper as a broker uses it: register (B1, I8), change ISRs (I1, I3), read what is assigned.

The store outlives sessions: after a lost one `register` opens another, and caches and watches start again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from spark_replication.core.claims.marking import Marking
from spark_replication.core.claims.numbering import Numbering
from spark_replication.core.claims.registering import Registering
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import IsrAnswer, IsrWrite
from spark_replication.errors import CorruptState, NotReady, RequestTimedOut
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import (
    BrokerEpoch,
    BrokerId,
    ClusterInfo,
    ControllerInfo,
    Epoch,
    Registration,
    decode,
)
from spark_replication.zk import paths
from spark_replication.zk.broker.isr_writes import IsrWrites
from spark_replication.zk.broker.reading import ClusterRead, read_all, read_assigned
from spark_replication.zk.claims import perform
from spark_replication.zk.node_watch import NodeWatch, wait_for_node
from spark_replication.zk.operations import Node
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session, SessionState

CONTROLLER_READ_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class BrokerStore:
    """All methods wait for ZooKeeper, except `change_isr`, which answers through `then` on any thread."""

    def __init__(self, connect: Callable[[], Session]) -> None:
        """connect: opens a session; called now, and by `register` after a session was lost."""
        self._connect = connect
        self._registered: tuple[BrokerId, Registration] | None = None
        self._own: tuple[NodeWatch, _Once] | None = None
        self._open()

    def close(self) -> None:
        """End the session, which ends the registration at once. Not from a callback of this store's session."""
        self._unwatch_own()
        self._session.close()

    @property
    def session_lost(self) -> bool:
        return self._session.lost

    @property
    def connected(self) -> bool:
        """Whether a read would find a connection."""
        return self._session.connected

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Call the listener with changes of the present session; it must not block."""
        self._session.listen(listener)

    # Registering.

    def register(
        self,
        broker_id: BrokerId,
        *,
        host: str,
        port: int,
        replication_port: int,
        incarnation: str,
        rack: str | None,
        boot_id: str,
        directory_mark: str,
        files_uid: int,
        continues: int | None,
    ) -> tuple[Registration, BrokerEpoch]:
        """Store a new epoch, and the ephemeral node that says that this broker lives, in one multi().

        continues: the epoch that the proof of a clean end names (I8); None if there is no proof.
        DirectoryInUse: another directory is registered under this id.
        """
        self._unwatch_own()
        if self._session.lost:
            self._open()
        wanted = Registration(
            host=host,
            port=port,
            replication_port=replication_port,
            incarnation=incarnation,
            rack=rack,
            boot_id=boot_id,
            directory_mark=directory_mark,
            files_uid=files_uid,
            continues=continues,
            epoch=0,
        )
        try:
            registration, epoch = perform(self._session, Registering(broker_id, wanted))
        except RequestTimedOut:
            self._session.close()  # a request that is still on its way must not register this broker later
            raise
        self._registered = (broker_id, registration)
        return registration, epoch

    def registered_ms(self) -> int | None:
        """When ZooKeeper stored the registration, by its own clock. None if the node is another's, or gone."""
        node = self._session.read_now(paths.broker_id(self._own_registration()[0]))
        return None if node is None or node.owner != self._session.id else node.modified_ms

    def watch_own_registration(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` once, when the node is gone or the session is lost. On any thread: it must not block."""
        broker, _ = self._own_registration()
        session = self._session
        once = _Once(on_gone)

        def read(node: Node | None) -> None:
            if node is None or node.owner != session.id:
                once.call()

        self._unwatch_own()
        self._own = NodeWatch(session, paths.broker_id(broker), read), once
        if session.lost:
            once.call()

    def mark_shutting_down(self) -> None:
        """Mark the registration, which raises its version: nobody lets this broker into an ISR, or elects it (L2,
        I3)."""
        perform(self._session, Marking(*self._own_registration()))

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        """See ports.IsrStore."""
        self._isr_writes.change(write, then)

    # Reading what others wrote.

    def read_assigned(
        self, broker_id: BrokerId, topics: Collection[str] | None = None
    ) -> tuple[list[PartitionCommand], Unreadable]:
        """See zk.broker.reading. The result is as new as any command that has arrived, so a replica that is in neither
        may go."""
        self._session.sync_now()
        return read_assigned(self._session, broker_id, topics)

    def read_all(self) -> ClusterRead:
        return read_all(self._session)

    def read_brokers(self) -> BrokersRead:
        return Reading(self._session).brokers()

    def read_registered(self) -> tuple[dict[BrokerId, Registration], Unreadable]:
        """The registered brokers, and whose registration cannot be read."""
        read = self.read_brokers()
        return read.brokers, read.unreadable

    def controller(self) -> ControllerInfo | None:
        """The controller as last read: a watch keeps it up to date. None also if its node cannot be read."""
        node = self._controller.current
        try:
            return None if node is None else decode(node.data, ControllerInfo, paths.CONTROLLER)
        except CorruptState as error:
            log.error("%s", error)
            return None

    def cluster_info(self) -> ClusterInfo | None:
        """The cluster's identity; None if no controller has ever run here."""
        node = self._session.read_now(paths.CLUSTER)
        return None if node is None else decode(node.data, ClusterInfo, paths.CLUSTER)

    def wait_for_cluster(self, timeout_s: float) -> ClusterInfo:
        node = wait_for_node(self._session, paths.CLUSTER, timeout_s)
        if node is None:
            raise NotReady(f"no controller has made {paths.CLUSTER} within {timeout_s} s: start one")
        return decode(node.data, ClusterInfo, paths.CLUSTER)

    def allocate_broker_id(self, controller_epoch: Epoch | None = None) -> BrokerId:
        """controller_epoch: of the driver for whom it is, if there is one. Raises StaleLease if that commands no
        more."""
        return perform(self._session, Numbering(controller_epoch))

    # Sessions.

    def _open(self) -> None:
        session = self._session = self._connect()
        self._controller = NodeWatch(self._session, paths.CONTROLLER, lambda _node: None)
        if not self._controller.wait_first(CONTROLLER_READ_TIMEOUT_S):
            log.warning("ZooKeeper has not said yet who the controller is")
        controller = self._controller
        session.listen(lambda state: self._lost(session) if state is SessionState.LOST else None)
        self._isr_writes = IsrWrites(self._session, lambda: controller.current is not None)

    def _lost(self, session: Session) -> None:
        """Report the end of the registration that is watched. A registration that is only being made in that session
        fails by itself."""
        own = self._own
        if own is not None and session is self._session:
            own[1].call()

    def _own_registration(self) -> tuple[BrokerId, Registration]:
        assert self._registered is not None, "register first"
        return self._registered

    def _unwatch_own(self) -> None:
        if self._own is not None:
            watch, once = self._own
            watch.cancel()
            once.disarm()


class _Once:
    """Calls an action once: a lost session and a missing node are the same news, and come on different threads."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._action: Callable[[], None] | None = action

    def call(self) -> None:
        action = self.disarm()
        if action is not None:
            action()

    def disarm(self) -> Callable[[], None] | None:
        with self._lock:
            action, self._action = self._action, None
            return action
