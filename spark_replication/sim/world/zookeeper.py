"""ZooKeeper as processes meet it: sessions that expire, requests that take time, answers that are lost, watches that
only mark what is to be read. WatchedStore has the data, and the conditions under which they change.

Rules:
- A session's requests arrive in the order in which they were sent, whether or not their sender still lives.
- No request of an expired session is carried out. What the session registered is removed.
- A client learns that its session has expired only once it is connected again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import msgspec

from spark_replication.core.claims.campaigning import FIRST_EPOCH
from spark_replication.core.claims.claim import Kind, NodeAsRead, NodePlace, NodeWrite, Operation, Remove
from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.core.controller.events import PartitionsRead
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import Deposed as DeposedAnswer
from spark_replication.core.law.writes import Group, GroupAnswer, IsrWrite
from spark_replication.errors import ReplicationError
from spark_replication.model import ABSENT, BrokerId, ControllerEpoch, ControllerInfo, TopicPartition
from spark_replication.sim.world.watched_store import WatchedStore
from spark_replication.sim.world.world import Process, World

REQUEST_MS = (1, 3)
LOST_AFTER_MS = (5, 40)
NOTICE_MS = (2, 15)


class Lost(msgspec.Struct, frozen=True):
    """The connection broke before the answer came: the request may have been carried out."""

    #: Whether the session has expired, too.
    expired: bool = False


class Taken(Enum):
    """The part of a request that is lost. The client cannot tell which one it is."""

    REQUEST = "it is not carried out"
    ANSWER = "it is carried out"


Then = Callable[[Any], None]


class Session:
    """The session of one client."""

    def __init__(self, zookeeper: ZooKeeper, process: Process, on_expired: Callable[[], None]) -> None:
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


class ZooKeeper:
    def __init__(self, world: World, store: WatchedStore, session_ms: int) -> None:
        self.world = world
        self.store = store
        self.session_ms = session_ms
        #: The session that holds /controller.
        self.controller: Session | None = None
        #: The partitions that leaders changed.
        self.notifications: dict[int, TopicPartition] = {}
        self.notified = 0  # how many notifications there ever were: the number of the last
        self.owners: dict[BrokerId, Session] = {}
        self._broker_watches: dict[BrokerId, tuple[Session, Callable[[], None]]] = {}
        self._watches: dict[Session, Callable[[str], None]] = {}
        self._held: tuple[str, int, Callable[[Process], None] | None] | None = None
        self._taken: tuple[str, Taken] | None = None
        self._commands: ControllerInfo | None = None

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
        return Session(self, process, on_expired)

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
        for broker, owner in sorted(self.owners.items(), key=lambda item: item[0]):
            if owner is session:
                self.remove_registration(broker)
        if self.controller is session:
            self.vacate()
        session.ended_by_server()

    # Watches

    def watch(self, session: Session, marked: Callable[[str], None]) -> None:
        """Call `marked("brokers" | "changes" | "vacancy")` in the client, each time that there is something to read."""
        self._watches[session] = marked

    def watching(self) -> list[Session]:
        """The sessions of candidates."""
        return list(self._watches)

    def watch_registration(self, broker: BrokerId, session: Session, gone: Callable[[], None]) -> None:
        self._broker_watches[broker] = session, gone

    def connected_again(self, session: Session) -> None:
        """Let the client see what happened while it was not connected."""
        for broker, (watching, _) in sorted(self._broker_watches.items(), key=lambda item: item[0]):
            if watching is session and self.owners.get(broker) is not session:
                self._tell_gone(broker)
        marked = self._watches.get(session)
        if marked is not None:
            for what in ("brokers", "changes", "vacancy"):
                marked(what)

    def _mark(self, what: str) -> None:
        for session, marked in self._watches.items():
            if session.connected:
                delay_ms = self.world.between(*NOTICE_MS)
                self.world.after(delay_ms, f"watch: {what}", lambda marked=marked: marked(what), on=session.process)  # type: ignore[misc]

    # Claims

    def seen(self, session: Session, place: NodePlace) -> NodeAsRead[Any] | None:
        store, broker = self.store, place.broker
        match place.kind:
            case Kind.CONTROLLER_EPOCH if store.controller_epoch:
                epoch = store.controller_epoch
                return NodeAsRead(ControllerEpoch(epoch=epoch), epoch - FIRST_EPOCH)
            case Kind.CONTROLLER if self.controller is not None:
                return NodeAsRead(self._commands, 0, is_mine=self.controller is session)
            case Kind.BROKER_EPOCH if broker in store.broker_epochs:
                known = store.broker_epochs[broker]
                return NodeAsRead(known, known.epoch)
            case Kind.REGISTRATION if broker in store.registered:
                made = store.registrations_made[broker]
                return NodeAsRead(store.registered[broker], made.version, is_mine=self.owners[broker] is session)
        return None

    def multi(self, session: Session, operations: Sequence[Operation]) -> bool:
        """Store these operations if every condition holds. Return whether they are stored."""
        versions: dict[NodePlace, int] = {}
        for operation in operations:
            place = operation.place
            if place not in versions:
                there = self.seen(session, place)
                versions[place] = ABSENT if there is None else there.version
            if versions[place] != operation.version:
                return False
            versions[place] = ABSENT if isinstance(operation, Remove) else operation.version + 1
        for operation in operations:
            self._carry_out(session, operation)
        return True

    def _carry_out(self, session: Session, operation: Operation) -> None:
        place = operation.place
        match place.kind, operation:
            case Kind.CONTROLLER, Remove():
                self.vacate()
            case Kind.CONTROLLER, NodeWrite(value=info):
                self.controller, self._commands = session, info
            case Kind.CONTROLLER_EPOCH, NodeWrite(value=epoch):
                self.store.controller_epoch = epoch.epoch
            case Kind.BROKER_EPOCH, NodeWrite(value=epoch):
                self.store.broker_epochs[place.broker] = epoch
            case Kind.REGISTRATION, Remove():
                self.remove_registration(place.broker)
            case Kind.REGISTRATION, NodeWrite(value=registration, version=version):
                self.owners[place.broker] = session
                self.store.put_registration(place.broker, registration, version + 1)
                self._mark("brokers")

    # Controllers

    def load(self, controller_epoch: int) -> LoadedCluster | None:
        """Load the cluster for the winner of this epoch. None if /controller is gone again. If somebody else holds it,
        the winner's watch finds out."""
        return None if self.controller is None else self.store.loaded(controller_epoch)

    def vacate(self) -> None:
        self.controller = None
        self._mark("vacancy")

    def commit(self, controller_epoch: int, group: Group) -> GroupAnswer:
        if controller_epoch != self.store.controller_epoch:
            self.world.counts["deposed_write"] += 1
            return DeposedAnswer()
        before = set(self.store.registered)
        self.store.writing = controller_epoch
        answer = self.store.group(group)
        self.store.writing = None
        for broker in sorted(before - self.store.registered.keys()):
            self._registration_removed(broker)
        return answer

    def read_changes(self) -> PartitionsRead:
        """The partitions that the notifications name."""
        named = sorted(set(self.notifications.values()))
        read = {partition: self.store.readable_partition(partition) for partition in named}
        there = {partition: stored for partition, stored in read.items() if stored is not None}
        return PartitionsRead(there, self.garbage_in(named))

    def delete_changes(self, controller_epoch: int, up_to: int) -> None:
        """Delete the notifications that were read and handed on. A deposed controller's deletion is refused."""
        if controller_epoch == self.store.controller_epoch:
            self.notifications = {number: of for number, of in self.notifications.items() if number > up_to}

    def garbage_in(self, partitions: Iterable[TopicPartition]) -> Unreadable:
        hidden = self.store.unreadable.partitions.intersection(partitions)
        return Unreadable(reasons={str(partition): "garbage" for partition in sorted(hidden)}, partitions=hidden)

    # Brokers

    def remove_registration(self, broker: BrokerId) -> None:
        if self.store.remove_registration(broker):
            self._registration_removed(broker)

    def _registration_removed(self, broker: BrokerId) -> None:
        self.owners.pop(broker, None)
        self._tell_gone(broker)
        self._mark("brokers")

    def _tell_gone(self, broker: BrokerId) -> None:
        watch = self._broker_watches.get(broker)
        if watch is not None and watch[0].connected and not watch[0].expired:
            session, gone = self._broker_watches.pop(broker)
            self.world.after(self.world.between(*NOTICE_MS), "its registration is gone", gone, on=session.process)

    def change_isr(self, write: IsrWrite) -> ReplicationError | None:
        refused = self.store.change_isr(write)
        if refused is None and self.controller is not None:
            self.notified += 1
            self.notifications[self.notified] = write.partition
            self._mark("changes")
        return refused
