"""One life of a broker, from the lock on its directory to the clean-shutdown file: registering (B1), registering again
when its session has expired or its node is gone (B2), stopping (B3).

The main thread owns that life and takes its news from a queue: whatever ends or interrupts it only leaves a note there.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from spark_replication.config import Settings
from spark_replication.core.replica.replica import Leading, Me
from spark_replication.engine.broker_loop import BrokerLoop
from spark_replication.errors import NotController, NotReady, ReplicationError, StorageFailed, WrongCluster
from spark_replication.live.broker.clean_proof import StartProof, drop_outdated, losses, proven_epoch
from spark_replication.live.broker.failure_reports import FailureReports
from spark_replication.live.broker.isr_answers import IsrAnswers, guards_in
from spark_replication.live.broker.lease import Lease
from spark_replication.live.broker.metrics import BrokerMetrics
from spark_replication.live.broker.news import Crashed, News, RegistrationGone
from spark_replication.live.broker.patience import Patience
from spark_replication.live.broker.records import Records
from spark_replication.live.guarding.broker_file import (
    BrokerFile,
    read_broker_file,
    remove_broker_file,
    write_broker_file,
)
from spark_replication.messages.actions import DISK_FAILED
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.envelope import NONE
from spark_replication.messages.guarding import DiskFailed, LeaseAnswer, RenewLease, Shutdown
from spark_replication.messages.observing import GetMetrics, MetricsText
from spark_replication.messages.ranges import ReplicaFolder
from spark_replication.model import BrokerId, DirectoryIdentity, ReplicaOf, TopicPartition
from spark_replication.process.clock import now_ms
from spark_replication.process.loopback import port_again
from spark_replication.process.open_files import open_files_max
from spark_replication.process.timers import Timers
from spark_replication.storage.broker_directory import (
    CleanShutdown,
    DirectoryLock,
    boot_id,
    directory_mark,
    drop_proofs,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_identity,
)
from spark_replication.storage.files import LocalFiles
from spark_replication.storage.flush_threads import FlushThreads
from spark_replication.storage.local_files import LocalLogs
from spark_replication.storage.replica_folder import replica_folder
from spark_replication.storage.reserve import RESERVE_FILE
from spark_replication.storage.segment_memory import SegmentMemory
from spark_replication.transport.actions import call
from spark_replication.transport.flight import BrokerFlightServer
from spark_replication.transport.replication import Address, Replication
from spark_replication.transport.security import read_security
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session

TICK_S_MAX = 1.0
TURN_S = 0.1  # of replicas that are being copied, as long as a throttle's least part of a second
CHECKPOINT_S = 5.0
HEADLESS_READ_S = 5.0
QUARANTINE_S = 10.0
REGISTER_BACKOFF_S = 0.1
REGISTER_BACKOFF_S_MAX = 2.0
FLIGHT_STOP_S = 1.0
HAND_OVER_POLL_S = 0.02

log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker process is told at its start. zookeeper: host:port,… ; lease: (controller epoch, attempt)."""

    directory: Path
    zookeeper: str
    chroot: str
    broker_id: BrokerId
    cluster_id: str
    host: str
    settings: Settings
    lease: tuple[int, int]


class BrokerLife:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._settings = options.settings
        self._news: queue.SimpleQueue[News | RegistrationGone | Crashed] = queue.SimpleQueue()
        self._incarnation = str(uuid.uuid4())
        self._epoch: int | None = None
        self._ticks = 0
        self._ticks_per_look = 1
        self._records = Records()
        self._metrics: BrokerMetrics | None = None
        self._replica_timers = Timers("replica-timers")
        self._slow_timers = Timers("slow-timers")
        self._lease_timer = Timers("lease-timer")  # alone: nothing may keep a broker without a guardian alive
        self._timers = (self._replica_timers, self._slow_timers, self._lease_timer)

    def run(self) -> None:
        """Until it is asked to stop. Whatever else ends it raises."""
        options = self._options
        self._security = read_security(self._settings).of_cluster(lambda: options.cluster_id)
        lock = DirectoryLock.take(options.directory)
        lease_ms = self._settings.broker_lease_ms
        self._lease = Lease(options.directory, *options.lease, lease_ms=lease_ms, now_ms=now_ms())
        self._open()
        self._register_and_read()
        self._start_timers()
        self._serve()
        self._hand_over()
        self._stop()
        lock.release()

    # transport.flight.BrokerServices, and the signal handlers.

    def begin_stop(self) -> None:
        self._news.put(News.STOP)

    def fail(self, error: BaseException | None) -> None:
        """Raised by `run`, which nothing else ends then."""
        self._news.put(Crashed(error or RuntimeError("a thread ended")))

    def initialized(self, told: Iterable[PartitionCommand]) -> None:
        try:
            self._loop.initialized(told, lambda: self._store.read_assigned(self._options.broker_id))
        except ReplicationError as error:
            log.info("what is no longer assigned stays until the next INIT or registration: %s", error)

    def folder(self, partition: TopicPartition, topic_id: str) -> ReplicaFolder | None:
        return replica_folder(self._logs.folder(partition, topic_id))

    def controller_address(self) -> str | None:
        controller = self._store.controller()
        return None if controller is None else controller.address

    def shut_down(self, request: Shutdown) -> None:
        """StaleLease: a guardian that was taken over orders nothing."""
        self._lease.take(request.controller_epoch, request.attempt)
        self.begin_stop()

    def renew_lease(self, request: RenewLease) -> LeaseAnswer:
        self._lease.renew(request.controller_epoch, request.attempt, lease_ms=request.lease_ms, now_ms=now_ms())
        if self._epoch is None:
            raise NotReady("this broker has not registered yet: the lease is renewed, ask again")
        return LeaseAnswer(broker_id=self._options.broker_id, broker_epoch=self._epoch, pid=os.getpid())

    def metrics(self, request: GetMetrics) -> MetricsText:
        if self._metrics is None:
            raise NotReady("this broker is starting: ask again")
        return self._metrics.answer(request)

    # Starting (B1).

    def _open(self) -> None:
        options, directory = self._options, self._options.directory
        identity = DirectoryIdentity(cluster_id=options.cluster_id, broker_id=options.broker_id)
        write_identity(directory, identity)
        before = read_broker_file(directory)
        with suppress(StorageFailed):  # who reads it asks the process
            remove_broker_file(directory)
        self._mark = directory_mark(directory)
        self._proof = proven_epoch(directory, trust_page_cache=self._settings.recovery_trust_page_cache)
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
        reports = self._logs.recover()
        for report in reports:
            if report.failed:
                log.error("%s is offline: %s", report.folder, report.why)
        self._store = BrokerStore(self._connect)
        self._check_cluster()
        if self._proof is not None:
            assigned, unreadable = self._store.read_assigned(options.broker_id)
            lost = losses(reports, assigned, self._logs.found(), options.broker_id, unreadable)
            if lost:
                log.warning("this broker has lost data since its last registration: %s", "; ".join(lost))
                self._proof = None
                drop_outdated(directory)
        self._replication = Replication(
            options.host,
            cluster_id=options.cluster_id,
            broker=options.broker_id,
            settings=self._settings,
            security=self._security,
            replica_of=lambda partition: self._loop.replica(partition),  # noqa: PLW0108 (the loop comes after)
            address_of=self._address_of,
            now_ms=now_ms,
        )
        self._flush_threads = FlushThreads(self._settings.flush_threads)
        self._failure_reports = FailureReports(self._tell_failed)
        self._isr_answers = IsrAnswers(self._store, guards_in(lambda: self._loop.replicas))
        self._loop = BrokerLoop(
            options.cluster_id,
            logs=self._logs,
            isr_store=self._isr_answers,
            links=self._replication,
            flusher=self._flush_threads,
            failures=self._failure_reports,
            settings=self._settings,
            guards=threading.RLock,
        )
        port = 0 if before is None else port_again(options.host, before.port)
        self._flight = BrokerFlightServer(
            options.host,
            self._loop,
            self,
            settings=self._settings,
            security=self._security,
            now_ms=now_ms,
            port=port,
        )
        self._metrics = BrokerMetrics(
            self._loop, self._lease, self._flight, self._replication, self._store, self._isr_answers, now_ms=now_ms
        )
        self._replication.start()

    def _connect(self) -> Session:
        return Session.connect(
            self._options.zookeeper,
            self._options.chroot,
            session_timeout_ms=self._settings.zookeeper_session_ms,
            request_timeout_ms=self._settings.request_timeout_ms,
        )

    def _check_cluster(self) -> None:
        there = self._store.wait_for_cluster(self._settings.request_timeout_ms / 1000)
        if there.cluster_id != self._options.cluster_id:
            raise WrongCluster(
                f"ZooKeeper at {self._options.zookeeper}{self._options.chroot} holds cluster {there.cluster_id}, not "
                f"{self._options.cluster_id}: correct --zookeeper or --cluster-id"
            )

    def _register_and_read(self) -> None:
        """In one session: register, leave the start record, and read everything (B1)."""
        options = self._options
        registration, epoch = self._store.register(
            options.broker_id,
            host=options.host,
            port=self._flight.port,
            replication_port=self._replication.port,
            incarnation=self._incarnation,
            rack=None,
            boot_id=boot_id(),
            directory_mark=self._mark,
            continues=self._proof if self._epoch is None else self._epoch,
        )
        self._epoch = epoch.epoch
        self._start_proof.renew(epoch.epoch)
        self._records.write("the end of a clean stop", lambda: remove_clean_shutdown(options.directory))
        self._store.watch_own_registration(lambda: self._news.put(RegistrationGone(epoch.epoch)))
        self._replication.registered(epoch.epoch)
        read = self._store.read_all()
        me = Me(options.broker_id, epoch.epoch, epoch.clean_since)
        errors = self._loop.registered(
            me,
            read.partitions,
            read.topics,
            read.brokers.brokers,
            now_ms(),
            settings=None if read.unreadable.settings else read.settings.settings,
            unreadable=read.unreadable,
        )
        for partition, error in errors.items():
            if error != NONE:
                log.error("%s did not start: %s", partition, error, extra={"partition": partition})
        file = BrokerFile(
            pid=os.getpid(),
            incarnation=self._incarnation,
            host=registration.host,
            port=registration.port,
            replication_port=registration.replication_port,
            epoch=epoch.epoch,
        )
        self._records.write("broker.json", lambda: write_broker_file(options.directory, file, self._files))
        log.info(
            "registered, clean since epoch %s, with %s replicas, at %s",
            epoch.clean_since,
            len(self._loop.replicas),
            registration.address,
            extra={"epoch": epoch.epoch},
        )

    def _distrust(self) -> None:
        """On any thread, under the guard of a partition whose log the disk has failed."""
        if not self._start_proof.give_up() and self._epoch is not None:
            self._news.put(RegistrationGone(self._epoch))

    def _address_of(self, broker: BrokerId) -> Address | None:
        """ZooKeeper knows it best, and alone where no controller tells; without a connection, what was last known."""
        if self._store.connected:
            self._read_brokers()
        registration = self._loop.brokers.get(broker)
        return None if registration is None else (registration.host, registration.replication_port)

    def _read_brokers(self) -> None:
        try:
            self._loop.read_brokers(self._store.read_registered)
        except ReplicationError as error:
            log.info("the brokers' addresses cannot be read: %s", error)

    # Living.

    def _serve(self) -> None:
        while True:
            news = self._news.get()
            if isinstance(news, News):
                log.info("stopping: %s", news.value)
                return
            if isinstance(news, Crashed):
                raise news.error
            if news.epoch == self._epoch and not self._register_again():
                return

    def _register_again(self) -> bool:
        """Until it is registered: nobody else will do it (B2). False: it was asked to stop."""
        log.warning("the registration is gone: registering again", extra={"epoch": self._epoch})
        self._loop.session_lost()
        backoff_s = REGISTER_BACKOFF_S
        while True:
            try:
                self._register_and_read()
                return True
            except ReplicationError as error:
                if not error.retriable:
                    raise
                log.warning("registering again failed, next attempt in %s s: %s", backoff_s, error)
            deadline = time.monotonic() + backoff_s
            while (left := deadline - time.monotonic()) > 0:
                if self._stop_within(left):
                    return False
            backoff_s = min(REGISTER_BACKOFF_S_MAX, backoff_s * 2)

    def _stop_within(self, timeout_s: float) -> bool:
        """News of a lost registration is no news here."""
        try:
            news = self._news.get(timeout=timeout_s)
        except queue.Empty:
            return False
        if isinstance(news, Crashed):
            raise news.error
        return isinstance(news, News)

    def _start_timers(self) -> None:
        look_s = self._settings.replica_lag_time_ms / 4000
        tick_s = min(TICK_S_MAX, look_s)
        self._ticks_per_look = int(look_s / tick_s)
        self._replica_timers.every(tick_s, self._tick)
        self._replica_timers.every(TURN_S, lambda: self._loop.give_turns(now_ms()))
        self._replica_timers.every(CHECKPOINT_S, self._checkpoint)
        self._lease_timer.every(tick_s, self._check_lease)
        self._slow_timers.every(min(QUARANTINE_S, max(1.0, self._settings.log_delete_delay_ms / 1000)), self._clean_up)
        self._slow_timers.every(HEADLESS_READ_S, self._read_brokers_headless)
        self._slow_timers.every(tick_s, lambda: self._loop.try_refused(now_ms()))
        self._slow_timers.every(tick_s, self._read_hidden)
        for timers in self._timers:
            timers.start()

    def _tick(self) -> None:
        """Who lags is looked for four or five times within the time that it may: it is what idle partitions cost."""
        self._ticks += 1
        self._loop.tick(now_ms(), looks=self._ticks % self._ticks_per_look == 0, holds=Patience().holds)

    def _checkpoint(self) -> None:
        try:
            self._loop.checkpoint(Patience().holds)
        except StorageFailed as error:
            log.error("%s", error)

    def _tell_failed(self, replicas: tuple[ReplicaOf, ...]) -> None:
        address = self.controller_address()
        if address is None or self._epoch is None:
            raise NotController("there is none: start one, or wait until a standby takes over")
        told = DiskFailed(broker_id=self._options.broker_id, broker_epoch=self._epoch, replicas=replicas)
        with self._security.client(address) as client:
            call(client, DISK_FAILED, told, self._settings.request_timeout_ms)

    def _check_lease(self) -> None:
        if self._lease.expired(now_ms()):
            self._news.put(News.LEASE_EXPIRED)

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

    def _read_hidden(self) -> None:
        me = self._loop.me
        if me is not None and (topics := self._loop.hidden.topics) and self._store.connected:
            with suppress(ReplicationError):  # the next tick asks again
                self._loop.read_hidden(me, self._store.read_assigned(me.broker, topics), now_ms())

    def _read_brokers_headless(self) -> None:
        if self._store.connected and self._store.controller() is None:
            self._read_brokers()

    # Stopping (B3).

    def _hand_over(self) -> None:
        """Others lead what this broker leads before it goes: as far as there are any, a controller, and time (L2)."""
        if not self._store.connected or self._store.controller() is None:
            return
        deadline = time.monotonic() + self._settings.controlled_shutdown_timeout_ms / 1000
        try:
            self._store.mark_shutting_down()
        except ReplicationError as error:
            log.warning("this broker stops without handing over: %s", error)
            return
        while (remaining := self._waiting_to_move()) and self._store.controller() is not None:
            if time.monotonic() >= deadline:
                log.warning("stopping, and still leading %s", ", ".join(map(str, remaining)))
                return
            if self._registration_is_gone_within(HAND_OVER_POLL_S):
                return

    def _waiting_to_move(self) -> list[TopicPartition]:
        """What this broker leads, while another broker that stays has a replica of it."""
        staying = {broker for broker, registration in self._loop.brokers.items() if not registration.shutting_down}
        staying.discard(self._options.broker_id)
        led = ((partition, replica.part) for partition, replica in list(self._loop.replicas.items()))
        return [each for each, part in led if isinstance(part, Leading) and staying.intersection(part.replicas)]

    def _registration_is_gone_within(self, timeout_s: float) -> bool:
        """Asked to stop again, it goes on stopping."""
        try:
            news = self._news.get(timeout=timeout_s)
        except queue.Empty:
            return False
        if isinstance(news, Crashed):
            raise news.error
        return isinstance(news, RegistrationGone) and news.epoch == self._epoch

    def _stop(self) -> None:
        """Served no more, flushed, no longer registered; the proof of all that comes last."""
        assert self._epoch is not None, "it has registered"
        for timers in self._timers:
            timers.stop()
        self._failure_reports.close()
        self._isr_answers.close()
        self._loop.flush_soon()
        answers = self._flush_threads.close()  # a flush that fails after the last one would go unnoticed
        failed = self._loop.close() if answers else {}
        self._replication.close()
        self._flight.stop(FLIGHT_STOP_S)
        self._store.close()
        for partition, error in failed.items():
            log.error("%s is not flushed, this stop not clean: %s", partition, error, extra={"partition": partition})
        if answers:
            self._leave_directory(clean=not failed)
        else:
            log.error("the disk does not answer: nothing was flushed, this stop is not clean")
        log.info("stopped", extra={"epoch": self._epoch})

    def _leave_directory(self, *, clean: bool) -> None:
        assert self._epoch is not None, "it has registered"
        try:
            if clean:
                proof = CleanShutdown(broker_epoch=self._epoch)
                write_clean_shutdown(self._options.directory, proof, self._files)
            remove_broker_file(self._options.directory)
        except StorageFailed as error:
            log.error("%s", error)
