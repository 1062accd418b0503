"""A cluster on Spark: ZooKeeper if none is given, the controller and the mirror on the driver, guardians on executors.

`start` takes over what lives already: brokers that serve headless are adopted, and the controller epoch rises. A driver
that ends without `stop` leaves the brokers serving until their lease runs out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from spark_replication.client.asking.admin import Admin
from spark_replication.client.finding.settings_file import given_settings, overrides_of
from spark_replication.config import Settings
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.describing import described
from spark_replication.core.guardianship import Patience, missing, must_step_aside, shortages
from spark_replication.core.settings_in_force import GivenSettings
from spark_replication.engine.guarding.mustering import KnownBrokers
from spark_replication.errors import (
    InvalidRequest,
    NotController,
    ReplicationError,
    RequestTimedOut,
    SparkGone,
    StartGivenUp,
    WrongCluster,
)
from spark_replication.live.controller.host import ControllerHooks, ControllerHost
from spark_replication.live.guarding.guardian import DIRECTORY, Assignment
from spark_replication.live.local_cluster import BrokerInfo
from spark_replication.live.own_secrets import with_own_secrets
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.guarding import Guarding, Order
from spark_replication.mirror.delta.paths import path_of
from spark_replication.mirror.telling.feed import MirrorThread
from spark_replication.model import BrokerId
from spark_replication.page.served import ServedPage, page_action
from spark_replication.process.threads import now_ms
from spark_replication.spark.barrier_jobs import BarrierJobs
from spark_replication.spark.cluster_file import OwnClusterFile, make_data_directory
from spark_replication.spark.fleet import Fleet
from spark_replication.spark.guardian_task import LOOPBACK, Posting, host_to_serve, loopback_mark
from spark_replication.spark.jvm import jvm_errors
from spark_replication.spark.spark_watch import SparkWatch
from spark_replication.spark.stopping import commanded_epoch, shut_down_unguarded, still_commands
from spark_replication.storage.directory.broker_directory import read_identity
from spark_replication.tables.places import with_table_path
from spark_replication.transport.flight.door import Door
from spark_replication.transport.security.security import read_security, require_own_brokers
from spark_replication.view import health
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.login import require_protected
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.certificates import ZOOKEEPER
from spark_replication.zookeeper_server.keeper import Keeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


START_TIMEOUT_S = 120.0  # without any progress
ZOOKEEPER_TIMEOUT_S = 60.0  # also for a port that another process has
STANDING_BY = "another driver commands: this one stands by"
NOT_YET = "this driver does not command yet"
SLOTS_TIMEOUT_S = 30.0  # a start goes on with fewer slots than brokers once their number has not changed for this long
PAGE_WAIT_S = 10.0  # it takes a second to start
POLL_S = 0.05

log = logging.getLogger(__name__)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the live table shows, as the controller, the fleet and the mirror see it at one moment."""

    controller_epoch: int | None
    problems: tuple[str, ...]
    guardians: dict[BrokerId, Guarding]
    silent_guardians: tuple[BrokerId, ...]
    submissions: int
    last_failure: str
    metadata: Metadata | None
    mirror_pending: int
    mirror_lag_ms: int


class SparkCluster:
    """A cluster on Spark, made by `start`. It is a context manager: leaving it stops everything."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        brokers: int,
        wanted: Callable[[], bool] = lambda: True,
        origins: Mapping[str, str] = {},
    ) -> None:
        self.directory = Path(settings.data_dir).resolve()
        self.settings = with_table_path(settings, self.directory)
        self._origins = dict(origins)
        self.security = read_security(settings)
        self._spark = spark
        self._brokers = brokers
        self._wanted = wanted
        self._logs = Path(settings.log_dir).resolve() if settings.log_dir else self.directory / "logs"
        self._jobs = BarrierJobs(spark, settings.security_mode)
        self._fleet = Fleet(self._jobs, brokers, self._known_brokers)
        self._spark_watch = SparkWatch(self._jobs.why_gone, self._spark_is_gone)
        self._on_dismissal: Order = "leave"
        self._file = OwnClusterFile(self.directory)
        self._zookeeper: Keeper | None = None
        self._door: Door | None = None
        self._driver: ControllerHost | None = None
        self._page: ServedPage | None = None
        self._admin: Admin | None = None
        self._found_brokers = False
        self._registering = threading.Thread(target=self._register, name="register", daemon=True)
        self.failure: SparkGone | None = None  # why this driver does not command, and never will again

    @classmethod
    def start(
        cls,
        spark: SparkSession,
        config: str | Path | Mapping[str, Any] | Settings | GivenSettings | None = None,
        brokers: int = 3,
        *,
        wanted: Callable[[], bool] = lambda: True,
        detach_brokers: bool = False,
    ) -> SparkCluster:
        """Start a cluster, with this process as its controller; wait while another driver commands. The cluster is
        healthy then, except for partitions that were there before and are not. If Spark has fewer slots than `brokers`,
        the start goes on with those, and the status says so.

        `wanted` is asked again and again. Once it is False, the start ends with StartGivenUp and everything stops,
        unless `detach_brokers` leaves brokers to the next driver. After any other error nothing is left of what was
        started; brokers that had served before are left alone."""
        if brokers < 1:
            raise InvalidRequest(f"{brokers} brokers: a cluster has at least 1")
        if isinstance(config, Settings):
            config = GivenSettings(config)
        found = config if isinstance(config, GivenSettings) else given_settings(config)
        cluster = cls(spark, found.settings, brokers, wanted, found.origins)
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
        host = host_to_serve(self._jobs.driver_host, self.security)
        self.security.require_may_bind(host)
        # First, since its process starts while this one waits for ZooKeeper.
        self._door = Door(host, overrides_of(self.settings), self.directory)
        address = self.settings.zookeeper_connect
        if address:
            require_protected(self.settings)
            require_own_brokers(self.settings)
        else:
            self.settings = with_own_secrets(self.settings, self.directory)
            self.security = read_security(self.settings)
            self._zookeeper = Keeper.start(
                self.directory / ZOOKEEPER,
                ZOOKEEPER_TIMEOUT_S,
                unused_s=self.settings.broker_lease_ms / 1_000,
                login=self.security.zookeeper,
            )
            address = self._zookeeper.address
        self._look_around(address)
        self._require_wanted()
        self._registering.start()
        self._wait_listening(self._door)
        self._driver = ControllerHost(
            address,
            name=f"driver {os.getpid()}",
            host=self._door,
            seat=self.directory / "driver",
            settings=self.settings,
            origins=self._origins,
            security=self.security,
            mirror_path=self.mirror_path,
            hooks=ControllerHooks(
                partial(self._took_over, address),
                self._stood_down,
                self._fleet.dead_thread,
                lambda seen: [*self._problems_of_zookeeper(), *self._problems(seen)],
            ),
            actions=[*self._fleet.actions, page_action(lambda: self._page)],
        )
        self._driver.start()
        self._spark_watch.start()
        self._wait_active(self._driver)
        self._page = ServedPage(self.zookeeper, self.settings, host=host, directory=self.directory)
        self._wait_started()
        while self._registering.is_alive():
            self._require_wanted()
            self._registering.join(POLL_S)
        self._admin = Admin(self.zookeeper, security=self.security)
        self._file.started(self.zookeeper)

    def _register(self) -> None:
        """Let the session's queries know this cluster. This runs beside the start, which waits for other things."""
        from spark_replication.spark.registering import register_format, security_options
        from spark_replication.spark.session import java_reason

        try:
            register_format(self._spark, {"bootstrap": self.zookeeper, **security_options(self.settings)})
        except jvm_errors() as error:
            if self._wanted():  # else Spark may have ended before this driver: Ctrl-C reaches both
                log.warning("%s: queries of this session must call sr.register themselves", java_reason(error))
        except Exception:
            log.exception("queries of this session must call sr.register(spark, bootstrap=…) themselves")

    def _look_around(self, address: str) -> None:
        """Raise at once what cannot work: a ZooKeeper that does not answer, or brokers of another cluster in our
        directories. Else the driver would stand by for ever, or guardians would fail."""
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

    def _wait_listening(self, door: Door) -> None:
        """Wait until the port is listened at: nobody is told of it before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not door.wait_listening(POLL_S):
            self._require_wanted()
            if time.monotonic() > deadline:
                raise door.why_not()

    def _wait_active(self, driver: ControllerHost) -> None:
        """Wait until this driver commands: for as long as another one does, and ZooKeeper says so."""
        candidate_s = 0.0  # counted by its own waits: its process may have been stopped in between
        while not driver.active:
            self._require_wanted()
            candidate_s = 0.0 if driver.standing_by and not driver.zookeeper_silent_s() else candidate_s + POLL_S
            if candidate_s > START_TIMEOUT_S:
                raise _timed_out(f"no driver commands, nor can this one, after {START_TIMEOUT_S:.0f} s", self._away())
            time.sleep(POLL_S)

    def _require_wanted(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self._wanted():
            raise StartGivenUp("the start was given up: start again")

    def _wait_started(self) -> None:
        """Wait until every broker that can be guarded is guarded and registered. Troubles of partitions do not hold up
        a start: one that takes over may find a reassignment that takes hours, or what only a person can mend."""
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
        if seen is None:
            return self._away()
        return self._problems(msgspec.structs.replace(health.without_what_it_outlives(seen[0]), topics=()))

    def _connect(self, address: str) -> Session:
        return Session.connect(
            address,
            self.settings.zookeeper_chroot,
            session_timeout_ms=self.settings.zookeeper_session_ms,
            request_timeout_ms=self.settings.request_timeout_ms,
            login=self.security.zookeeper,
        )

    # Whoever cannot guard does not command

    def _spark_is_gone(self, reason: str) -> None:
        """Give up the command, on the watch's thread. Brokers serve on: the next driver adopts them."""
        self.failure = SparkGone(f"{reason}: this driver commands no more, and brokers serve on. Start it again")
        log.error("%s", self.failure.message)
        driver = self._driver
        if driver is not None:
            driver.close()

    def _known_brokers(self) -> KnownBrokers:
        """The brokers that need guardians, asked on the fleet's thread. A driver without slots for too long steps
        aside: nobody renews its leases, and another driver may have slots."""
        driver = self._driver
        if driver is None:
            raise NotController("this driver has not begun: ask again")
        unchanged_s, lease_ms = self._fleet.slots_unchanged_s(), self.settings.broker_lease_ms
        if must_step_aside(slots=self._fleet.slots, unchanged_s=unchanged_s, lease_ms=lease_ms):
            log.warning("Spark has had no slots for %.0f s: stepping aside for a driver that has", unchanged_s)
            driver.step_aside()
        return driver.ask(lambda cluster: cluster.needed_brokers(self._brokers))

    # On the driver's thread, each time this process becomes the controller, and each time it ceases to be

    def _took_over(self, zookeeper: str, cluster_id: str, controller_epoch: int, address: str) -> None:
        """Muster the fleet, perhaps while the start is given up: `_stood_down` follows, and dismisses the fleet."""
        self._file.took_over(controller_epoch, now_ms())
        assignment = Assignment(
            log_directory=str(self._logs),
            cluster_id=cluster_id,
            zookeeper=zookeeper,
            host=LOOPBACK,
            overrides=dict(overrides_of(self.settings)),
            origins=self._origins,
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
        self._file.stood_down()
        self._fleet.dismiss(self._on_dismissal)

    # What users ask

    def __repr__(self) -> str:
        where = self.zookeeper if self._zookeeper or self.settings.zookeeper_connect else "not started"
        return f"SparkCluster({self._brokers} brokers, {where}, in {self.directory})"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{info.host}:{info.port}" for info in self.brokers.values())

    @property
    def zookeeper(self) -> str:
        """A bootstrap that outlives every broker."""
        return f"zk://{self._address()}{self.settings.zookeeper_chroot}"

    def _address(self) -> str:
        return self.settings.zookeeper_connect if self._zookeeper is None else self._zookeeper.address

    @property
    def mirror_path(self) -> str:
        return path_of(self.settings, self.directory)

    @property
    def mirror(self) -> MirrorThread:
        mirror = None if self._driver is None else self._driver.mirror
        if mirror is None:
            raise NotController(f"{NOT_YET}, and so writes no tables")
        return mirror

    @property
    def admin(self) -> Admin:
        assert self._admin is not None
        return self._admin

    @property
    def page(self) -> str | None:
        """What to open to see the page of this driver, once it is known; None if it serves none. With certificates and
        no tokens it is a link that lets one browser in; after that this is the next link."""
        return None if self._page is None else self._page.wait_known(PAGE_WAIT_S)

    @property
    def controller_pid(self) -> int:
        return os.getpid()

    @property
    def zookeeper_pids(self) -> list[int]:
        return [] if self._zookeeper is None else self._zookeeper.pids

    @property
    def brokers(self) -> dict[BrokerId, BrokerInfo]:
        """The brokers that guardians guard, by their last reports."""
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
        mirror = None if self._driver is None else self._driver.mirror
        return Status(
            controller_epoch=None if seen is None else seen[1],
            problems=(*self._problems_of_zookeeper(), *self._health(seen)),
            guardians=self._fleet.guarded,
            silent_guardians=tuple(self._fleet.silent()),
            submissions=self._fleet.submissions,
            last_failure=self._fleet.last_failure,
            metadata=None if seen is None else seen[0],
            mirror_pending=0 if mirror is None else mirror.pending,
            mirror_lag_ms=0 if mirror is None else mirror.lag_ms(),
        )

    def _seen(self) -> tuple[Metadata, int] | None:
        """The metadata of the controller, and its epoch; None if this driver is not the controller."""
        if self._driver is not None and self._driver.active:
            with contextlib.suppress(ReplicationError):
                cluster = self._driver.ask(ClusterState.snapshot)
                metadata = described(cluster, None, None)
                return self._driver.with_surroundings(metadata), cluster.controller_epoch
        return None

    def _problems_of_zookeeper(self) -> list[str]:
        return [] if self._zookeeper is None else self._zookeeper.problems()

    def _health(
        self, seen: tuple[Metadata, int] | None, regarded: Callable[[Metadata], Metadata] = lambda seen: seen
    ) -> list[str]:
        return self._away() if seen is None else self._problems(regarded(seen[0]))

    def _away(self) -> list[str]:
        """Why this driver does not command."""
        if self._driver is not None and (silent_s := self._driver.zookeeper_silent_s()):
            return [f"this driver has had no connection to ZooKeeper for {silent_s:.0f} s, and does not command"]
        return [STANDING_BY if self._driver is not None and self._driver.standing_by else NOT_YET]

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
        return [*found, *map(str, health.problems(metadata, frozenset(guarded)))]

    def _shortages(self, metadata: Metadata) -> list[str]:
        known, guarded = self._fleet.known, self._fleet.guarding_now()
        return shortages(
            brokers=self._brokers,
            slots=self._fleet.slots,
            guarded=guarded,
            registered=[broker for broker in metadata.brokers if broker in known or broker in guarded],
            known=known,
            idle=self._fleet.idle(),
        )

    def wait_healthy(self, timeout_s: float = 60) -> None:
        """Wait until every broker is guarded and registered, every partition led, and every replica in sync. A possible
        loss that no person has acknowledged is past, and not waited for."""
        deadline = time.monotonic() + timeout_s
        while problems := self._health(self._seen(), health.without_what_waits_for_people):
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
        """End this driver. Brokers and ZooKeeper stay for the next one, the brokers until their lease runs out."""
        self._end("leave")
        if self._zookeeper is not None:
            self._zookeeper.leave()

    def stop(self) -> None:
        """Stop all in a controlled way, if this driver commands. One that stands by, or whose Spark is gone, ends only
        itself: brokers are another's. An embedded ZooKeeper stays while other drivers use it, or stand by."""
        if self.failure is not None:
            self.leave()
            return
        self._end("shut_down")
        if self._zookeeper is not None:
            self._zookeeper.stop()

    def _end(self, order: Order) -> None:
        if self._admin is not None:
            self._admin.close()
        driver, self._driver = self._driver, None
        self._spark_watch.stop()
        if driver is not None:
            epoch = commanded_epoch(driver) if order == "shut_down" else None
            is_dead = self._zookeeper is not None and not self._zookeeper.pids
            if epoch is not None and still_commands(epoch, partial(self._connect, self._address()), dead=is_dead):
                self._fleet.dismiss(order)
                shut_down_unguarded(driver, epoch)
            elif epoch is not None:
                order = "leave"
            self._on_dismissal = order
            driver.close()
        if self._door is not None:
            self._door.stop()
        self._jobs.close()
        if self._page is not None:
            self._page.stop()

    def __enter__(self) -> SparkCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _timed_out(what: str, problems: Sequence[str]) -> RequestTimedOut:
    return RequestTimedOut(f"{what}: {'; '.join(problems[:5])}")
