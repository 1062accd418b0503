"""A guardian starts or adopts one broker, renews its lease, reports its death within milliseconds, and restarts it with
back-off: `engine.guarding.guardian_life` and `engine.guarding.broker_stop` say when, and this performs their steps.

Barrier tasks on Spark executors and threads of LocalCluster use it alike. A guardian may go away: its broker serves on
until the lease runs out. Guardians only probe the lock of a directory: the broker itself takes it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from spark_replication.config import Settings
from spark_replication.core.guardianship import FoundDirectory
from spark_replication.engine.guarding.broker_stop import BrokerStop, StopDoes
from spark_replication.engine.guarding.guardian_life import GuardianDoes, GuardianLife
from spark_replication.engine.guarding.leases import Lease, renew_s
from spark_replication.errors import CorruptState, ReplicationError, StartFailed, StorageFailed
from spark_replication.live.broker.lease import holder_in
from spark_replication.live.guarding.broker_file import LOG_FILE, BrokerFile, read_broker_file
from spark_replication.live.guarding.broker_watch import BrokerWatch
from spark_replication.live.guarding.table_writer import TableWriterKeeper
from spark_replication.messages.actions import RENEW_LEASE, SHUTDOWN, Action, Asked, Told
from spark_replication.messages.guarding import BrokerDied, LeaseAnswer, RenewLease, Shutdown
from spark_replication.model import BrokerId
from spark_replication.process.files import close_all
from spark_replication.process.processes import last_lines
from spark_replication.storage.directory.broker_directory import probe, read_identity
from spark_replication.storage.disk.flush_threads import CLOSE_TIMEOUT_S as FLUSH_TIMEOUT_S
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import Security

DIRECTORY = "broker-{}"
GUARDIAN_LOG = "guardian-{}.log"
STOP_TIMEOUT_S = 20.0
SHUT_DOWN_TIMEOUT_S = FLUSH_TIMEOUT_S + STOP_TIMEOUT_S  # of a broker that has heard
RENEW_S_MAX = 5.0  # often, so that a lease that nobody renews any more is still nearly whole
REQUEST_TIMEOUT_MS = 5_000

_START_ENDS = (GuardianDoes.WATCH, GuardianDoes.PAUSE, GuardianDoes.FAIL, GuardianDoes.END)

log = logging.getLogger(__name__)


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a guardian on an executor needs to start its broker."""

    log_directory: str
    cluster_id: str
    zookeeper: str
    host: str
    overrides: dict[str, Any]
    #: Where settings come from (core.settings_in_force).
    origins: dict[str, str] = {}


def found_directories(log_directory: Path, cluster_id: str) -> tuple[FoundDirectory, ...]:
    """The brokers of this cluster whose directories are on this host. A directory of another cluster, or one that
    cannot be read, is passed over."""
    found = []
    for path in sorted(log_directory.glob(DIRECTORY.format("*"))):
        try:
            identity = read_identity(path)
            if identity is not None and identity.cluster_id == cluster_id:
                found.append(FoundDirectory(identity.broker_id, alive=probe(path)))
        except (CorruptState, StorageFailed, OSError) as error:
            log.warning("%s is passed over: %s. Mend it, or move it away", path, error)
    return tuple(found)


def guardian_log(log_directory: Path, number: int) -> Path:
    """The log of a guardian that is a task: `number` is its own on this host at any time. What is a thread of
    somebody's program logs as that program does."""
    return log_directory / GUARDIAN_LOG.format(number)


class Guardian:
    """`report` tells the controller of a death. It may fail: the end of the broker's ZooKeeper session tells, too."""

    def __init__(
        self,
        broker_id: BrokerId,
        assignment: Assignment,
        lease: Lease,
        *,
        settings: Settings,
        security: Security,
        report: Callable[[BrokerDied], None],
    ) -> None:
        self.broker_id = broker_id
        self.directory = Path(assignment.log_directory) / DIRECTORY.format(broker_id)
        self._assignment = assignment
        self._lease = lease
        self._settings = settings
        self._security = security.of_cluster(lambda: assignment.cluster_id)
        self._report = report
        self._life: GuardianLife[BrokerFile] = GuardianLife(broker_id, str(self.directory), time.monotonic)
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        weakref.finalize(self, close_all, self._wake_read, self._wake_write)
        self._child: subprocess.Popen[bytes] | None = None
        bootstrap = f"zk://{assignment.zookeeper}{settings.zookeeper_chroot}"
        self._table_writer = TableWriterKeeper(broker_id, self.directory, bootstrap, assignment.overrides)

    # For any thread to read

    @property
    def restarts(self) -> int:
        return self._life.restarts

    @property
    def adopted(self) -> bool:
        """Whether the broker lived before this guardian."""
        return self._life.adopted

    @property
    def trouble(self) -> str:
        """Why the broker does not start; empty once it has started."""
        return self._life.trouble

    def start(self) -> BrokerFile:
        """Adopt the broker if it lives, else start it. It serves, under this lease, when this returns."""
        life = self._life
        life.begin()
        while life.doing not in _START_ENDS:
            self._step()
        if life.doing is not GuardianDoes.WATCH:
            raise life.error or StartFailed(f"broker {self.broker_id} is not started: its guardian is to stop")
        assert life.found is not None, "it serves"
        return life.found

    def guard(self) -> None:
        """Renew, watch, report and restart, until `stop`. Raises StaleLease if another guardian has taken over."""
        life = self._life
        life.begin()
        while life.doing is not GuardianDoes.END:
            if life.doing is GuardianDoes.FAIL:
                assert life.error is not None, "it has failed"
                raise life.error
            self._step()

    def stop(self) -> None:
        """Stop guarding. The broker serves on under its lease."""
        self._life.stop()
        self._stopping.set()
        os.write(self._wake_write, b"x")

    def retire(self) -> None:
        """Report the broker's next end, and leave the restart to a successor."""
        self._life.retire()

    def successor(self) -> Guardian:
        """A guardian of the same broker, for when this one has ended."""
        return Guardian(
            self.broker_id,
            self._assignment,
            self._lease,
            settings=self._settings,
            security=self._security,
            report=self._report,
        )

    def shut_down(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the broker in a controlled way (B3), as all brokers stop, unless a later guardian has it. A broker that
        does not answer gets SIGTERM. It gets SIGKILL if it has not ended `timeout_s` after the time that it has for
        what it was told: to flush its logs, or with SIGTERM to hand over its leaderships."""
        self.stop()
        info = read_broker_file(self.directory)
        if info is not None and probe(self.directory):
            self._shut_down(info, timeout_s)
        self._table_writer.stop()

    def _shut_down(self, info: BrokerFile, timeout_s: float) -> None:
        with BrokerWatch(self.directory, info) as watch:
            stop = BrokerStop(
                self.broker_id,
                self._lease,
                is_seen=watch.is_seen,
                timeout_s=timeout_s,
                flush_s=FLUSH_TIMEOUT_S,
                hand_over_s=self._settings.controlled_shutdown_timeout_ms / 1000,
            )
            while stop.doing is not StopDoes.END:
                try:
                    self._step_of_stop(stop, info, watch)
                except ReplicationError as error:
                    stop.failed(error)
        self._reap()

    # The steps of engine.guarding.broker_stop.

    def _step_of_stop(self, stop: BrokerStop, info: BrokerFile, watch: BrokerWatch) -> None:
        match stop.doing:
            case StopDoes.TAKE:
                stop.taken(self._take_lease(info).broker_id)
            case StopDoes.ASK:
                epoch, attempt = self._lease.controller_epoch, self._lease.attempt
                self._call(info, SHUTDOWN, Shutdown(controller_epoch=epoch, attempt=attempt, with_all=True))
                stop.asked()
            case StopDoes.HOLDER:
                with self._disk_of_broker():
                    holder = holder_in(self.directory)
                stop.found_holder(holder)
            case StopDoes.TERMINATE | StopDoes.KILL:
                watch.signal(signal.SIGTERM if stop.doing is StopDoes.TERMINATE else signal.SIGKILL)
                stop.signalled()
            case StopDoes.WAIT:
                stop.waited(ended=watch.ended_within(stop.wait_s))

    # The steps of engine.guarding.guardian_life.

    def _step(self) -> None:
        """Perform the present step, and tell the life how it ended."""
        try:
            with self._disk_of_broker():
                self._steps()[self._life.doing]()
        except ReplicationError as error:
            self._life.failed(error)
        if self._life.doing is GuardianDoes.PAUSE and self._life.trouble:
            log.warning("broker %d does not start: %s", self.broker_id, self._life.trouble)

    def _steps(self) -> dict[GuardianDoes, Callable[[], None]]:
        return {
            GuardianDoes.LOOK: self._look,
            GuardianDoes.TAKE: self._take,
            GuardianDoes.LAUNCH: self._launch,
            GuardianDoes.AWAIT: self._await,
            GuardianDoes.KILL: self._kill_child,
            GuardianDoes.WATCH: self._watch,
            GuardianDoes.REPORT: self._report_end,
            GuardianDoes.PAUSE: self._pause,
        }

    @contextmanager
    def _disk_of_broker(self) -> Iterator[None]:
        """What its disk refuses is this broker's trouble: it must not end the stage of all guardians (B4)."""
        try:
            yield
        except OSError as error:
            raise StorageFailed(f"{self.directory} cannot be used: {error}. Look after its disk") from error

    def _look(self) -> None:
        time.sleep(self._life.wait_s)
        alive = probe(self.directory)
        self._life.looked(alive=alive, file=read_broker_file(self.directory) if alive else None)

    def _take(self) -> None:
        self._life.taken(self._take_lease(self._found).broker_id)
        if self._life.doing is GuardianDoes.WATCH:
            log.info("adopted broker %d, pid %d", self.broker_id, self._found.pid)

    def _launch(self) -> None:
        """Start the broker in a session of its own, without a pipe to this process: it outlives its guardian."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._reap()
        before = read_broker_file(self.directory)
        with (self.directory / LOG_FILE).open("ab") as output:
            self._child = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.directory,
            )
        self._life.launched(self._child.pid, before)

    def _await(self) -> None:
        assert self._child is not None, "it was started"
        time.sleep(self._life.wait_s)
        self._life.awaited(read_broker_file(self.directory))
        if self._life.doing is GuardianDoes.AWAIT and (code := self._child.poll()) is not None:
            self._life.child_ended(code, self._last_words())
        elif self._life.doing is GuardianDoes.WATCH:
            log.info("started broker %d, pid %d", self.broker_id, self._found.pid)

    def _kill_child(self) -> None:
        assert self._child is not None, "it was started"
        self._child.kill()
        self._life.child_ended(self._child.wait(), self._last_words())

    def _watch(self) -> None:
        """Watch this very process, and renew its lease meanwhile: another may live in the directory after it."""
        life, apart_s = self._life, renew_s(self._settings.broker_lease_ms, RENEW_S_MAX)
        with BrokerWatch(self.directory, self._found) as watch:
            while life.doing in (GuardianDoes.WATCH, GuardianDoes.RENEW):
                if life.doing is GuardianDoes.WATCH:
                    life.watched(ended=watch.ended_within(apart_s, self._wake_read))
                else:
                    self._renew()
        self._reap()

    def _renew(self) -> None:
        try:
            answer = self._take_lease(self._found)
        except ReplicationError as error:
            self._life.failed(error)
            log.warning("the lease of broker %d was not renewed: %s", self.broker_id, error)
        else:
            self._life.renewed()
            self._table_writer.heed(has_tables=answer.has_tables)

    def _report_end(self) -> None:
        log.warning("broker %d (pid %d) has ended: reporting it", self.broker_id, self._found.pid)
        self._report(self._life.died)
        self._life.reported()

    def _pause(self) -> None:
        self._stopping.wait(self._life.wait_s)
        self._life.paused()

    @property
    def _found(self) -> BrokerFile:
        assert self._life.found is not None, "it serves, or did"
        return self._life.found

    def _take_lease(self, info: BrokerFile) -> LeaseAnswer:
        request = RenewLease(
            controller_epoch=self._lease.controller_epoch,
            attempt=self._lease.attempt,
            lease_ms=self._settings.broker_lease_ms,
        )
        return self._call(info, RENEW_LEASE, request)

    def _call(self, info: BrokerFile, action: Action[Asked, Told], request: Asked) -> Told:
        with self._security.client(f"{info.host}:{info.port}") as client:
            return call(client, action, request, REQUEST_TIMEOUT_MS)

    def _command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "spark_replication.live.broker.process",
            f"--directory={self.directory}",
            f"--zookeeper={self._assignment.zookeeper}",
            f"--broker-id={self.broker_id}",
            f"--cluster-id={self._assignment.cluster_id}",
            f"--host={self._assignment.host}",
            f"--settings={json.dumps(self._assignment.overrides)}",
            f"--origins={json.dumps(self._assignment.origins)}",
            f"--lease={self._lease.controller_epoch},{self._lease.attempt}",
        ]

    def _last_words(self) -> str:
        return last_lines(self.directory / LOG_FILE, lines=1) or "it said nothing"

    def _reap(self) -> None:
        if self._child is not None:
            self._child.poll()
