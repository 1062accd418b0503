"""A simulated broker: a host with its disk, and the process on it, which does what engine.broker.broker_host says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from spark_replication.config import Settings
from spark_replication.core.claims.claim import Claim
from spark_replication.core.claims.marking import Marking
from spark_replication.core.claims.registering import Registered as Claimed
from spark_replication.core.claims.registering import Registering
from spark_replication.core.law.clean_chain import losses, proven_epoch
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import IsrAnswer, IsrWrite
from spark_replication.core.replica.replica import Me
from spark_replication.engine.broker.broker_host import (
    PAUSE_MS,
    BrokerHost,
    Closed,
    Compared,
    DirectoryLookedAt,
    Do,
    Event,
    HasRegistered,
    LogsRecovered,
    RegistrationGone,
    StepDone,
    StepFailed,
    StopAsked,
)
from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.broker.duties import Duty, is_needed
from spark_replication.engine.broker.mending import mend, sources
from spark_replication.engine.broker.scrub import Scrub
from spark_replication.errors import BrokerNotAvailable, ReplicationError, RequestTimedOut, StorageFailed
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.mending import CopyBatch
from spark_replication.model import BrokerId, Registration, ReplicaOf
from spark_replication.ports import Flush
from spark_replication.sim.cast.coordinating import Appended, coordinators_of
from spark_replication.sim.cast.replication import Links
from spark_replication.sim.world.claims import perform
from spark_replication.sim.world.disk import Disk
from spark_replication.sim.world.network import Network
from spark_replication.sim.world.one_at_a_time import OneAtATime, at_once
from spark_replication.sim.world.world import InvariantBroken, Process, World
from spark_replication.sim.world.zookeeper import Lost, Requests, Session, ZooKeeper
from spark_replication.storage.disk.flush_threads import Ended, failure
from spark_replication.storage.format.batches import check_data
from spark_replication.transport.flight.batch_copies import copy_of
from spark_replication.zk.broker.isr_writes import IsrWrites
from spark_replication.zk.broker.reading import ClusterRead, read_all, read_assigned
from spark_replication.zk.reading import Reading

TICK_MS = 120
TICKS_PER_CHECKPOINT = 3
FLUSH_MS = (1, 25)
WRITE_BACK_PROBABILITY = 0.1  # at a tick: the kernel writes back what it has
CLEAN_UP_PROBABILITY = 0.02
SCRUB_BYTES = 60  # ten records
LOST = RequestTimedOut("the answer was lost")

_Assigned = tuple[list[PartitionCommand], Unreadable]  # to this broker; and what cannot be read

Of = TypeVar("Of")


class Host:
    """A machine with one broker's directory."""

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.disk = Disk()
        #: How often the machine has started. All processes between two starts share one boot id.
        self.boots = 0
        self.lives = 0
        self.process: BrokerProcess | None = None

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"


class ProcessCallbacks(NamedTuple):
    """Callbacks for what happens to a process."""

    failed: Callable[[BrokerProcess, ReplicaOf], None]
    died: Callable[[BrokerProcess], None]
    #: The guardian is to start the next process.
    respawn: Callable[[], None]
    recovered: Callable[[], None]
    appended: Appended
    registered: Callable[[], None]


class BrokerProcess(Process):
    """A broker's process, from the lock on its directory to its end."""

    def __init__(
        self,
        host: Host,
        *,
        world: World,
        network: Network,
        zookeeper: ZooKeeper,
        settings: Settings,
        find: Callable[[BrokerId, int], BrokerProcess | None],
        told: ProcessCallbacks,
    ) -> None:
        host.lives += 1
        super().__init__(f"b{host.broker}")
        self.place = self.name
        self.broker = host.broker
        self.host = host
        self.world = world
        self.network = network
        self.stopping = False
        self.life = host.lives
        self._zookeeper = zookeeper
        self._settings = settings
        #: The process that serves at a registration's address.
        self._find = find
        self._told = told
        self._ticks = 0
        self._registration: Registration | None = None
        self._course = BrokerHost(settings)
        self._stopped: Callable[[], None] = lambda: None
        self.incarnation = f"{host.broker}-{host.lives}"
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
            locks=OneAtATime,
            post=at_once,
            now_ms=self.clock_ms,
        )
        self.coordinators = coordinators_of(self, told.appended)
        self._scrub = Scrub(lambda: self.loop.replicas, check_data)
        host.disk.files.slowed = lambda: None

    @property
    def epoch(self) -> int | None:
        return self._course.epoch

    def clock_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    def ended(self) -> None:
        self.alive = False
        self.links.hang_up()
        self._zookeeper.silent(self.session, self._zookeeper.session_ms)
        if self.host.process is self:
            self.host.process = None
        self._told.died(self)

    def process_of(self, broker: BrokerId) -> BrokerProcess | None:
        """The process of this broker, as ZooKeeper has it registered; without a connection, as last known here."""
        if self.connected:
            registered = self._zookeeper.store.registered.get(broker)
        else:
            registered = self.loop.brokers.get(broker)
        return None if registered is None else self._find(broker, registered.port)

    def failed(self, replica: ReplicaOf, error: StorageFailed) -> None:
        """ports.FailureReports."""
        self._told.failed(self, replica)

    # What engine.broker.broker_host says

    def start(self) -> None:
        self.world.after(0, "recovers", self._do, on=self)
        self.world.after(self.world.between(1, TICK_MS), "tick", self._tick, on=self)

    def stop(self, stopped: Callable[[], None], *, with_all: bool) -> None:
        """Begin a controlled stop. `stopped` is called at its end."""
        self._stopped = stopped
        self._happened(StopAsked("asked to stop", with_all=with_all))

    def _happened(self, event: Event) -> None:
        if self._course.after(event):
            self._do()

    def _do(self) -> None:
        steps: dict[Do, Callable[[], None]] = {
            Do.RECOVER: self._recover,
            Do.COMPARE: self._compare,
            Do.DROP_PROOF: self._drop_proof,
            Do.REGISTER: self._register,
            Do.RECORD: self._record,
            Do.READ: self._read,
            Do.SERVE: lambda: None,
            Do.RESIGN: self._resign,
            Do.REST: lambda: self._wait(self._course.rest_ms),
            Do.LOOK: self._look,
            Do.MARK: self._mark_shutting_down,
            Do.PAUSE: lambda: self._wait(PAUSE_MS),
            Do.CLOSE: self._close,
            Do.LEAVE: self._leave,
            Do.END: self._end,
            Do.FAIL: self._fail,
        }
        steps[self._course.doing]()

    def _wait(self, ms: int) -> None:
        step = self._course.steps
        self.world.after(ms, "has waited", lambda: self._ended(step, StepDone), on=self)

    def _ask(self, what: str, operate: Callable[[], Any], found: Callable[[Any], Event]) -> None:
        """Ask ZooKeeper. `found` turns its answer into an event."""
        step = self._course.steps

        def answered(answer: object) -> None:
            self._ended(step, lambda: StepFailed(LOST) if isinstance(answer, Lost) else found(answer))

        self.session.request(what, operate, answered)

    def _claim(self, what: str, wanted: Claim[Of], found: Callable[[Of], Event]) -> None:
        step = self._course.steps

        def ended(answer: Of | ReplicationError) -> None:
            self._ended(step, lambda: StepFailed(answer) if isinstance(answer, ReplicationError) else found(answer))

        perform(self.session, what, wanted, ended)

    def _ended(self, step: int, how: Callable[[], Event]) -> None:
        """Report the end of a step, unless another has begun since. In live/ one thread runs all steps: none ends
        late."""
        if step == self._course.steps:
            self._happened(how())

    # Starting (B1)

    def _recover(self) -> None:
        disk = self.host.disk
        started = disk.started
        proof = proven_epoch(
            disk.clean_shutdown,
            None if started is None else started[1],
            same_boot_and_directory=started is not None and started[0] == self.host.boot_id,
            trust_page_cache=self._settings.recovery_trust_page_cache,
        )
        try:
            self._reports = self._logs.recover()
        except StorageFailed as error:
            self._happened(StepFailed(error))
            return
        self._told.recovered()
        self._happened(LogsRecovered(proof))

    def _compare(self) -> None:
        def compared(read: _Assigned) -> Compared:
            found, unreadable = read
            lost = losses(self._reports, found, self._logs.found(), self.broker, unreadable)
            if lost:
                self.world.note(f"{self.name} has lost data: {lost}")
            return Compared(is_lost=bool(lost))

        self._ask("reads its assignments", self._read_assigned, compared)

    def _drop_proof(self) -> None:
        self.host.disk.drop_proofs()
        self._happened(StepDone())

    def _read_assigned(self, topics: Collection[str] | None = None) -> _Assigned:
        return read_assigned(self._zookeeper.tree, self.broker, topics)

    def _read_hidden(self) -> None:
        me = self.loop.me
        if me is not None:
            self.loop.read_hidden(me, self._read_assigned(self.loop.hidden.topics))

    def _connect(self) -> Session:
        return self._zookeeper.connect(self, self._gone)

    def _gone(self) -> None:
        """Report that the session has expired: the last registration that this process knows of is gone."""
        if self.epoch is not None:
            self._happened(RegistrationGone(self.epoch))

    def _register(self) -> None:
        if self.session.expired:
            self.session = self._connect()
        wanted = Registration(
            host=f"host-{self.broker}",
            port=self.life,
            replication_port=self.life,
            epoch=0,
            incarnation=self.incarnation,
            continues=self._course.continues,
            boot_id=self.host.boot_id,
            directory_mark="mark",
        )

        def registered(answer: Claimed) -> HasRegistered:
            self._registration = answer.registration
            self._told.registered()
            return HasRegistered(answer.epoch.epoch, answer.epoch.clean_since)

        self._claim("registers", Registering(self.broker, wanted), registered)

    def _record(self) -> None:
        disk, zookeeper, epoch = self.host.disk, self._zookeeper, self.epoch
        assert epoch is not None, "it has registered"
        disk.started = self.host.boot_id, epoch
        disk.clean_shutdown = None
        self.links.registered()
        if self.session.expired or zookeeper.owner(self.broker) is not self.session:
            self._happened(RegistrationGone(epoch))
            return
        zookeeper.watch_registration(self.broker, self.session, lambda: self._happened(RegistrationGone(epoch)))
        self._happened(StepDone())

    def _read(self) -> None:
        registered = self._course.registered
        assert registered is not None, "it has registered"
        me = Me(self.broker, registered.epoch, registered.clean_since)

        def read(found: ClusterRead) -> Event:
            try:
                with self._leaving(found.unreadable):
                    self.loop.registered(
                        me,
                        found.partitions,
                        found.topics,
                        found.brokers.brokers,
                        settings=found.settings.settings,
                        controller_epoch=found.controller_epoch,
                        unreadable=found.unreadable,
                        unmade=found.unmade,
                    )
            except ReplicationError as error:
                return StepFailed(error)
            return StepDone()

        self._ask("reads its state", partial(read_all, self._zookeeper.tree), read)

    # Living

    def _resign(self) -> None:
        self.world.counts["registered_again"] += 1
        self.loop.session_lost()
        self._happened(StepDone())

    def _tick(self) -> None:
        """Perform the duties of live/, once the broker serves. Rare ones come more often here: stories are short."""
        if self._course.doing is not Do.SERVE and not self._ticks:
            self.world.after(TICK_MS, "tick", self._tick, on=self)
            return
        self._ticks += 1
        self.loop.give_turns(self.clock_ms())
        self.loop.tick(self.clock_ms(), looks=True)
        self.loop.try_refused()
        self.coordinators.tick()
        if is_needed(Duty.READ_HIDDEN, self):
            self._read_hidden()
        if self._ticks % TICKS_PER_CHECKPOINT == 0:
            with suppress(StorageFailed):
                self.loop.checkpoint()
        if self.host.disk.has_rotted:
            self._keep_logs()
        if self.world.chance(WRITE_BACK_PROBABILITY):
            self.host.disk.files.write_back()
        if self.world.chance(CLEAN_UP_PROBABILITY):
            self._clean_up()
        if self._ticks % TICKS_PER_CHECKPOINT == 0 and is_needed(Duty.READ_BROKERS, self):
            self.loop.read_brokers(self._read_registered)
        self.world.after(TICK_MS, "tick", self._tick, on=self)

    # engine.broker.duties.Surroundings

    @property
    def connected(self) -> bool:
        return self.session.connected and not self.session.expired

    @property
    def has_controller(self) -> bool:
        return self._zookeeper.controller is not None

    @property
    def hides(self) -> bool:
        return bool(self.loop.hidden.topics)

    def _keep_logs(self) -> None:
        """Perform what live.broker.log_upkeep does."""
        left = SCRUB_BYTES  # by its rate, however small the segments are that its steps end with
        while left > 0:
            count = self._scrub.step(left)
            if count is None:
                self._scrub.begin()
                break
            left -= max(1, count)
        for name, partition in sorted(self.loop.replicas.items()):
            if partition.damaged:
                for tried in mend(partition, sources(self.loop, name), self._copy):
                    self.world.counts["damage_mended" if tried.source is not None else "damage_stays"] += 1
                    self.world.note(f"{self.name} had lost {tried.batch} of {name}: {tried.source} {tried.why}")

    def _copy(self, broker: BrokerId, wanted: CopyBatch) -> bytes:
        other = self.process_of(broker)
        if other is None or self.network.lost(self.place, other.place) or self.network.lost(other.place, self.place):
            raise BrokerNotAvailable(f"broker {broker} does not answer")
        return copy_of(other.loop.partition, wanted).data

    def _clean_up(self) -> None:
        with suppress(StorageFailed):
            self._logs.delete_quarantined(
                asked_delay_ms=self._settings.log_delete_delay_ms,
                unasked_delay_ms=self._settings.log_unassigned_delay_ms,
                now_ms=self.clock_ms(),
            )
        self._logs.keep_reserve()

    def _read_registered(self) -> tuple[Mapping[BrokerId, Registration], Unreadable]:
        read = Reading(self._zookeeper.tree).brokers()
        return read.brokers, read.unreadable

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        """ports.IsrStore."""
        requests = Requests(self.session, writes="changes an ISR", reads="reads what it was refused for")
        IsrWrites(requests, lambda: self.has_controller).change(write, then)

    # Stopping (B3)

    def _look(self) -> None:
        found = DirectoryLookedAt(
            waits=bool(self.loop.waiting_to_move(self.broker)),
            has_controller=self.has_controller,
            connected=self.connected,
            now_ms=self.clock_ms(),
        )
        self._happened(found)

    def _mark_shutting_down(self) -> None:
        assert self._registration is not None, "it has registered"
        marking = Marking(self.broker, self._registration)
        self._claim("marks itself as shutting down", marking, lambda _marked: StepDone())

    def _close(self) -> None:
        self.stopping = True
        failed = self.loop.close()
        self.session.close()
        self._happened(Closed(is_flushed=not failed))

    def _leave(self) -> None:
        if self._course.proof is not None:
            self.host.disk.clean_shutdown = self._course.proof
        self._happened(StepDone())

    def _end(self) -> None:
        self.ended()
        self._stopped()

    def _fail(self) -> None:
        self.world.note(f"{self.name} ends: {self._course.error}")
        self.ended()
        self._told.respawn()

    # What others ask of it

    def initialized(self, told: Iterable[PartitionCommand]) -> None:
        if self.connected:
            _, unreadable = self._read_assigned()
            with self._leaving(unreadable):
                self.loop.initialized(told, self._read_assigned)

    @contextmanager
    def _leaving(self, unreadable: Unreadable) -> Iterator[None]:
        """Check that what is done meanwhile gives up no folder of a partition that cannot be read."""
        before = {found for found in self._logs.found() if unreadable.hides(found[0])}
        yield
        gone = before.difference(self._logs.found()) if before else ()
        for partition, topic_id in sorted(gone):
            raise InvariantBroken("unreadable_changes_nothing", f"{self.name} gave up {partition} of {topic_id}")

    def asked(self, life: int) -> BrokerLoop:
        """The loop of this process. Raises BrokerNotAvailable if another life is asked for, or this one is stopping."""
        if life != self.life or self.stopping:
            raise BrokerNotAvailable(f"{self.name} is not that process")
        return self.loop


class _Flusher:
    """ports.Flusher: a flush ends a while later, if the process still lives."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process

    def flush(self, flush: Flush, ended: Ended) -> None:
        world = self._process.world
        world.after(world.between(*FLUSH_MS), "flushes", lambda: ended(failure(flush)), on=self._process)
