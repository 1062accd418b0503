"""One life of a broker: performs the steps of engine.broker.broker_host on the main thread.

Whatever interrupts or ends that life comes on any thread, which only leaves a note in a queue.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from spark_replication.config import Settings
from spark_replication.core.replica import clock
from spark_replication.core.replica.replica import Me
from spark_replication.core.settings_in_force import all_shown
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
from spark_replication.engine.broker.duties import Duty, is_needed, period_ms, ticks_per_look
from spark_replication.engine.groups.coordinators import KnownPartitions
from spark_replication.errors import NotController, NotReady, ReplicationError, StorageFailed, WrongCluster
from spark_replication.live.broker.changed_notes import ChangedNotes
from spark_replication.live.broker.clean_proof import StartProof, drop_outdated, losses, proven_epoch
from spark_replication.live.broker.failure_reports import QueuedFailureReports
from spark_replication.live.broker.isr_changes import CountedIsrChanges
from spark_replication.live.broker.lease import BrokerLease
from spark_replication.live.broker.log_upkeep import LogUpkeep, Others
from spark_replication.live.broker.metrics import BrokerMetrics
from spark_replication.live.broker.patience import RoundPatience
from spark_replication.live.broker.records import Records
from spark_replication.live.broker.table_reports import TableReports
from spark_replication.live.guarding.broker_file import (
    LOG_FILE,
    BrokerFile,
    read_broker_file,
    remove_broker_file,
    write_broker_file,
)
from spark_replication.messages.actions import BROKER_NOTED, DISK_FAILED, Action, Asked, Told
from spark_replication.messages.commands import BrokerNotes, PartitionCommand, PutAside, TellNotes
from spark_replication.messages.envelope import NONE, Done
from spark_replication.messages.groups import DeleteGroup, DescribedGroups, DescribeGroups, ResetGroup
from spark_replication.messages.guarding import DiskFailed, LeaseAnswer, RenewLease, Shutdown
from spark_replication.messages.observing import DescribeSettings, GetMetrics, MetricsText, ToldSettings
from spark_replication.messages.ranges import ReplicaFolder
from spark_replication.model import BrokerId, DirectoryIdentity, Epoch, Registration, ReplicaOf, TopicPartition
from spark_replication.process.files import open_files_max
from spark_replication.process.logs import keep_small
from spark_replication.process.loopback import port_again
from spark_replication.process.processes import own_mark
from spark_replication.process.threads import Timers, now_ms
from spark_replication.storage.directory.broker_directory import (
    CleanShutdown,
    DirectoryLock,
    boot_id,
    directory_mark,
    drop_proofs,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_identity,
)
from spark_replication.storage.directory.local_files import LocalLogs
from spark_replication.storage.directory.replica_folder import replica_folder
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.disk.flush_threads import FlushThreads
from spark_replication.storage.disk.reserve import RESERVE_FILE
from spark_replication.storage.format.batches import topic_schema
from spark_replication.storage.log.segment_memory import SegmentMemory
from spark_replication.transport.flight.actions import call
from spark_replication.transport.flight.flight import BrokerFlightServer
from spark_replication.transport.frames.replication import Address, Replication, ServedBroker
from spark_replication.transport.security.audit import AUDIT_FILE, AuditLog
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import read_security
from spark_replication.transport.sockets.socket_loop import SocketLoop, loop_ms
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session

FLIGHT_STOP_S = 1.0
LED_TOLD_MAX = 5
PUT_ASIDE_TOLD_MAX = 1_000
LOOP_STOP_S = 3.0
LEASE_IS_OVER = "no guardian has renewed the lease in time"

log = logging.getLogger(__name__)


class Crashed(msgspec.Struct, frozen=True):
    """A thread ended by a mistake of this program: half a broker would be worse than none."""

    error: BaseException


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a broker process."""

    directory: Path
    #: host:port,…
    zookeeper: str
    chroot: str
    broker_id: BrokerId
    cluster_id: str
    host: str
    settings: Settings
    #: (controller epoch, attempt)
    lease: tuple[int, int]
    #: Where the settings come from (core.settings_in_force).
    origins: Mapping[str, str] = {}


class BrokerLife:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._settings = options.settings
        self._host = BrokerHost(options.settings)
        self._news: queue.SimpleQueue[StopAsked | RegistrationGone | Crashed] = queue.SimpleQueue()
        self._incarnation = str(uuid.uuid4())
        self._registration: Registration | None = None
        #: By this broker's clock: when it last asked to be registered, and when it was.
        self._asked_ms = self._answered_ms = 0
        self._ticks = 0
        self._ticks_per_look = ticks_per_look(options.settings)
        self._has_served = False
        self._records = Records()
        self._metrics: BrokerMetrics | None = None
        self._secret_notes = ChangedNotes("its files of secrets are", lambda: self._security.trouble, self._tell_notes)
        self._tables = TableReports(options.directory, now_ms)
        self._table_notes = ChangedNotes("tables are", lambda: self._tables.behind.names, self._tell_notes)
        self._replica_timers = Timers("replica-timers")
        self._slow_timers = Timers("slow-timers")
        self._lease_timer = Timers("lease-timer")  # alone, since nothing may delay the end of an orphan broker
        self._timers = (self._replica_timers, self._slow_timers, self._lease_timer)

    def run(self) -> None:
        """Return once the broker was asked to stop, and has stopped. Raises whatever else ends it."""
        options = self._options
        self._security = read_security(self._settings).of_cluster(lambda: options.cluster_id)
        mode = self._settings.log_dir_mode
        lock = DirectoryLock.take(options.directory, int(mode, 8) if mode else None)
        lease_ms = self._settings.broker_lease_ms
        self._lease = BrokerLease(options.directory, *options.lease, lease_ms=lease_ms, now_ms=now_ms())
        while self._host.doing is not Do.END:
            if self._host.doing is Do.FAIL:
                assert self._host.error is not None, "it has failed"
                raise self._host.error
            self._host.after(self._done())
            while (news := self._heard(0)) is not None:  # everything that came during the step
                self._host.after(news)
        lock.release()

    # transport.flight.flight.BrokerServices, and the signal handlers.

    def begin_stop(self, *, with_all: bool = False) -> None:
        self._news.put(StopAsked("asked to stop", with_all=with_all))

    def fail(self, error: BaseException | None) -> None:
        """Make `run` raise this error."""
        self._news.put(Crashed(error or RuntimeError("a thread ended")))

    def initialized(self, told: Iterable[PartitionCommand]) -> None:
        try:
            self._loop.initialized(told, lambda: self._store.read_assigned(self._options.broker_id))
        except ReplicationError as error:
            log.info("what is no longer assigned stays until the next INIT or registration: %s", error)

    def notes(self) -> BrokerNotes:
        put_aside: list[PutAside] = []
        try:
            put_aside = self._logs.put_aside(self._settings.log_unassigned_delay_ms)
        except StorageFailed as error:
            log.error("%s", error)
        return BrokerNotes(
            clock_ahead_ms=clock.doubted(self._loop.clock_ahead_ms),
            put_aside=tuple(put_aside[:PUT_ASIDE_TOLD_MAX]),
            secrets=self._security.trouble,
            tables_behind=self._tables.behind.told,
        )

    def folder(self, partition: TopicPartition, topic_id: str) -> ReplicaFolder | None:
        return replica_folder(self._logs.folder(partition, topic_id))

    def controller_address(self) -> str | None:
        controller = self._store.controller()
        return None if controller is None else controller.address

    def describe_groups(self, request: DescribeGroups) -> DescribedGroups:
        return self._replication.describe_groups(request)

    def change_group(self, request: ResetGroup | DeleteGroup) -> Done:
        return self._replication.change_group(request)

    def shut_down(self, request: Shutdown) -> None:
        """Begin to stop. StaleLease: a guardian that was taken over orders nothing."""
        self._lease.take(request.controller_epoch, request.attempt)
        self.begin_stop(with_all=request.with_all)

    def renew_lease(self, request: RenewLease) -> LeaseAnswer:
        self._lease.renew(request.controller_epoch, request.attempt, lease_ms=request.lease_ms, now_ms=now_ms())
        epoch = self._host.epoch
        if epoch is None:
            raise NotReady("this broker has not registered yet: the lease is renewed, ask again")
        return LeaseAnswer(
            broker_id=self._options.broker_id,
            broker_epoch=epoch,
            pid=os.getpid(),
            has_tables=self._settings.table_writer_enabled and self._loop.has_tables,
        )

    def metrics(self, request: GetMetrics) -> MetricsText:
        if self._metrics is None:
            raise NotReady("this broker is starting: ask again")
        return self._metrics.answer(request)

    def settings(self, request: DescribeSettings) -> ToldSettings:
        of_cluster = self._loop.of_cluster
        return ToldSettings(
            settings=self._loop.settings_in_force(request.topic, self._options.origins),
            of_cluster=None if of_cluster is None else all_shown(of_cluster),
            directory=str(self._options.directory),
            boot_id=boot_id(),
        )

    # The steps of engine.broker.broker_host.

    def _done(self) -> Event:
        """Perform the present step, and return how it ended."""
        try:
            return self._steps()[self._host.doing]()
        except ReplicationError as error:
            return StepFailed(error)

    def _steps(self) -> dict[Do, Callable[[], Event]]:
        return {
            Do.RECOVER: self._recover,
            Do.COMPARE: self._compare,
            Do.DROP_PROOF: self._drop_proof,
            Do.REGISTER: self._register,
            Do.RECORD: self._record,
            Do.READ: self._read,
            Do.SERVE: self._serve,
            Do.RESIGN: self._resign,
            Do.REST: self._rest,
            Do.LOOK: self._look,
            Do.MARK: self._mark_shutting_down,
            Do.PAUSE: lambda: self._heard(PAUSE_MS / 1000) or StepDone(),
            Do.CLOSE: self._close,
            Do.LEAVE: self._leave,
        }

    def _heard(self, timeout_s: float | None) -> StopAsked | RegistrationGone | None:
        """The next news; None if there is none in time. timeout_s: None to wait for ever."""
        try:
            news = self._news.get(timeout=timeout_s) if timeout_s != 0 else self._news.get_nowait()
        except queue.Empty:
            return None
        if isinstance(news, Crashed):
            raise news.error
        if isinstance(news, StopAsked):
            log.info("stopping: %s", news.why)
        return news

    # Starting (B1).

    def _recover(self) -> LogsRecovered:
        options, directory = self._options, self._options.directory
        identity = DirectoryIdentity(cluster_id=options.cluster_id, broker_id=options.broker_id)
        write_identity(directory, identity)
        before = read_broker_file(directory)
        with suppress(StorageFailed):  # whoever reads it asks the process as well
            remove_broker_file(directory)
        self._mark = directory_mark(directory)
        proof = proven_epoch(directory, trust_page_cache=self._settings.recovery_trust_page_cache)
        self._files = LocalFiles(
            open_files_max=open_files_max(self._settings.open_files_max), reserve=directory / RESERVE_FILE
        )
        self._start_proof = StartProof(directory, self._mark, self._files, self._records)
        self._logs = LocalLogs(
            directory,
            files=self._files,
            memory=SegmentMemory(
                index_bytes_max=self._settings.index_cache_bytes, batch_bytes_max=self._settings.batch_cache_bytes
            ),
            now_ms=now_ms,
            before_cut=lambda: drop_proofs(directory),
            distrust=self._distrust,
        )
        self._reports = self._logs.recover()
        for report in self._reports:
            if report.failed:
                log.error("%s is offline: %s", report.folder, report.why)
        self._store = BrokerStore(self._connect)
        self._check_cluster()
        self._sockets = SocketLoop("broker-loop")
        audit = AuditLog(options.directory / AUDIT_FILE)
        rights = Rights(self._security, self._acls, lambda: self._loop.quotas, audit)
        self._replication = Replication(
            options.host,
            self._sockets,
            ServedBroker(
                find=lambda partition: self._loop.partition(partition),  # noqa: PLW0108 (the loop comes after)
                schema_of=lambda topic: topic_schema(self._loop.config(topic)),
                replicas=lambda: self._loop.replicas,
                known_partitions=KnownPartitions(
                    lambda: self._loop.known_topics, lambda: self._loop.brokers, clock_ms=loop_ms, now_ms=now_ms
                ),
            ),
            cluster_id=options.cluster_id,
            broker=options.broker_id,
            settings=self._settings,
            rights=rights,
            address_of=self._address_of,
            now_ms=now_ms,
        )
        self._flush_threads = FlushThreads(self._settings.flush_threads)
        self._failure_reports = QueuedFailureReports(self._tell_failed)
        self._isr_changes = CountedIsrChanges(self._store)
        self._loop = BrokerLoop(
            options.cluster_id,
            logs=self._logs,
            isr_store=self._isr_changes,
            links=self._replication,
            flusher=self._flush_threads,
            failures=self._failure_reports,
            settings=self._settings,
            locks=threading.Lock,
            post=self._sockets.post,
            now_ms=now_ms,
        )
        port = 0 if before is None else port_again(options.host, before.port)
        self._flight = BrokerFlightServer(
            options.host,
            self._loop,
            self,
            settings=self._settings,
            rights=rights,
            now_ms=now_ms,
            port=port,
        )
        others = Others(options.broker_id, self._loop, self._security, self.controller_address, self._settings)
        self._upkeep = LogUpkeep(self._loop, others.copy, others.tell, settings=self._settings)
        self._metrics = BrokerMetrics(
            self._loop,
            self._lease,
            self._flight,
            self._replication,
            self._store,
            self._isr_changes,
            tables=self._tables,
            secrets_trouble=lambda: self._security.trouble,
            now_ms=now_ms,
        )
        self._sockets.start()
        self._replication.start()
        self._watch_lease()
        return LogsRecovered(proof)

    def _acls(self) -> str:
        acls = self._loop.acls
        if acls is None:
            raise NotReady("this broker has not heard yet who may do what: ask another, or retry")
        return acls

    def _connect(self) -> Session:
        return Session.connect(
            self._options.zookeeper,
            self._options.chroot,
            session_timeout_ms=self._settings.zookeeper_session_ms,
            request_timeout_ms=self._settings.request_timeout_ms,
            login=self._security.zookeeper,
        )

    def _check_cluster(self) -> None:
        there = self._store.wait_for_cluster(self._settings.request_timeout_ms / 1000)
        if there.cluster_id != self._options.cluster_id:
            raise WrongCluster(
                f"ZooKeeper at {self._options.zookeeper}{self._options.chroot} holds cluster {there.cluster_id}, not "
                f"{self._options.cluster_id}: correct --zookeeper or --cluster-id"
            )

    def _compare(self) -> Compared:
        broker = self._options.broker_id
        assigned, unreadable = self._store.read_assigned(broker)
        lost = losses(self._reports, assigned, self._logs.found(), broker, unreadable)
        if lost:
            log.warning("this broker has lost data since its last registration: %s", "; ".join(lost))
        return Compared(is_lost=bool(lost))

    def _drop_proof(self) -> StepDone:
        drop_outdated(self._options.directory)
        return StepDone()

    def _register(self) -> HasRegistered:
        options, asked_ms = self._options, now_ms()
        self._registration, epoch = self._store.register(
            options.broker_id,
            host=options.host,
            port=self._flight.port,
            replication_port=self._replication.port,
            incarnation=self._incarnation,
            rack=None,
            boot_id=boot_id(),
            directory_mark=self._mark,
            files_uid=options.directory.stat().st_uid,
            continues=self._host.continues,
        )
        self._asked_ms, self._answered_ms = asked_ms, now_ms()
        return HasRegistered(epoch.epoch, epoch.clean_since)

    def _record(self) -> StepDone:
        _, epoch = self._own()
        self._start_proof.renew(epoch.epoch)
        self._records.write("the end of a clean stop", lambda: remove_clean_shutdown(self._options.directory))
        self._store.watch_own_registration(lambda: self._news.put(RegistrationGone(epoch.epoch)))
        self._replication.registered(epoch.epoch)
        return StepDone()

    def _read(self) -> StepDone:
        registration, epoch = self._own()
        me = Me(self._options.broker_id, epoch.epoch, epoch.clean_since)
        read = self._store.read_all()
        errors = self._loop.registered(
            me,
            read.partitions,
            read.topics,
            read.brokers.brokers,
            settings=None if read.unreadable.settings else read.settings.settings,
            controller_epoch=read.controller_epoch,
            unreadable=read.unreadable,
            unmade=read.unmade,
            clock_ahead_ms=self._clock_ahead_ms(),
        )
        for partition, error in errors.items():
            if error != NONE:
                log.error("%s did not start: %s", partition, error, extra={"partition": partition})
        mark = own_mark()
        file = BrokerFile(
            pid=mark.pid,
            pid_namespace=mark.namespace,
            started=mark.started,
            incarnation=self._incarnation,
            host=registration.host,
            port=registration.port,
            replication_port=registration.replication_port,
            epoch=me.epoch,
        )
        self._records.write("broker.json", lambda: write_broker_file(self._options.directory, file, self._files))
        log.info(
            "registered, clean since epoch %s, with %s replicas, at %s",
            me.clean_since,
            len(self._loop.replicas),
            registration.address,
            extra={"epoch": me.epoch},
        )
        return StepDone()

    def _clock_ahead_ms(self) -> int:
        stamped_ms = self._store.registered_ms()
        if stamped_ms is None:  # this registration is over: the next one tells
            return self._loop.clock_ahead_ms
        ahead = clock.ahead_ms(asked_ms=self._asked_ms, answered_ms=self._answered_ms, stamped_ms=stamped_ms)
        if not clock.is_believed(ahead):
            log.error(
                "the clock of this host is %s s %s ZooKeeper's: this broker removes nothing because of its age, by "
                "neither retention.ms nor producer.id.expiration.ms. Set the wrong clock right, then restart this "
                "broker",
                abs(ahead) // 1000,
                "ahead of" if ahead > 0 else "behind",
            )
        return ahead

    def _own(self) -> tuple[Registration, HasRegistered]:
        registration, registered = self._registration, self._host.registered
        assert registration is not None, "it has registered"
        assert registered is not None, "it has registered"
        return registration, registered

    def _resign(self) -> StepDone:
        log.warning("the registration is gone: registering again", extra={"epoch": self._host.epoch})
        self._loop.session_lost()
        return StepDone()

    def _rest(self) -> Event:
        rest_s = self._host.rest_ms / 1000
        log.warning("registering again failed, next attempt in %s s: %s", rest_s, self._host.error)
        return self._heard(rest_s) or StepDone()

    def _distrust(self) -> None:
        """A sync of a log has failed. Called on any thread, which has the partition."""
        epoch = self._host.epoch
        if not self._start_proof.give_up() and epoch is not None:
            self._news.put(RegistrationGone(epoch))

    def _address_of(self, broker: BrokerId) -> Address | None:
        """The broker's address: read in ZooKeeper, or without a connection as last known. Without a controller only
        ZooKeeper knows it."""
        if self._store.connected:
            self._read_brokers()
        registration = self._loop.brokers.get(broker)
        return None if registration is None else (registration.host, registration.replication_port)

    def _read_brokers(self) -> None:
        try:
            self._loop.read_brokers(self._store.read_registered)
        except ReplicationError as error:
            log.info("the brokers' addresses cannot be read: %s", error)

    # Serving.

    def _serve(self) -> Event:
        if not self._has_served:
            self._has_served = True
            self._start_timers()
            self._upkeep.start()
        news = self._heard(None)
        assert news is not None, "it has waited for it"
        return news

    def _start_timers(self) -> None:
        for timers, duty, perform in (
            (self._replica_timers, Duty.TICK, self._tick),
            (self._replica_timers, Duty.GIVE_TURNS, lambda: self._loop.give_turns(now_ms())),
            (self._replica_timers, Duty.CHECKPOINT, self._checkpoint),
            (self._replica_timers, Duty.COORDINATE, self._replication.coordinate),
            (self._slow_timers, Duty.CLEAN_UP, self._clean_up),
            (self._slow_timers, Duty.READ_BROKERS, self._read_brokers),
            (self._slow_timers, Duty.TRY_REFUSED, self._loop.try_refused),
            (self._slow_timers, Duty.READ_HIDDEN, self._read_hidden),
            (self._slow_timers, Duty.TELL_SECRETS, self._secret_notes.look),
            (self._slow_timers, Duty.TELL_TABLES, self._look_at_tables),
        ):
            timers.every(period_ms(duty, self._settings) / 1000, self._if_needed(duty, perform))
        self._replica_timers.start()
        self._slow_timers.start()

    def _look_at_tables(self) -> None:
        self._tables.look(self._loop.replicas.copy().values())
        self._table_notes.look()

    def _if_needed(self, duty: Duty, perform: Callable[[], None]) -> Callable[[], None]:
        def perform_if_needed() -> None:
            if is_needed(duty, self):
                perform()

        return perform_if_needed

    # engine.broker.duties.Surroundings.

    @property
    def connected(self) -> bool:
        return self._store.connected

    @property
    def has_controller(self) -> bool:
        return self._store.controller() is not None

    @property
    def hides(self) -> bool:
        return bool(self._loop.hidden.topics)

    def _tick(self) -> None:
        self._ticks += 1
        self._loop.tick(now_ms(), looks=self._ticks % self._ticks_per_look == 0, holds=RoundPatience().holds)

    def _checkpoint(self) -> None:
        try:
            self._loop.checkpoint(RoundPatience().holds)
        except StorageFailed as error:
            log.error("%s", error)

    def _tell_failed(self, replicas: tuple[ReplicaOf, ...]) -> None:
        broker = self._options.broker_id
        self._tell(DISK_FAILED, lambda epoch: DiskFailed(broker_id=broker, broker_epoch=epoch, replicas=replicas))

    def _tell_notes(self) -> None:
        broker, notes = self._options.broker_id, self.notes()
        self._tell(BROKER_NOTED, lambda epoch: TellNotes(broker_id=broker, broker_epoch=epoch, notes=notes))

    def _tell(self, action: Action[Asked, Told], told: Callable[[Epoch], Asked]) -> None:
        """Tell the controller, under the epoch of this registration. Raises if that did not arrive."""
        address = self.controller_address()
        epoch = self._host.epoch
        if address is None or epoch is None:
            raise NotController("there is none: start one, or wait until a standby takes over")
        with self._security.client(address) as client:
            call(client, action, told(epoch), self._settings.request_timeout_ms)

    def _watch_lease(self) -> None:
        self._lease_timer.every(period_ms(Duty.TICK, self._settings) / 1000, self._check_lease)
        self._lease_timer.start()

    def _check_lease(self) -> None:
        if self._lease.expired(now_ms()):
            self._news.put(StopAsked(LEASE_IS_OVER))

    def _clean_up(self) -> None:
        settings = self._settings
        try:
            deleted = self._logs.delete_quarantined(
                asked_delay_ms=settings.log_delete_delay_ms,
                unasked_delay_ms=settings.log_unassigned_delay_ms,
                now_ms=now_ms(),
            )
            for name in deleted:
                log.info("deleted %s, which was in quarantine", name)
        except StorageFailed as error:
            log.error("%s", error)
        self._logs.keep_reserve()
        self._records.write_again()
        keep_small(self._options.directory / LOG_FILE)  # libraries write there without a log line

    def _read_hidden(self) -> None:
        me, topics = self._loop.me, self._loop.hidden.topics
        if me is not None:
            with suppress(ReplicationError):  # the next tick asks again
                self._loop.read_hidden(me, self._store.read_assigned(me.broker, topics))

    # Stopping (B3).

    def _look(self) -> DirectoryLookedAt:
        return DirectoryLookedAt(
            waits=bool(self._loop.waiting_to_move(self._options.broker_id)),
            has_controller=self.has_controller,
            connected=self.connected,
            now_ms=now_ms(),
        )

    def _mark_shutting_down(self) -> Event:
        try:
            self._store.mark_shutting_down()
        except ReplicationError as error:
            log.warning("this broker stops without handing over: %s", error)
            return StepFailed(error)
        return StepDone()

    def _close(self) -> Closed:
        """Stop serving, flush everything, end the registration."""
        if self._host.wanted_to_hand_over and (led := self._loop.waiting_to_move(self._options.broker_id)):
            told = ", ".join(map(str, led[:LED_TOLD_MAX]))
            log.warning("stopping, and still leading %s (%d partitions in all)", told, len(led))
        for timers in self._timers:
            timers.stop()
        self._failure_reports.close()
        self._upkeep.close()
        self._loop.flush_soon()
        answers = self._flush_threads.close()  # before the last flush: a later failure would go unnoticed
        answers = self._sockets.call(lambda: None, LOOP_STOP_S) and answers  # by now the loop has ended all flushes
        failed = self._loop.close() if answers else {}
        self._replication.close()
        self._flight.stop(FLIGHT_STOP_S)
        self._sockets.stop(LOOP_STOP_S)
        self._store.close()
        for partition, error in failed.items():
            log.error("%s is not flushed, this stop not clean: %s", partition, error, extra={"partition": partition})
        if not answers:
            log.error("the disk does not answer: nothing was flushed, this stop is not clean")
        return Closed(is_flushed=answers and not failed)

    def _leave(self) -> StepDone:
        directory, proof = self._options.directory, self._host.proof
        try:
            if proof is not None:
                write_clean_shutdown(directory, CleanShutdown(broker_epoch=proof), self._files)
            remove_broker_file(directory)
        except StorageFailed as error:
            log.error("%s", error)
        log.info("stopped", extra={"epoch": self._host.epoch})
        return StepDone()
