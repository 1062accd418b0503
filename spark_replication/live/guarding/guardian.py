"""A guardian starts or adopts one broker, renews its lease, reports its death within milliseconds, and restarts it with
back-off.

Barrier tasks on Spark executors and threads of LocalCluster use it alike. A guardian may go away: its broker serves on
until the lease runs out. Guardians only probe the lock of a directory: the broker itself takes it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from spark_replication.config import Settings
from spark_replication.core.guardianship import FoundDirectory
from spark_replication.engine.guarding.leases import Lease, renew_s
from spark_replication.errors import (
    AuthenticationFailed,
    CorruptState,
    NotReady,
    ReplicationError,
    StaleLease,
    StartFailed,
    StorageFailed,
    WrongCluster,
)
from spark_replication.live.broker.lease import holder_in
from spark_replication.live.guarding.broker_file import LOG_FILE, BrokerFile, read_broker_file
from spark_replication.live.guarding.broker_watch import BrokerWatch
from spark_replication.live.guarding.exit_codes import IN_USE, TAKEN_OVER
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
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
SHUT_DOWN_TIMEOUT_S = FLUSH_TIMEOUT_S + STOP_TIMEOUT_S  # of a broker that has heard
POLL_S = 0.02  # while waiting for a file that another process writes
RESTART_S_MIN, RESTART_S_MAX = 0.1, 10.0
RENEW_S_MAX = 5.0  # often, so that a lease that nobody renews any more is still nearly whole
STEADY_S = 60.0  # a broker that lived this long is restarted without back-off
REQUEST_TIMEOUT_MS = 5_000

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
        self.restarts = 0
        self.adopted = False
        #: Why the broker does not start; empty once it has started.
        self.trouble = ""
        self._assignment = assignment
        self._lease = lease
        self._settings = settings
        self._security = security.of_cluster(lambda: assignment.cluster_id)
        self._report = report
        self._stopping = threading.Event()
        self._retiring = False
        self._wake_read, self._wake_write = os.pipe()
        weakref.finalize(self, close_all, self._wake_read, self._wake_write)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> BrokerFile:
        """Adopt the broker if it lives, else start it. It serves, under this lease, when this returns."""
        info = self._adopt()
        self.adopted = info is not None and self._child is None
        return info or self._launch()

    def guard(self) -> None:
        """Renew, watch, report and restart, until `stop`. Raises StaleLease if another guardian has taken over."""
        delay_s = RESTART_S_MIN
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                info = self.start()
                self.trouble = ""
                ended = self._watch(info)
            except (StartFailed, StorageFailed) as error:
                log.warning("%s", error)
                self.trouble = error.message
            except OSError as error:
                # The disk of one broker must not end the stage of all guardians (B4).
                self.trouble = f"{self.directory} cannot be used: {error}. Look after its disk"
                log.warning("broker %d does not start: %s", self.broker_id, self.trouble)
            else:
                if not ended:
                    return
                log.warning("broker %d (pid %d) has ended: reporting it", self.broker_id, info.pid)
                self.restarts += 1
                with contextlib.suppress(ReplicationError):
                    self._report(BrokerDied(broker_id=self.broker_id, incarnation=info.incarnation))
                if self._retiring:
                    return
            delay_s = RESTART_S_MIN if time.monotonic() - began > STEADY_S else min(delay_s * 2, RESTART_S_MAX)
            self._stopping.wait(delay_s)

    def stop(self) -> None:
        """Stop guarding. The broker serves on under its lease."""
        self._stopping.set()
        os.write(self._wake_write, b"x")

    def retire(self) -> None:
        """Report the broker's next end, and leave the restart to a successor."""
        self._retiring = True

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
        if info is None or not probe(self.directory):
            return
        with BrokerWatch(self.directory, info) as watch:
            try:
                if not watch.is_seen and not self._is_ours(info):
                    raise NotReady(f"it does not answer at {info.host}:{info.port}")
                epoch, attempt = self._lease.controller_epoch, self._lease.attempt
                self._call(info, SHUTDOWN, Shutdown(controller_epoch=epoch, attempt=attempt, with_all=True))
                timeout_s += FLUSH_TIMEOUT_S
            except StaleLease as error:
                log.warning("broker %d is not stopped: %s", self.broker_id, error)
                return
            except ReplicationError as error:
                log.warning("broker %d cannot be asked to stop: %s", self.broker_id, error)
                if not self._may_signal(watch):
                    return
                watch.signal(signal.SIGTERM)
                timeout_s += self._settings.controlled_shutdown_timeout_ms / 1000
            if not watch.ended_within(timeout_s) and self._may_signal(watch):
                log.warning("broker %d did not stop within %s s: killed", self.broker_id, timeout_s)
                watch.signal(signal.SIGKILL)
                watch.ended_within(timeout_s)
        self._reap()

    def _may_signal(self, watch: BrokerWatch) -> bool:
        """Whether this guardian holds the lease, which a signal needs as any order does. A broker that hangs cannot be
        asked, but it has written down who holds its lease."""
        if not watch.is_seen:
            log.error(
                "broker %d is in another PID namespace, or its broker.json is of a life before this one: end it by "
                "hand, if it does not stop",
                self.broker_id,
            )
            return False
        try:
            held = holder_in(self.directory)
        except (CorruptState, OSError) as error:
            log.error("broker %d is left alone, nobody can say who holds it: %s. End it by hand", self.broker_id, error)
            return False
        if held > self._lease:
            log.warning(
                "broker %d is left alone: epoch %d, attempt %d has taken over",
                self.broker_id,
                held.controller_epoch,
                held.attempt,
            )
            return False
        return True

    def _watch(self, info: BrokerFile) -> bool:
        """Whether the broker has ended; else this guardian is to stop."""
        apart_s = renew_s(self._settings.broker_lease_ms, RENEW_S_MAX)
        with BrokerWatch(self.directory, info) as watch:
            while not watch.ended_within(apart_s, self._wake_read):
                if self._stopping.is_set():
                    return False
                self._renew(info)
        self._reap()
        return True

    def _renew(self, info: BrokerFile) -> None:
        try:
            self._take_lease(info)
        except StaleLease:
            raise
        except ReplicationError as error:
            log.warning("the lease of broker %d was not renewed: %s", self.broker_id, error)

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

    def _adopt(self) -> BrokerFile | None:
        """The broker that lives, under this lease. None if there is none, or it ended meanwhile."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and probe(self.directory):
            info = read_broker_file(self.directory)
            if info is not None and self._is_ours(info):
                log.info("adopted broker %d, pid %d", self.broker_id, info.pid)
                return info
            time.sleep(POLL_S)
        if probe(self.directory):
            raise StartFailed(
                f"a broker lives in {self.directory} but does not answer: see {LOG_FILE} there, or end it"
            )
        return None

    def _is_ours(self, info: BrokerFile) -> bool:
        try:
            answer = self._take_lease(info)
        except (StaleLease, WrongCluster, AuthenticationFailed):
            raise
        except ReplicationError:
            return False
        return answer.broker_id == self.broker_id

    def _launch(self) -> BrokerFile:
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
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            info = read_broker_file(self.directory)
            # `before` is the file of an earlier life: in a container its pid may well be reused.
            if info is not None and info.pid == self._child.pid and info != before:
                log.info("started broker %d, pid %d", self.broker_id, info.pid)
                return info
            if self._child.poll() is not None:
                return self._explain_end(self._child.returncode)
            time.sleep(POLL_S)
        self._child.kill()  # else it could come up later, with no guardian
        self._child.wait()
        raise StartFailed(f"broker {self.broker_id} did not serve within {START_TIMEOUT_S} s: {self._last_words()}")

    def _explain_end(self, code: int) -> BrokerFile:
        """Raise the reason why the broker ended instead of serving, or adopt the one that serves in its place."""
        if code == TAKEN_OVER:
            raise StaleLease(self._last_words())
        found = self._adopt() if code == IN_USE else None
        if found is None:
            raise StartFailed(f"broker {self.broker_id} did not start (exit {code}): {self._last_words()}")
        return found

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
