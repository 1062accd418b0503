"""A cluster without Spark: ZooKeeper, brokers and a controller, each its own process, guarded by threads of this one.

Everything is below one directory: zookeeper/, controller/, logs/broker-<id>/, mirror/. A second start in this directory
adopts the processes that live. This process may end without `stop`: brokers serve on until their lease runs out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from spark_replication.client.asking.admin import Admin
from spark_replication.client.finding.settings_file import overrides_of
from spark_replication.config import Settings, settings_from
from spark_replication.core.guardianship import GuardianDuty, Sight, assign
from spark_replication.core.settings_in_force import GivenSettings
from spark_replication.engine.guarding.leases import Lease
from spark_replication.errors import (
    InvalidConfig,
    InvalidRequest,
    NotReady,
    ReplicationError,
    RequestTimedOut,
    StartFailed,
)
from spark_replication.live.guarding.attempts import next_attempt
from spark_replication.live.guarding.broker_file import read_broker_file, serves
from spark_replication.live.guarding.guardian import (
    DIRECTORY,
    Assignment,
    Guardian,
    found_directories,
)
from spark_replication.live.own_secrets import with_own_secrets
from spark_replication.messages.actions import BROKER_DIED, METADATA
from spark_replication.messages.descriptions import GetMetadata, Metadata
from spark_replication.messages.guarding import BrokerDied
from spark_replication.mirror.delta.paths import path_of
from spark_replication.model import BrokerId, ControllerInfo
from spark_replication.page.served import is_told, read_url
from spark_replication.process.extras import require_server
from spark_replication.process.files import shared_directory
from spark_replication.process.processes import KILL_WAIT_S, LockedProcess, last_lines, wait_ended
from spark_replication.tables.places import with_table_path
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import Security, read_security
from spark_replication.view.health import (
    problems,
    without_what_it_outlives,
    without_what_waits_for_people,
)
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.certificates import ZOOKEEPER
from spark_replication.zookeeper_server.keeper import Keeper
from spark_replication.zookeeper_server.layout import check_servers

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
POLL_S = 0.05
REPORT_TIMEOUT_MS = 1_000
GUARDIAN_TIMEOUT_S = 180.0  # covers the search for a live broker, the start of one, and its controlled stop
CONTROLLER_RESTART_S = 0.2
PAGE_WAIT_S = 10.0  # the page takes a second to start

log = logging.getLogger(__name__)


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: BrokerId
    host: str
    port: int
    pid: int
    epoch: int
    log_dir: str


class LocalCluster:
    """A cluster on this host. Make one with `start`. As a context manager, it stops everything when it is left."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        security: Security,
        *,
        zookeepers: int,
        temporary: bool,
        origins: Mapping[str, str] = {},
    ) -> None:
        self.directory = directory
        self.security = security
        self._settings = with_table_path(settings, directory)
        self._origins = dict(origins)
        self._temporary = temporary
        self._logs = directory / "logs"
        self._controller = LockedProcess(directory / "controller")
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._guardians: dict[BrokerId, Guardian] = {}
        self._zookeepers = zookeepers
        self._zookeeper: Keeper | None = None
        self._store: BrokerStore | None = None
        self._store_lock = threading.Lock()
        self._admin: Admin | None = None

    @classmethod
    def start(
        cls,
        brokers: int = 3,
        directory: str | Path | None = None,
        zookeepers: int = 1,
        config: Mapping[str, Any] | GivenSettings | None = None,
    ) -> LocalCluster:
        """Start a cluster, and return it once it is healthy. With `directory=None` it has a temporary directory, which
        `stop` removes. `zookeepers` is 1 or 3, and the same as when the directory was made.
        `config` is settings by name, or those that client.finding.settings_file has read, with where each comes from.
        """
        require_server("a cluster")
        if brokers < 1:
            raise InvalidRequest(f"{brokers} brokers: a cluster has at least 1")
        found = config if isinstance(config, GivenSettings) else GivenSettings(settings_from(config or {}))
        settings = found.settings
        if settings.zookeeper_connect:
            raise InvalidConfig(
                "zookeeper.connect names a ZooKeeper, and a cluster without Spark has one of its own: leave it out, or "
                "start the cluster on Spark"
            )
        read_security(settings)
        # Checked here, since a failure from here on stops the processes that live in the directory.
        check_servers(None if directory is None else Path(directory).resolve() / ZOOKEEPER, zookeepers)
        path = Path(tempfile.mkdtemp(prefix="spark_replication-")) if directory is None else Path(directory).resolve()
        shared_directory(path)
        settings = with_own_secrets(settings, path)
        cluster = cls(
            path,
            settings,
            read_security(settings),
            zookeepers=zookeepers,
            temporary=directory is None,
            origins=found.origins,
        )
        try:
            cluster._start(brokers)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _start(self, brokers: int) -> None:
        self._logs.mkdir(exist_ok=True)
        zookeeper = self._start_zookeeper()
        self._start_controller()
        store = self._store = BrokerStore(self._connect)
        info = store.wait_for_cluster(START_TIMEOUT_S)
        self.security = self.security.of_cluster(lambda: info.cluster_id)
        controller = self._wait_for_controller()
        lease = Lease(controller.epoch, next_attempt(self.directory))
        found = found_directories(self._logs, info.cluster_id)
        wanted = max(brokers, len(found))
        ids = [directory.broker_id for directory in found]
        assigned = assign(dict.fromkeys(range(wanted), Sight(HOST, found)), known=ids, wanted=wanted)
        assignment = Assignment(
            log_directory=str(self._logs),
            cluster_id=info.cluster_id,
            zookeeper=zookeeper.address,
            host=HOST,
            overrides=dict(overrides_of(self._settings)),
            origins=self._origins,
        )
        for taken in assigned.values():
            broker_id = store.allocate_broker_id() if isinstance(taken, GuardianDuty) else taken
            self._guardians[broker_id] = Guardian(
                broker_id,
                assignment,
                lease,
                settings=self._settings,
                security=self.security,
                report=self._report,
            )
        self._each_guardian(Guardian.start)
        for broker_id, guardian in self._guardians.items():
            self._thread(f"guardian-{broker_id}", guardian.guard)
        self._thread("controller-guardian", self._guard_controller)
        self._admin = Admin(self.zookeeper, security=self.security)
        self._wait_healthy(START_TIMEOUT_S, without_what_it_outlives)

    @property
    def _unused_s(self) -> float:
        """After this long without a user, detached processes end, as brokers do."""
        return self._settings.broker_lease_ms / 1_000

    def _start_zookeeper(self) -> Keeper:
        self._zookeeper = Keeper.start(
            self.directory / ZOOKEEPER,
            START_TIMEOUT_S,
            self._zookeepers,
            unused_s=self._unused_s,
            login=self.security.zookeeper,
        )
        return self._zookeeper

    def _connect(self) -> Session:
        assert self._zookeeper is not None
        return Session.connect(
            self._zookeeper.address,
            self._settings.zookeeper_chroot,
            session_timeout_ms=self._settings.zookeeper_session_ms,
            request_timeout_ms=self._settings.request_timeout_ms,
            login=self.security.zookeeper,
        )

    def _thread(self, name: str, run: Callable[[], None]) -> None:
        def logged() -> None:
            try:
                run()
            except ReplicationError as error:
                log.warning("%s: %s", name, error)

        thread = threading.Thread(target=logged, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _each_guardian(self, act: Callable[[Guardian], object]) -> None:
        """Call `act` for all guardians at the same time, since each waits for a process. Raises the first error."""
        errors: list[ReplicationError] = []

        def one(guardian: Guardian) -> None:
            try:
                act(guardian)
            except ReplicationError as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(guardian,)) for guardian in self._guardians.values()]
        for thread in threads:
            thread.start()
        if not _ended(threads):
            errors.append(StartFailed(f"brokers have neither started nor stopped within {GUARDIAN_TIMEOUT_S:.0f} s"))
        if errors:
            raise errors[0]

    # The controller's process

    def _start_controller(self) -> None:
        assert self._zookeeper is not None
        with self._controller.locked() as lock:
            if lock is not None:
                self._controller.start(
                    (
                        sys.executable,
                        "-m",
                        "spark_replication.live.controller.process",
                        f"--directory={self._controller.directory}",
                        f"--zookeeper={self._zookeeper.address}",
                        f"--host={HOST}",
                        f"--mirror={self.mirror_path}",
                        f"--settings={json.dumps(overrides_of(self._settings))}",
                        f"--origins={json.dumps(self._origins)}",
                        f"--needed-by={self._zookeeper.directory}",
                        f"--unused-s={self._unused_s}",
                    ),
                    lock,
                )

    def _guard_controller(self) -> None:
        while not self._stopping.wait(CONTROLLER_RESTART_S):
            if not self._controller.alive():
                log.warning("the controller has ended: starting it again")
                self._start_controller()

    def _found_controller(self) -> ControllerInfo | None:
        """Read /controller, in a new session if the last one has expired: this process may have been stopped for longer
        than the session's timeout."""
        with self._store_lock:
            if self._store is None or self._store.session_lost:
                self._store = BrokerStore(self._connect)
            return self._store.controller()

    def _wait_for_controller(self) -> ControllerInfo:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            found = self._found_controller()
            if found is not None:
                return found
            if not self._controller.alive():
                raise StartFailed(f"the controller ended at its start: {last_lines(self._controller.log_path)}")
            time.sleep(POLL_S)
        raise StartFailed(f"no controller within {START_TIMEOUT_S} s: see {self._controller.log_path}")

    def _report(self, died: BrokerDied) -> None:
        controller = self._found_controller()
        if controller is not None:
            with self.security.client(controller.address) as client:
                call(client, BROKER_DIED, died, REPORT_TIMEOUT_MS)

    # What users ask

    def __repr__(self) -> str:
        where = "not started" if self._zookeeper is None else self.zookeeper
        return f"LocalCluster({len(self._guardians)} brokers, {where}, in {self.directory})"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{info.host}:{info.port}" for info in self.brokers.values())

    @property
    def zookeeper(self) -> str:
        """A bootstrap that outlives every broker."""
        assert self._zookeeper is not None
        return f"zk://{self._zookeeper.address}{self._settings.zookeeper_chroot}"

    @property
    def mirror_path(self) -> str:
        """Where the Delta tables are."""
        return path_of(self._settings, self.directory)

    @property
    def admin(self) -> Admin:
        assert self._admin is not None
        return self._admin

    @property
    def brokers(self) -> dict[BrokerId, BrokerInfo]:
        found = {}
        for broker_id, guardian in sorted(self._guardians.items()):
            file = read_broker_file(guardian.directory)
            if file is not None:
                found[broker_id] = BrokerInfo(
                    id=broker_id,
                    host=file.host,
                    port=file.port,
                    pid=file.pid,
                    epoch=file.epoch,
                    log_dir=str(self._logs / DIRECTORY.format(broker_id)),
                )
        return found

    @property
    def page(self) -> str | None:
        """What to open to see the page that the controller's process serves, once it is known. None if there is none.
        With certificates and no tokens it is a link that lets one browser in; after that this is the next link."""
        directory, deadline_s = self._controller.directory, time.monotonic() + PAGE_WAIT_S
        while (pid := self._controller.pid()) is not None and time.monotonic() < deadline_s:
            if is_told(directory, pid):
                return read_url(directory)
            time.sleep(POLL_S)
        return None

    @property
    def controller_pid(self) -> int | None:
        return self._controller.pid()

    @property
    def zookeeper_pids(self) -> list[int]:
        """The pids of the live servers."""
        return [] if self._zookeeper is None else self._zookeeper.pids

    def kill_broker(self, broker_id: BrokerId) -> None:
        """Send SIGKILL to a broker. Its guardian reports the death as always, but only `restart_broker` restarts it."""
        self._guardians[broker_id].retire()
        os.kill(self.brokers[broker_id].pid, signal.SIGKILL)

    def restart_broker(self, broker_id: BrokerId) -> None:
        """Restart a broker that was killed, and guard it again."""
        guardian = self._guardians[broker_id] = self._guardians[broker_id].successor()
        guardian.start()
        self._thread(f"guardian-{broker_id}", guardian.guard)

    def kill_zookeeper(self) -> None:
        """Send SIGKILL to all servers of ZooKeeper. Of this cluster, only `restart_zookeeper` restarts them."""
        assert self._zookeeper is not None
        self._zookeeper.leave()
        ends = [os.pidfd_open(pid) for pid in self._zookeeper.pids]
        for process in ends:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        for process in ends:
            wait_ended(process, KILL_WAIT_S)
            os.close(process)

    def restart_zookeeper(self) -> None:
        """Restart the servers that were killed, at the same ports, and keep them alive."""
        if self._zookeeper is not None:
            self._zookeeper.leave()
        self._start_zookeeper()

    def problems(self) -> tuple[str, ...]:
        """What keeps the cluster from being healthy, or soon will, such as a nearly full disk of ZooKeeper: the worst
        first."""
        kept = [] if self._zookeeper is None else self._zookeeper.problems()
        return (*kept, *self._health())

    def wait_healthy(self, timeout_s: float = 60) -> None:
        """Wait until every broker is registered, every partition has a leader, every replica is in sync, and all state
        in ZooKeeper and all records on disks are readable. What is past, and waits for people to know of it, is not
        waited for. After the timeout, raises RequestTimedOut, which names what is not."""
        self._wait_healthy(timeout_s, without_what_waits_for_people)

    def _wait_healthy(self, timeout_s: float, regarded: Callable[[Metadata], Metadata]) -> None:
        deadline = time.monotonic() + timeout_s
        reasons = ["nothing was asked yet"]
        while time.monotonic() < deadline:
            reasons = self._health(regarded)
            if not reasons:
                return
            time.sleep(POLL_S)
        raise RequestTimedOut(f"the cluster is not healthy after {timeout_s} s: {'; '.join(reasons[:5])}")

    def _health(self, regarded: Callable[[Metadata], Metadata] = lambda view: view) -> list[str]:
        try:
            view = self._controllers_view()
        except ReplicationError as error:
            return [str(error)]
        return [*self._ended(view.brokers), *map(str, problems(regarded(view), frozenset(self._guardians)))]

    def _ended(self, registered: Collection[BrokerId]) -> list[str]:
        """The brokers that have ended and are registered still: the controller has yet to learn of their end."""
        return [
            f"broker {broker} has ended, and is registered still"
            for broker, guardian in sorted(self._guardians.items())
            if broker in registered and not serves(guardian.directory)
        ]

    def _controllers_view(self) -> Metadata:
        controller = self._found_controller()
        if controller is None:
            raise NotReady("there is no controller")
        with self.security.client(controller.address) as client:
            return call(client, METADATA, GetMetadata(), REPORT_TIMEOUT_MS)

    # The end

    def stop(self) -> None:
        """Stop everything in a controlled way. What was stored stays, unless the directory is temporary. ZooKeeper
        stays, too, while others use it."""
        self._stopping.set()
        if self._admin is not None:
            self._admin.close()
        for guardian in self._guardians.values():
            guardian.stop()
        if not _ended(self._threads):  # waits also for a guardian that is just restarting its broker
            log.warning("guardians are left behind: they have not ended in %s s", GUARDIAN_TIMEOUT_S)
        with contextlib.suppress(ReplicationError):
            self._each_guardian(Guardian.shut_down)
        self._controller.stop(START_TIMEOUT_S)
        if self._store is not None:
            self._store.close()
        is_ended = self._zookeeper is None or self._zookeeper.stop()
        if self._temporary and is_ended:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _ended(threads: Sequence[threading.Thread]) -> bool:
    deadline = time.monotonic() + GUARDIAN_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
