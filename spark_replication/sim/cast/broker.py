"""One simulated broker: the host with its disk, and the process that lives on it, as live/broker/life runs it.

Registering (B1), registering again after an expired session or a removed node (B2), stopping (B3), timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.core.controller.cluster import commands_of
from spark_replication.core.law.clean_chain import losses, proven_epoch
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import (
    IsrAnswer,
    IsrCommitted,
    IsrRefused,
    IsrUnanswered,
    IsrWrite,
    StoredPartition,
)
from spark_replication.core.replica.replica import Leading, Me
from spark_replication.engine.broker_loop import BrokerLoop
from spark_replication.errors import BrokerNotAvailable, ReplicationError, StorageFailed
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import BrokerEpoch, BrokerId, Registration, ReplicaOf, Scalar, TopicConfig
from spark_replication.ports import Flush
from spark_replication.sim.cast.replication import Links
from spark_replication.sim.world.disk import Disk
from spark_replication.sim.world.network import Network
from spark_replication.sim.world.world import InvariantBroken, Process, World
from spark_replication.sim.world.zookeeper import Lost, Session, ZooKeeper
from spark_replication.storage.flush_threads import Ended, failure

TICK_MS = 120
TICKS_PER_CHECKPOINT = 3
FLUSH_MS = (1, 25)
WRITE_BACK_PROBABILITY = 0.1  # at a tick: the kernel writes back what it has
CLEAN_UP_PROBABILITY = 0.02
RETRY_MS = (20, 80)
STOP_POLL_MS = 60
STOP_POLLS_MAX = 8

_Everything = tuple[
    list[PartitionCommand], dict[str, TopicConfig], dict[BrokerId, Registration], dict[str, Scalar], Unreadable
]  # what a broker reads of ZooKeeper once it has registered

GUARD: AbstractContextManager[object] = nullcontext()


class Host:
    """A machine with one broker's directory. boots: how often it has started; its processes share one boot."""

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.disk = Disk()
        self.boots = 0
        self.lives = 0
        self.process: BrokerProcess | None = None

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"


class BrokerProcess(Process):
    """From the lock on its directory to its end. `find`: the process that serves at a registration's address."""

    def __init__(
        self,
        host: Host,
        *,
        world: World,
        network: Network,
        zookeeper: ZooKeeper,
        settings: Settings,
        find: Callable[[BrokerId, int], BrokerProcess | None],
        failed: Callable[[BrokerProcess, ReplicaOf], None],
        died: Callable[[BrokerProcess], None],
        recovered: Callable[[], None],
        registered: Callable[[], None],
    ) -> None:
        host.lives += 1
        super().__init__(f"b{host.broker}")
        self.place = self.name
        self.broker = host.broker
        self.host = host
        self.world = world
        self.network = network
        self.epoch: int | None = None
        self.stopping = False
        self.life = host.lives
        self._zookeeper = zookeeper
        self._settings = settings
        self._find = find
        self._failed = failed
        self._died = died
        self._on_recovered = recovered
        self._on_registered = registered
        self._ticks = 0
        self._attempt = 0
        self.incarnation = f"{host.broker}-{host.lives}"
        self._proof: int | None = None
        self.links = Links(self)
        self.session = self._connect()
        self._logs = host.disk.logs(self.clock_ms)
        self.loop = BrokerLoop(
            "sim",
            logs=self._logs,
            isr_store=self,
            links=self.links,
            flusher=_Flusher(self),
            failures=self,
            settings=settings,
            guards=lambda: GUARD,
        )
        host.disk.files.slowed = lambda: None

    def clock_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    def ended(self) -> None:
        self.alive = False
        self.links.hang_up()
        self._zookeeper.silent(self.session, self._zookeeper.session_ms)
        if self.host.process is self:
            self.host.process = None
        self._died(self)

    def process_of(self, broker: BrokerId) -> BrokerProcess | None:
        """ZooKeeper knows it best; without a connection, what was last heard."""
        if self.session.connected and not self.session.expired:
            registered = self._zookeeper.store.registered.get(broker)
        else:
            registered = self.loop.brokers.get(broker)
        return None if registered is None else self._find(broker, registered.port)

    def failed(self, replica: ReplicaOf, error: StorageFailed) -> None:
        """ports.FailureReports."""
        self._failed(self, replica)

    # Starting (B1)

    def start(self) -> None:
        self.world.after(0, "recovers", self._recover, on=self)

    def _recover(self) -> None:
        """Then find out from ZooKeeper whether what was found is all there was."""
        disk = self.host.disk
        started = disk.started
        self._proof = proven_epoch(
            disk.clean_shutdown,
            None if started is None else started[1],
            same_boot_and_directory=started is not None and started[0] == self.host.boot_id,
            trust_page_cache=self._settings.recovery_trust_page_cache,
        )
        try:
            reports = self._logs.recover()
        except StorageFailed as error:
            self.world.note(f"{self.name} cannot start: {error}")
            self.ended()
            return
        self._on_recovered()

        def read(answer: list[PartitionCommand] | Lost) -> None:
            if isinstance(answer, Lost):
                self._again(lambda: self.session.request("reads its assignments", assigned, read))
                return
            lost = losses(reports, answer, self._logs.found(), self.broker, self._unreadable_of_mine())
            if lost and self._proof is not None:
                self.world.note(f"{self.name} has lost data: {lost}")
                disk.drop_proofs()
                self._proof = None
            self._register()

        def assigned() -> list[PartitionCommand]:
            return [c for c in self._readable_commands() if self.broker in c.replicas]

        self.session.request("reads its assignments", assigned, read)
        self.world.after(self.world.between(1, TICK_MS), "tick", self._tick, on=self)

    def _readable_commands(self) -> list[PartitionCommand]:
        store = self._zookeeper.store
        return commands_of(store.readable_topics(), store.readable_partitions())

    def _unreadable_of_mine(self) -> Unreadable:
        store = self._zookeeper.store
        topics = store.topics
        hidden = store.unreadable.partitions
        assigned = (p for p in hidden if p.topic in topics and p.partition in topics[p.topic].state.partitions)
        mine = frozenset(p for p in assigned if self.broker in topics[p.topic].state.partitions[p.partition])
        return replace(store.unreadable, partitions=mine)

    def _read_hidden(self) -> None:
        me, topics = self.loop.me, self.loop.hidden.topics
        if me is None or not topics or not self.session.connected or self.session.expired:
            return
        hidden = self._zookeeper.store.unreadable
        partitions = frozenset(partition for partition in hidden.partitions if partition.topic in topics)
        found = [c for c in self._readable_commands() if c.topic in topics and self.broker in c.replicas]
        unreadable = replace(hidden, topics=hidden.topics & topics, partitions=partitions)
        self.loop.read_hidden(me, (found, unreadable), self.clock_ms())

    def _connect(self) -> Session:
        return self._zookeeper.connect(self, self._gone)

    def _again(self, action: Callable[[], None]) -> None:
        """One thread does all this: another attempt that has begun meanwhile is the only one."""
        if self.session.expired:
            self.session = self._connect()
        attempt = self._attempt

        def again() -> None:
            if attempt == self._attempt:
                action()

        self.world.after(self.world.between(*RETRY_MS), "tries again", again, on=self)

    def _register(self) -> None:
        self._attempt += 1
        attempt = self._attempt
        wanted = Registration(
            host=f"host-{self.broker}",
            port=self.life,
            replication_port=self.life,
            epoch=0,
            incarnation=self.incarnation,
            continues=self._proof if self.epoch is None else self.epoch,
            boot_id=self.host.boot_id,
            directory_mark="mark",
        )
        session = self.session
        read = self._zookeeper.store.broker_epochs.get(self.broker)

        def answered(answer: BrokerEpoch | ReplicationError | Lost) -> None:
            if attempt != self._attempt:
                return
            if isinstance(answer, BrokerEpoch):
                self._registered(answer)
            else:
                self._again(self._register)

        def register() -> BrokerEpoch | ReplicationError:
            outcome = self._zookeeper.register(session, self.broker, wanted, read)
            if isinstance(outcome, BrokerEpoch) and self.alive:  # else it lands late, of a life that has ended
                self._on_registered()
            return outcome

        session.request("registers", register, answered)

    def _registered(self, epoch: BrokerEpoch) -> None:
        disk, zookeeper = self.host.disk, self._zookeeper
        self.epoch = epoch.epoch
        disk.started = self.host.boot_id, epoch.epoch
        disk.clean_shutdown = None
        if self.session.expired or zookeeper.owners.get(self.broker) is not self.session:
            self._gone()
            return
        zookeeper.watch_registration(self.broker, self.session, self._gone)
        self.links.registered()
        me = Me(self.broker, epoch.epoch, epoch.clean_since)
        self._read(me)

    def _read(self, me: Me) -> None:
        store = self._zookeeper.store

        def everything() -> _Everything:
            configs = {name: topic.config for name, topic in store.readable_topics().items()}
            settings = dict(store.stored_settings.settings)
            return self._readable_commands(), configs, dict(store.registered), settings, store.unreadable

        def read(answer: _Everything | Lost) -> None:
            if self.epoch != me.epoch:
                return  # it has registered again meanwhile
            if isinstance(answer, Lost):
                if not answer.expired:
                    self._again(lambda: self._read(me))
                return
            try:
                known, configs, registered, settings, unreadable = answer
                with self._leaving(unreadable):
                    self.loop.registered(
                        me, known, configs, registered, self.clock_ms(), settings=settings, unreadable=unreadable
                    )
            except ReplicationError:
                self._again(self._register)  # as BrokerLife does: from the beginning, after a while

        self.session.request("reads its state", everything, read)

    # Living

    def _gone(self) -> None:
        """The session has expired, or the registration is gone: register again with the same incarnation (B2)."""
        if self.stopping:
            return
        self.world.counts["registered_again"] += 1
        self.loop.session_lost()
        if self.session.expired:
            self.session = self._connect()
        self._register()

    def _tick(self) -> None:
        self._ticks += 1
        self.loop.give_turns(self.clock_ms())
        self.loop.tick(self.clock_ms(), looks=True)
        self.loop.try_refused(self.clock_ms())
        self._read_hidden()
        if self._ticks % TICKS_PER_CHECKPOINT == 0:
            with suppress(StorageFailed):
                self.loop.checkpoint()
        if self.world.chance(WRITE_BACK_PROBABILITY):
            self.host.disk.files.write_back()
        if self.world.chance(CLEAN_UP_PROBABILITY):
            self._clean_up()
        if self._ticks % TICKS_PER_CHECKPOINT == 0 and self._zookeeper.controller is None and self.session.connected:
            self.loop.read_brokers(lambda: (dict(self._zookeeper.store.registered), ALL_READ))
        self.world.after(TICK_MS, "tick", self._tick, on=self)

    def _clean_up(self) -> None:
        with suppress(StorageFailed):
            self._logs.delete_quarantined(
                asked_delay_ms=self._settings.log_delete_delay_ms,
                unasked_delay_ms=self._settings.log_unassigned_delay_ms,
                now_ms=self.clock_ms(),
            )
        self._logs.keep_reserve()

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        """ports.IsrStore."""
        zookeeper = self._zookeeper

        def operate() -> StoredPartition | IsrRefused | IsrUnanswered:
            refused = zookeeper.change_isr(write)
            if refused is not None and write.partition in zookeeper.store.unreadable.partitions:
                return IsrUnanswered()
            current = zookeeper.store.partitions.get(write.partition)
            if refused is None:
                assert current is not None, "it was stored"
                return current
            topic = zookeeper.store.topics.get(write.partition.topic)
            return IsrRefused(current if topic is not None and topic.state.topic_id == write.topic_id else None)

        def answered(answer: StoredPartition | IsrRefused | IsrUnanswered | Lost) -> None:
            if isinstance(answer, Lost):
                then(IsrUnanswered())
            else:
                then(answer if isinstance(answer, (IsrRefused, IsrUnanswered)) else IsrCommitted(answer.version))

        self.session.request("changes an ISR", operate, answered, write.partition)

    # Stopping (B3)

    def stop(self, stopped: Callable[[], None], polls: int = STOP_POLLS_MAX) -> None:
        """Marked, its leaderships moved or not, flushed; the proof of that comes last."""
        if polls == STOP_POLLS_MAX:
            session = self.session
            session.request(
                "marks itself as shutting down",
                lambda: self._zookeeper.shut_down(self.broker, session),
                lambda _answer: None,
            )
        leads = any(isinstance(replica.part, Leading) for replica in self.loop.replicas.values())
        if polls and (leads or polls == STOP_POLLS_MAX):
            self.world.after(STOP_POLL_MS, "waits to stop", lambda: self.stop(stopped, polls - 1), on=self)
            return
        self.stopping = True
        failed = self.loop.close()
        self.session.close()
        if not failed and self.epoch is not None:
            self.host.disk.clean_shutdown = self.epoch
        self.ended()
        stopped()

    # What others ask of it

    def initialized(self, told: Iterable[PartitionCommand]) -> None:
        if self.session.connected and not self.session.expired:
            unreadable = self._zookeeper.store.unreadable
            with self._leaving(unreadable):
                self.loop.initialized(told, lambda: (self._readable_commands(), unreadable))

    @contextmanager
    def _leaving(self, unreadable: Unreadable) -> Iterator[None]:
        """What this broker does by what it has read takes no folder of what nobody can read."""
        before = {found for found in self._logs.found() if unreadable.hides(found[0])}
        yield
        gone = before.difference(self._logs.found()) if before else ()
        for partition, topic_id in sorted(gone):
            raise InvariantBroken("unreadable_changes_nothing", f"{self.name} gave up {partition} of {topic_id}")

    def asked(self, life: int) -> BrokerLoop:
        """Of this process, not of another that serves at its address now."""
        if life != self.life or self.stopping:
            raise BrokerNotAvailable(f"{self.name} is not that process")
        return self.loop


class _Flusher:
    """ports.Flusher: a while later, if the process is still there."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process

    def flush(self, flush: Flush, ended: Ended) -> None:
        world = self._process.world
        world.after(world.between(*FLUSH_MS), "flushes", lambda: ended(failure(flush)), on=self._process)
