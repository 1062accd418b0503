"""A cluster on Spark: ZooKeeper if none is given, the controller and the mirror on the driver, guardians on executors.

`start` takes over what lives already: brokers that serve headless are adopted, and the controller epoch rises. Leaving
without `stop` leaves the brokers serving until their lease runs out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from spark_replication.client.admin import Admin
from spark_replication.client.settings_file import read_settings
from spark_replication.config import Settings
from spark_replication.core.controller import health
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.guardianship import Patience, missing, shortages
from spark_replication.errors import (
    InvalidConfig,
    InvalidRequest,
    ReplicationError,
    RequestTimedOut,
    StartGivenUp,
    WrongCluster,
)
from spark_replication.live.controller.host import Driver
from spark_replication.live.guarding.guardian import DIRECTORY, Assignment, overrides_of
from spark_replication.live.local_cluster import BrokerInfo
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.envelope import Done
from spark_replication.messages.guarding import Guarding, Order, Shutdown
from spark_replication.mirror.feed import MirrorThread
from spark_replication.model import BrokerId, Value, decode, encode
from spark_replication.process.clock import now_ms
from spark_replication.spark.barrier_jobs import BarrierJobs
from spark_replication.spark.fleet import Fleet
from spark_replication.spark.guardian_task import LOOPBACK, Posting, host_to_serve, loopback_mark
from spark_replication.storage.broker_directory import read_identity
from spark_replication.storage.state_files import read_file, replace_file
from spark_replication.transport.actions import call
from spark_replication.transport.security import read_security
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_S = 120.0  # without any progress
ZOOKEEPER_TIMEOUT_S = 60.0  # also for a port that another process has
STANDING_BY = "another driver commands: this one stands by"
SLOTS_TIMEOUT_S = 30.0  # a start goes on with fewer slots than brokers once no more have come for so long
STOP_TIMEOUT_S = 30.0
SHUTDOWN_TIMEOUT_MS = 2_000
POLL_S = 0.05

log = logging.getLogger(__name__)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the live table shows: as the controller, the fleet and the mirror see it at one moment."""

    controller_epoch: int | None
    problems: tuple[str, ...]
    guardians: dict[BrokerId, Guarding]
    silent_guardians: tuple[BrokerId, ...]
    submissions: int
    last_failure: str
    metadata: Metadata | None
    mirror_pending: int
    mirror_lag_ms: int


CLUSTER_FILE = "cluster.json"


class ClusterFile(Value, frozen=True, kw_only=True):
    """<data.dir>/cluster.json: how to reach a cluster that was healthy when this was written. active_since_ms: when its
    driver had become the controller."""

    bootstrap: str
    zookeeper: str
    controller_epoch: int
    driver_pid: int
    active_since_ms: int = 0


def read_cluster_file(data_directory: Path) -> ClusterFile | None:
    path = data_directory / CLUSTER_FILE
    data = read_file(path)
    return None if data is None else decode(data, ClusterFile, str(path))


def make_data_directory(settings: Settings) -> Path:
    path = Path(settings.data_dir).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise InvalidConfig(
            f"data.dir {path} cannot be used: {error.strerror}. Name a directory that this user may write"
        ) from error


class SparkCluster:
    """Use `start`. A context manager: leaving it stops everything."""

    def __init__(
        self, spark: SparkSession, settings: Settings, brokers: int, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        self.directory = Path(settings.data_dir).resolve()
        self.settings = settings
        self.security = read_security(settings)
        self._spark = spark
        self._brokers = brokers
        self._wanted = wanted
        self._logs = Path(settings.log_dir).resolve() if settings.log_dir else self.directory / "logs"
        self._jobs = BarrierJobs(spark)
        self._fleet = Fleet(self._jobs, brokers)
        self._on_dismissal: Order = "leave"
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._mirror: MirrorThread | None = None
        self._driver: Driver | None = None
        self._admin: Admin | None = None
        self._cluster_id = ""
        self._found_brokers = False

    @classmethod
    def start(
        cls,
        spark: SparkSession,
        config: str | Path | Mapping[str, Any] | Settings | None = None,
        brokers: int = 3,
        *,
        wanted: Callable[[], bool] = lambda: True,
        detach_brokers: bool = False,
    ) -> SparkCluster:
        """Running, with this process as its controller; healthy, unless partitions of a cluster that was there before
        are not. Waits while another driver commands. Where Spark has fewer slots than there are to be brokers, it goes
        on with those; its status says so.

        wanted: asked again and again; once it is False the start ends with StartGivenUp, and everything stops, unless
        detach_brokers says to leave brokers to the next driver. After an error nothing is left of what was started;
        brokers that had served before are left alone.
        """
        if brokers < 1:
            raise InvalidRequest(f"{brokers} brokers: a cluster has at least 1")
        settings = config if isinstance(config, Settings) else read_settings(config)
        cluster = cls(spark, settings, brokers, wanted)
        cluster._jobs.check(brokers)
        try:
            cluster._start()
        except StartGivenUp:
            cluster.end(detach_brokers=detach_brokers)
            raise
        except BaseException:
            cluster.end(detach_brokers=cluster._found_brokers)
            raise
        return cluster

    def _start(self) -> None:
        make_data_directory(self.settings)
        address = self.settings.zookeeper_connect
        if not address:
            self._zookeeper = EmbeddedZooKeeper.start(self.directory / "zookeeper", ZOOKEEPER_TIMEOUT_S)
            address = self._zookeeper.address
        self._look_around(address)
        self._require_wanted()
        self._driver = Driver(
            address,
            name=f"driver {os.getpid()}",
            host=host_to_serve(self._jobs.driver_host, self.security),
            seat=self.directory / "driver",
            settings=self.settings,
            security=self.security,
            mirror_of=self._open_mirror,
            took_over=partial(self._took_over, address),
            stood_down=self._stood_down,
            actions=self._fleet.actions,
        )
        self._driver.start()
        while not self._driver.active:
            self._require_wanted()
            time.sleep(POLL_S)
        controller_epoch = self._driver.wait_active()
        active_since_ms = now_ms()
        self._wait_started()
        self._admin = Admin(self.zookeeper, security=self.security)
        file = ClusterFile(
            bootstrap=self.bootstrap,
            zookeeper=self.zookeeper,
            controller_epoch=controller_epoch,
            driver_pid=os.getpid(),
            active_since_ms=active_since_ms,
        )
        replace_file(self.directory / CLUSTER_FILE, encode(file), durable=False)

    def _look_around(self, address: str) -> None:
        """What cannot work is an error now, not a driver that stands by, or guardians that fail: a ZooKeeper that does
        not answer, brokers of another cluster where ours are to be."""
        with contextlib.closing(BrokerStore(lambda: self._connect(address))) as store:
            info = store.cluster_info()
            self._found_brokers = info is not None and bool(store.read_brokers().brokers)
        for path in sorted(self._logs.glob(DIRECTORY.format("*"))):
            identity = read_identity(path)
            if identity is not None and (info is None or identity.cluster_id != info.cluster_id):
                raise WrongCluster(
                    f"{path} belongs to a broker of cluster {identity.cluster_id}, and the ZooKeeper at {address} has "
                    f"{'none yet' if info is None else f'cluster {info.cluster_id}'}: choose another data.dir or "
                    "log.dir, or that cluster's zookeeper.connect and zk.chroot"
                )

    def _require_wanted(self) -> None:
        if not self._wanted():
            raise StartGivenUp("the start was given up: start again")

    def _wait_started(self) -> None:
        """Until every broker that can be guarded is, and is registered. What partitions wait for is no reason to refuse
        a start: one that takes over may find a reassignment that goes on for hours, or what only a person can mend."""
        patience = Patience(START_TIMEOUT_S, time.monotonic())
        while problems := self._problems_of_brokers():
            self._require_wanted()
            if self._fleet.refusal is not None:
                raise self._fleet.refusal
            seen = self._seen()
            only_short = seen is not None and set(problems) <= set(self._shortages(seen[0]))
            guarding = self._fleet.guarding_now().keys()
            serve = bool(guarding) and guarding <= self.brokers.keys()
            if only_short and serve and self._fleet.slots_unchanged_s() > SLOTS_TIMEOUT_S:
                log.warning("%s", "; ".join(problems))
                return
            if patience.ends(
                brokers=self._brokers, slots=self._fleet.slots, guarding=len(guarding), now_s=time.monotonic()
            ):
                raise _timed_out(f"the start has made no progress for {START_TIMEOUT_S:.0f} s", problems)
            time.sleep(POLL_S)

    def _problems_of_brokers(self) -> list[str]:
        seen = self._seen()
        return [STANDING_BY] if seen is None else self._problems(msgspec.structs.replace(seen[0], topics=()))

    def _connect(self, address: str) -> Session:
        return Session.connect(
            address,
            self.settings.zookeeper_chroot,
            session_timeout_ms=self.settings.zookeeper_session_ms,
            request_timeout_ms=self.settings.request_timeout_ms,
        )

    # On the driver's thread, each time this process becomes the controller, or is it no longer

    def _open_mirror(self, cluster_id: str) -> MirrorThread:
        self._cluster_id = cluster_id
        if self._mirror is not None:
            # Aside: the last rows of an earlier candidacy may wait for Delta, and a take-over does not (M4).
            threading.Thread(target=self._mirror.close, name="mirror-closing", daemon=True).start()
        self._mirror = MirrorThread(self._spark, self.mirror_path, cluster_id, self.settings.mirror_interval_ms)
        return self._mirror

    def _took_over(self, zookeeper: str, controller_epoch: int, address: str) -> None:
        """Perhaps while the start is given up: `_stood_down` comes after it, and dismisses whom it has mustered."""
        assignment = Assignment(
            log_directory=str(self._logs),
            cluster_id=self._cluster_id,
            zookeeper=zookeeper,
            host=LOOPBACK,
            overrides=dict(overrides_of(self.settings)),
        )
        self._fleet.muster(
            Posting(
                assignment=assignment,
                controller_epoch=controller_epoch,
                driver=address,
                loopback=loopback_mark(),
            )
        )

    def _stood_down(self) -> None:
        self._fleet.dismiss(self._on_dismissal)

    def _close_mirror(self) -> None:
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            mirror.close()

    # What users ask

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{info.host}:{info.port}" for info in self.brokers.values())

    @property
    def zookeeper(self) -> str:
        """As a bootstrap that outlives every broker."""
        address = self.settings.zookeeper_connect if self._zookeeper is None else self._zookeeper.address
        return f"zk://{address}{self.settings.zookeeper_chroot}"

    @property
    def mirror_path(self) -> str:
        return self.settings.mirror_path or str(self.directory / "mirror")

    @property
    def mirror(self) -> MirrorThread:
        assert self._mirror is not None, "only the controller mirrors"
        return self._mirror

    @property
    def admin(self) -> Admin:
        assert self._admin is not None
        return self._admin

    @property
    def controller_pid(self) -> int:
        return os.getpid()

    @property
    def zookeeper_pids(self) -> list[int]:
        return [] if self._zookeeper is None else self._zookeeper.pids

    @property
    def brokers(self) -> dict[BrokerId, BrokerInfo]:
        """Whom guardians guard, as of their last word."""
        return {
            broker: BrokerInfo(
                id=broker,
                host=found.serving.host,
                port=found.serving.port,
                pid=found.serving.pid,
                epoch=found.serving.broker_epoch,
                log_dir=found.log_dir,
            )
            for broker, found in self._fleet.guarded.items()
            if found.serving is not None
        }

    def status(self) -> Status:
        seen = self._seen()
        return Status(
            controller_epoch=None if seen is None else seen[1],
            problems=(STANDING_BY,) if seen is None else tuple(self._problems(seen[0])),
            guardians=self._fleet.guarded,
            silent_guardians=tuple(self._fleet.silent()),
            submissions=self._fleet.submissions,
            last_failure=self._fleet.last_failure,
            metadata=None if seen is None else seen[0],
            mirror_pending=0 if self._mirror is None else self._mirror.pending,
            mirror_lag_ms=0 if self._mirror is None else self._mirror.lag_ms(),
        )

    def _seen(self) -> tuple[Metadata, int] | None:
        """By the controller, which is this driver; None: it is not."""
        if self._driver is not None and self._driver.active:
            with contextlib.suppress(ReplicationError):
                return self._driver.ask(_described)
        return None

    def _problems(self, metadata: Metadata) -> list[str]:
        guarded = self._fleet.guarded
        found = self._shortages(metadata) or missing(
            brokers=self._brokers,
            registered=metadata.brokers,
            serving=self.brokers,
            failure=self._fleet.last_failure,
        )
        found.extend(
            f"broker {broker} does not start: {each.trouble}" for broker, each in guarded.items() if each.trouble
        )
        return found + health.problems(metadata, frozenset(guarded))

    def _shortages(self, metadata: Metadata) -> list[str]:
        return shortages(
            brokers=self._brokers,
            slots=self._fleet.slots,
            guarded=self._fleet.guarding_now(),
            registered=metadata.brokers,
        )

    def wait_healthy(self, timeout_s: float = 60) -> None:
        """Every broker is guarded and registered, every partition led, every replica in sync."""
        deadline = time.monotonic() + timeout_s
        while problems := self.status().problems:
            self._require_wanted()
            if time.monotonic() > deadline:
                raise _timed_out(f"the cluster is not healthy after {timeout_s} s", problems)
            time.sleep(POLL_S)

    # The end

    def end(self, *, detach_brokers: bool) -> None:
        if detach_brokers:
            self.leave()
        else:
            self.stop()

    def leave(self) -> None:
        """This driver goes; brokers and ZooKeeper stay for the next, the brokers until their lease runs out."""
        self._end("leave")

    def stop(self) -> None:
        """A controlled stop of everything, if this driver commands. One that stood by only goes: ZooKeeper and brokers
        are another's."""
        self._end("shut_down")
        if self._zookeeper is not None and not self._another_commands(self._zookeeper.address):
            self._zookeeper.stop()

    def _another_commands(self, address: str) -> bool:
        try:
            store = BrokerStore(lambda: self._connect(address))
        except ReplicationError:
            return False  # it does not answer: nobody commands by it
        with contextlib.closing(store):
            return store.controller() is not None

    def _end(self, order: Order) -> None:
        if self._admin is not None:
            self._admin.close()
        driver, self._driver = self._driver, None
        if driver is not None:
            if order == "shut_down":
                self._fleet.dismiss(order)
                self._shut_down_unguarded(driver)
            self._on_dismissal = order
            driver.close()
        self._close_mirror()

    def _shut_down_unguarded(self, driver: Driver) -> None:
        """Brokers whose guardian was gone when it should have stopped them."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        asked: set[str] = set()
        while time.monotonic() < deadline:
            try:
                registered = driver.ask(lambda cluster: dict(cluster.registered))
            except ReplicationError:
                return
            if not registered:
                return
            for found in registered.values():
                if found.address not in asked:
                    asked.add(found.address)
                    with contextlib.suppress(ReplicationError), self.security.client(found.address) as client:
                        call(client, "shutdown", Shutdown(), Done, SHUTDOWN_TIMEOUT_MS)
            time.sleep(POLL_S)

    def __enter__(self) -> SparkCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _described(cluster: ClusterState) -> tuple[Metadata, int]:
    return health.described(cluster, None, None), cluster.controller_epoch


def _timed_out(what: str, problems: Sequence[str]) -> RequestTimedOut:
    return RequestTimedOut(f"{what}: {'; '.join(problems[:5])}")
