"""The body of each barrier task: find out which broker is ours, guard it, and follow the driver's orders.

The task lives in an executor's Python worker. Its broker does not: it outlives task, executor and driver.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from spark_replication.config import Settings, settings_from
from spark_replication.core.guardianship import GuardianDuty, Sight, assign, check_reach
from spark_replication.decoding import from_json
from spark_replication.engine.guarding.leases import Lease
from spark_replication.errors import ReplicationError
from spark_replication.live.guarding.broker_file import read_broker_file
from spark_replication.live.guarding.guardian import Assignment, Guardian, found_directories, guardian_log
from spark_replication.live.guarding.lease_keeper import LeaseKeeper
from spark_replication.messages.actions import BROKER_DIED, GUARDING
from spark_replication.messages.guarding import BrokerDied, Guarding, Order, Serving
from spark_replication.model import BrokerId
from spark_replication.process.logs import logged_in
from spark_replication.process.loopback import is_loopback
from spark_replication.storage.directory.broker_directory import boot_id
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import Security, read_security
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

REPORT_INTERVAL_S = 0.5
REPORT_TIMEOUT_MS = 2_000
FINISH_S = 10.0  # for a report that is under way
LOOPBACK = "127.0.0.1"
NETWORK_NAMESPACE = Path("/proc/self/ns/net")

log = logging.getLogger(__name__)


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """What every guardian of one submission needs to know."""

    #: The same for all guardians, except that each one puts in its own host.
    assignment: Assignment
    controller_epoch: int
    #: The address at which the controller takes reports.
    driver: str
    #: The driver's `loopback_mark`.
    loopback: str
    submission: int = 0
    #: The brokers that are registered, or assigned anything.
    known: tuple[BrokerId, ...] = ()
    #: How many brokers there are to be.
    wanted: int = 1


def loopback_mark() -> str:
    """A mark of this kernel and network namespace: processes with equal marks reach each other by 127.0.0.1."""
    return f"{boot_id()} {NETWORK_NAMESPACE.readlink()}"


def guard(posting: Posting, rows: Iterable[int]) -> Iterator[int]:
    """The body of a barrier task. It ends when the driver orders so, or with an error that ends the stage."""
    from pyspark import BarrierTaskContext

    (guardian_number,) = rows
    context = BarrierTaskContext.get()
    with logged_in(guardian_log(Path(posting.assignment.log_directory), guardian_number), pid=os.getpid()):
        _guard(posting, guardian_number, context)
    yield guardian_number


def _guard(posting: Posting, guardian_number: int, context: BarrierTaskContext) -> None:
    settings = settings_from(posting.assignment.overrides)
    cluster_id = posting.assignment.cluster_id
    # Read from this host's files: nothing secret travels with a task.
    security = read_security(settings).of_cluster(lambda: cluster_id)
    found = found_directories(Path(posting.assignment.log_directory), cluster_id)
    sight = Sight(host=socket.gethostname(), directories=found, loopback=loopback_mark())
    sight = msgspec.structs.replace(sight, attempt=context.taskAttemptId())
    gathered = context.allGather(msgspec.json.encode(sight).decode())
    sights = {number: from_json(text, Sight) for number, text in enumerate(gathered)}
    check_reach(
        (sight.loopback for sight in sights.values()),
        posting.loopback,
        may_leave_loopback=security.may_leave_loopback,
        zookeeper_embedded=not settings.zookeeper_connect,
    )
    number = context.partitionId()
    duty = assign(sights, known=posting.known, wanted=posting.wanted)[number]
    report = partial(_report_death, posting.driver, security)
    keeper = LeaseKeeper(
        Lease(posting.controller_epoch, min(each.attempt for each in sights.values())),
        settings.broker_lease_ms,
        security=security,
        report=report,
    )
    guardian = None
    if duty is GuardianDuty.IDLE:
        log.warning("no directory of brokers %s is on this host: its guardian idles", list(posting.known))
    else:
        host = host_to_serve(_executors_host(context.getTaskInfos()[number].address), security)
        guardian = Guardian(
            _new_id(posting, settings, security) if isinstance(duty, GuardianDuty) else duty,
            msgspec.structs.replace(posting.assignment, host=host),
            Lease(posting.controller_epoch, context.taskAttemptId()),
            settings=settings,
            security=security,
            report=report,
        )
        log.info(
            "broker %d is kept in %s, by epoch %d", guardian.broker_id, guardian.directory, posting.controller_epoch
        )
    here = tuple(sorted({each.broker_id for each in found}))
    orders = _Orders(posting, guardian_number, guardian, keeper, here, security)
    if guardian is not None:
        guardian.guard()
    orders.finish()


def host_to_serve(known_by: str, security: Security) -> str:
    """The host by which Spark's processes know this one, if clients must prove who they are, and may do so there; else
    loopback."""
    may_be_heard = security.may_leave_loopback or (security.knows_clients and is_loopback(known_by))
    return known_by if may_be_heard else LOOPBACK


def _executors_host(address: str) -> str:
    """The address that the administrator told Spark to bind on this host, else the one of the executor as the driver
    sees it."""
    return os.environ.get("SPARK_LOCAL_IP") or address.rpartition(":")[0]


def _new_id(posting: Posting, settings: Settings, security: Security) -> BrokerId:
    store = BrokerStore(
        lambda: Session.connect(
            posting.assignment.zookeeper,
            settings.zookeeper_chroot,
            session_timeout_ms=settings.zookeeper_session_ms,
            request_timeout_ms=settings.request_timeout_ms,
            login=security.zookeeper,
        )
    )
    try:
        return store.allocate_broker_id(posting.controller_epoch)
    finally:
        store.close()


def _report_death(driver: str, security: Security, died: BrokerDied) -> None:
    with security.client(driver) as client:
        call(client, BROKER_DIED, died, REPORT_TIMEOUT_MS)


class _Orders:
    """Reports whom this task guards, and takes the driver's order. A driver that does not answer has given none."""

    def __init__(
        self,
        posting: Posting,
        number: int,
        guardian: Guardian | None,
        keeper: LeaseKeeper,
        found: tuple[BrokerId, ...],
        security: Security,
    ) -> None:
        self._posting = posting
        self._number = number
        #: None if this task idles.
        self._guardian = guardian
        self._keeper = keeper
        #: The brokers whose directories are here.
        self._found = found
        self._security = security
        self._order: Order = "guard"
        self._thread = threading.Thread(target=self._ask, name="guardian-orders", daemon=True)
        self._ended = threading.Event()
        self._thread.start()

    def finish(self) -> None:
        """Carry out what the order asks beyond leaving: after `guard` has returned, or, if this task idles, once it is
        to leave."""
        if self._guardian is not None:
            self._ended.set()
        self._ended.wait()
        self._thread.join(FINISH_S)
        self._keeper.stop()
        if self._order == "shut_down" and self._guardian is not None:
            self._guardian.shut_down()

    def _ask(self) -> None:
        with self._security.client(self._posting.driver) as client:
            while True:
                try:
                    answer = call(client, GUARDING, self._guarding(), REPORT_TIMEOUT_MS)
                    self._order = answer.order
                    self._keeper.keep(answer.keep)
                except ReplicationError as error:
                    log.info("the driver does not answer: %s", error)
                if self._order != "guard":
                    if self._guardian is not None:
                        self._guardian.stop()
                    self._ended.set()
                if self._ended.wait(REPORT_INTERVAL_S):
                    return

    def _guarding(self) -> Guarding:
        guardian = self._guardian
        return Guarding(
            guardian=self._number,
            controller_epoch=self._posting.controller_epoch,
            submission=self._posting.submission,
            broker_id=None if guardian is None else guardian.broker_id,
            found=self._found,
            serving=None if guardian is None else _serving(guardian.directory),
            log_dir="" if guardian is None else str(guardian.directory),
            adopted=guardian is not None and guardian.adopted,
            restarts=0 if guardian is None else guardian.restarts,
            trouble="" if guardian is None else guardian.trouble,
        )


def _serving(directory: Path) -> Serving | None:
    """Where the broker serves, by its file. None, too, while its disk refuses: the guardian's report of that trouble
    must still be sent."""
    try:
        file = read_broker_file(directory)
    except OSError as error:
        log.warning("%s cannot be read: %s", directory, error)
        return None
    if file is None:
        return None
    return Serving(broker_epoch=file.epoch, host=file.host, port=file.port, pid=file.pid)
