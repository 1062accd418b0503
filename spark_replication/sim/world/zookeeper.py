"""ZooKeeper as processes meet it: sessions that expire, requests that take time, answers that are lost, watches that
only mark what is to be read. Stored has the data: a tree of nodes, under the conditions of each multi().

Rules:
- A session's requests arrive in the order in which they were sent, whether or not their sender still lives.
- No request of an expired session is carried out. What the session registered is removed.
- A client learns that its session has expired only once it is connected again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import msgspec

from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.errors import ReplicationError
from spark_replication.model import BrokerId
from spark_replication.sim.world.stored import Stored
from spark_replication.sim.world.world import Process, World
from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk import paths
from spark_replication.zk.controller.admin_requests import FoundRequest
from spark_replication.zk.controller.loading import load
from spark_replication.zk.operations import EXISTS, Committed, Delete, Node, Operation, Rejected
from spark_replication.zk.session import ConnectionLost, SessionLost

REQUEST_MS = (1, 3)
LOST_AFTER_MS = (5, 40)
NOTICE_MS = (2, 15)
RETRY_MS = (10, 60)


class Lost(msgspec.Struct, frozen=True):
    """The connection broke before the answer came: the request may have been carried out."""

    #: Whether the session has expired, too.
    expired: bool = False

    @property
    def error(self) -> ReplicationError:
        return SessionLost("the session has ended") if self.expired else ConnectionLost("the connection broke")


class Taken(Enum):
    """The part of a request that is lost. The client cannot tell which one it is."""

    REQUEST = "it is not carried out"
    ANSWER = "it is carried out"


Then = Callable[[Any], None]


class Session:
    """The session of one client."""

    def __init__(self, zookeeper: ZooKeeper, id: int, process: Process, on_expired: Callable[[], None]) -> None:
        self.id = id
        self.process = process
        self.connected = True
        #: Whether it has expired in ZooKeeper. The client may not know it yet.
        self.expired = False
        self.zookeeper = zookeeper
        #: What the client does when it learns that its session has expired.
        self._on_expired = on_expired
        self._arrives_ms = 0
        self._told = False

    def request(self, what: str, operate: Callable[[], Any], then: Then, about: object = "") -> None:
        """`operate` runs in ZooKeeper; `then` gets its result, or Lost, in this process."""
        world, zookeeper = self.zookeeper.world, self.zookeeper
        if not self.connected:
            world.after(1, f"{what}: not connected", lambda: then(Lost(self.expired)), on=self.process)
            return
        at_ms = max(world.now_ms + world.between(*REQUEST_MS) + zookeeper.take_hold(what, self), self._arrives_ms)
        self._arrives_ms = at_ms

        def arrived() -> None:
            taken = zookeeper.takes(what)
            if self.expired or taken is Taken.REQUEST:
                answer = Lost(self.expired)
            else:
                answer = operate()
            if taken is not None or not self.connected:
                world.counts["lost_answer"] += 1
                delay_ms, answer = world.between(*LOST_AFTER_MS), Lost(self.expired)
            else:
                delay_ms = world.between(*REQUEST_MS)
            if not self.process.alive:
                world.counts["late_write"] += 1
            world.after(delay_ms, f"{what}: answered", lambda: then(answer), on=self.process)

        world.after(at_ms - world.now_ms, what, arrived, about=about)

    def disconnect(self, for_ms: int, *, survives: bool = False) -> None:
        """Cut the client off, and connect it again after a while. Its session may have expired by then, unless it
        `survives`: no server ran that could let it expire."""
        world = self.zookeeper.world
        self.connected = False
        if not survives:
            self.zookeeper.silent(self, for_ms)
        world.after(for_ms, "connected again", self._reconnect, about=self.process.name)

    def _reconnect(self) -> None:
        self.connected = True
        if self.expired:
            self._tell_expired()
        else:
            self.zookeeper.connected_again(self)

    def close(self) -> None:
        self._told = True
        self.zookeeper.expire(self)

    def ended_by_server(self) -> None:
        """Called by ZooKeeper once the session has expired."""
        if self.connected:
            self._tell_expired()

    def _tell_expired(self) -> None:
        if not self._told:
            self._told = True
            world = self.zookeeper.world
            world.after(world.between(*NOTICE_MS), "hears that its session expired", self._on_expired, on=self.process)


class Requests:
    """A session's requests as zk.session has them: reads are repeated for as long as it lives, writes are sent once.
    Each is an event of its name."""

    address = "the simulated ZooKeeper"
    root_bytes = 0

    def __init__(self, session: Session, *, writes: str, reads: str, controller_epoch: int | None = None) -> None:
        """controller_epoch: of the controller that writes."""
        self._session = session
        self._zookeeper = session.zookeeper
        self._writes = writes
        self._reads = reads
        self._controller_epoch = controller_epoch

    def commit(self, operations: Sequence[Operation], then: Then) -> None:
        def answered(outcome: Committed | Rejected | Lost) -> None:
            then(outcome.error if isinstance(outcome, Lost) else outcome)

        multi = partial(self._zookeeper.multi, operations, self._session, self._controller_epoch)
        self._session.request(self._writes, multi, answered, operations)

    def read(self, path: str, then: Then) -> None:
        self._read(partial(self._zookeeper.tree.read, path), then, path)

    def stat(self, path: str, then: Then) -> None:
        self.read(path, then)

    def read_some(self, paths: Sequence[str], then: Then) -> None:
        self._read(partial(self._zookeeper.tree.read_each, paths), then, paths)

    def children(self, path: str, then: Then) -> None:
        self._read(partial(self._zookeeper.tree.children, path), then, path)

    def _read(self, operate: Callable[[], Any], then: Then, about: object) -> None:
        world, process = self._zookeeper.world, self._session.process

        def answered(answer: Any) -> None:
            if not isinstance(answer, Lost):
                then(answer)
            elif answer.expired:
                then(answer.error)
            else:
                again = partial(self._read, operate, then, about)
                world.after(world.between(*RETRY_MS), f"{self._reads}: again", again, on=process)

        self._session.request(self._reads, operate, answered, about)


class ZooKeeper:
    def __init__(self, world: World, store: Stored, session_ms: int) -> None:
        self.world = world
        self.store = store
        self.session_ms = session_ms
        self._sessions: list[Session] = []
        self._broker_watches: dict[BrokerId, tuple[Session, Callable[[], None]]] = {}
        self._watches: dict[Session, Callable[[str], None]] = {}
        self._held: tuple[str, int, Callable[[Process], None] | None] | None = None
        self._taken: tuple[str, Taken] | None = None

    @property
    def tree(self) -> Znodes:
        return self.store.tree

    @property
    def controller(self) -> Session | None:
        """The session that holds /controller."""
        return self._owner(paths.CONTROLLER)

    def owner(self, broker: BrokerId) -> Session | None:
        """The session that holds the broker's registration."""
        return self._owner(paths.broker_id(broker))

    def _owner(self, path: str) -> Session | None:
        node = self.tree.read(path)
        return None if node is None else self._sessions[node.owner - 1]

    def multi(
        self, operations: Sequence[Operation], session: Session | None = None, controller_epoch: int | None = None
    ) -> Committed | Rejected:
        """session: who sends it; None for a person. controller_epoch: of the controller that does."""
        self.store.writing = controller_epoch
        outcome = self.store.multi(operations, 0 if session is None else session.id)
        self.store.writing = None
        if controller_epoch is not None and isinstance(outcome, Rejected) and outcome.operation == 0:
            self.world.counts["deposed_write"] += 1
        self._tell_watches(self.tree.changed)
        return outcome

    # Faults

    def hold_next(self, what: str, for_ms: int, then: Callable[[Process], None] | None = None) -> None:
        """Delay the next request of this kind by `for_ms`. `then` is called with its sender."""
        self._held = what, for_ms, then

    def take_next(self, what: str, taken: Taken) -> None:
        """Lose this part of the next request of this kind."""
        self._taken = what, taken

    def disarm(self) -> None:
        self._held = self._taken = None

    def take_hold(self, what: str, session: Session) -> int:
        if self._held is None or self._held[0] != what:
            return 0
        _, for_ms, then = self._held
        self._held = None
        if then is not None:
            then(session.process)
        return for_ms

    def takes(self, what: str) -> Taken | None:
        if self._taken is None or self._taken[0] != what:
            return None
        _, taken = self._taken
        self._taken = None
        return taken

    def deafen(self, session: Session, for_ms: int) -> None:
        """Keep watches from this session for `for_ms`, and deliver them then."""
        marked = self._watches.pop(session, None)

        def hear() -> None:
            if not session.expired:
                self._watches[session] = heard
                self.connected_again(session)

        if marked is not None:
            heard = marked
            self.world.after(for_ms, "its watches come at last", hear, on=session.process)

    # Sessions

    def connect(self, process: Process, on_expired: Callable[[], None]) -> Session:
        session = Session(self, len(self._sessions) + 1, process, on_expired)
        self._sessions.append(session)
        return session

    def silent(self, session: Session, for_ms: int) -> None:
        """Expire the session if ZooKeeper hears nothing of its client for `for_ms`, and that is too long."""
        if for_ms >= self.session_ms:
            self.world.after(
                self.session_ms, "a session expires", lambda: self.expire(session), about=session.process.name
            )

    def expire(self, session: Session) -> None:
        if session.expired:
            return
        session.expired = True
        self._watches.pop(session, None)
        if owned := self.tree.owned_by(session.id):
            self.multi([Delete(path, EXISTS) for path in owned])
        session.ended_by_server()

    # Watches

    def watch(self, session: Session, marked: Callable[[str], None]) -> None:
        """Call `marked("brokers" | "changes" | "requests" | "vacancy")` in the client, each time that there is
        something to read."""
        self._watches[session] = marked

    def watching(self) -> list[Session]:
        """The sessions of candidates."""
        return list(self._watches)

    def watch_registration(self, broker: BrokerId, session: Session, gone: Callable[[], None]) -> None:
        self._broker_watches[broker] = session, gone

    def connected_again(self, session: Session) -> None:
        """Let the client see what happened while it was not connected."""
        for broker, (watching, _) in sorted(self._broker_watches.items(), key=lambda item: item[0]):
            if watching is session and self.owner(broker) is not session:
                self._tell_gone(broker)
        marked = self._watches.get(session)
        if marked is not None:
            for what in ("brokers", "changes", "requests", "vacancy"):
                marked(what)

    def _mark(self, what: str) -> None:
        for session, marked in self._watches.items():
            if session.connected:
                delay_ms = self.world.between(*NOTICE_MS)
                self.world.after(delay_ms, f"watch: {what}", lambda marked=marked: marked(what), on=session.process)  # type: ignore[misc]

    def _tell_watches(self, changed: Mapping[str, Node | None]) -> None:
        """changed: by path what was there before."""
        registered = [path for path in changed if path.startswith(f"{paths.BROKER_IDS}/")]
        for path in registered:
            before, node = changed[path], self.tree.read(path)
            if before is not None and (node is None or node.created_zxid != before.created_zxid):
                self._tell_gone(int(path.rpartition("/")[2]))
        if registered:
            self._mark("brokers")
        if paths.ISR_CHANGES in changed:
            self._mark("changes")
        if any(path.startswith(paths.ADMIN) for path in changed):
            self._mark("requests")
        if changed.get(paths.CONTROLLER) is not None:
            self._mark("vacancy")

    def _tell_gone(self, broker: BrokerId) -> None:
        watch = self._broker_watches.get(broker)
        if watch is not None and watch[0].connected and not watch[0].expired:
            session, gone = self._broker_watches.pop(broker)
            self.world.after(self.world.between(*NOTICE_MS), "its registration is gone", gone, on=session.process)

    # What people and controllers do

    def load(self, controller_epoch: int) -> tuple[LoadedCluster, list[FoundRequest]]:
        """Load the cluster for the winner of this epoch. NotController: /controller is gone again. If somebody else
        holds it, the winner's watch finds out."""
        loaded, requests = load(self.tree, self.store.settings, "scenario", controller_epoch)
        self.store.loaded_without[controller_epoch] = loaded.unreadable
        return loaded, requests

    def vacate(self) -> None:
        self.multi([Delete(paths.CONTROLLER, EXISTS)])

    def remove_registration(self, broker: BrokerId) -> None:
        self.multi([Delete(paths.broker_id(broker), EXISTS)])
