"""Keeps a broker's logs readable: scrubs them, mends what is damaged, and tells the controller of the disk (D1).

All of it is done on one thread, which nobody waits for, and which waits for disks and for other brokers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.broker.mending import Copy, mend, sources
from spark_replication.engine.broker.scrub import Scrub
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import BrokerNotAvailable, NotController, ReplicationError
from spark_replication.live.broker.failure_reports import REPEAT_S, RETRY_S, STOP_TIMEOUT_S
from spark_replication.messages.actions import COPY_BATCH, DISK_DAMAGED
from spark_replication.messages.mending import CopyBatch, DamagedReplica, DiskDamage, DiskDamaged
from spark_replication.model import BrokerId, Epoch, ReplicaOf
from spark_replication.ports import DamagedBatch
from spark_replication.storage.format.batches import check_data
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import Security

LOOK_S = 2.0  # whether somebody has met damage, or a disk has refused: 3 ms for 10,000 partitions
STEP_BYTES = 256 << 10
BETWEEN_PASSES_S = 3_600.0
TELL_AGAIN_S = 30.0  # a controller that has just taken over knows of no damage
TOLD_MAX = 1_000  # damaged replicas in a report
LINES_MAX = 5  # of the damage that is found in a replica at one time

NOTHING = DiskDamage(batches=0, mended=0, words="")

#: Tells the controller of all damage, under the epoch of this registration. Raises if the report did not arrive.
Tell = Callable[[Epoch, dict[ReplicaOf, DiskDamage]], None]

log = logging.getLogger(__name__)


class LogUpkeep:
    """Bounded: what it remembers of a replica is as much as engine.replica.damage does."""

    def __init__(
        self,
        loop: BrokerLoop,
        copy: Copy,
        tell: Tell,
        *,
        settings: Settings,
        between_passes_s: float = BETWEEN_PASSES_S,
    ) -> None:
        self._loop = loop
        self._copy = copy
        self._tell = tell
        self._bytes_per_second = settings.log_scrub_bytes_per_second
        self._between_passes_s = between_passes_s
        self._scrub = Scrub(lambda: loop.replicas, check_data)
        self._scrub_at_s = 0.0
        self._look_at_s = time.monotonic() + LOOK_S
        #: What is damaged, with why it could not be mended yet.
        self._known: dict[ReplicaOf, dict[DamagedBatch, str]] = {}
        #: How many batches of each replica were mended in this life, and what was wrong with the last.
        self._mended: dict[ReplicaOf, DiskDamage] = {}
        #: The replicas whose disk refused something a moment ago.
        self._refused: set[ReplicaOf] = set()
        self._mend_at_s = 0.0
        #: What the controller knows, under which registration.
        self._told: tuple[Epoch, dict[ReplicaOf, DiskDamage]] = (-1, {})
        self._tell_at_s = 0.0
        #: The last report did not arrive.
        self._owes_report = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        self._scrub.begin()
        self._scrub_at_s = time.monotonic() + LOOK_S
        while not self._stopped.wait(self._rest_s()):
            self._turn()

    def _turn(self) -> None:
        """Do what is due. Steps of the scrub come often, and a look costs too much for that."""
        if time.monotonic() >= self._look_at_s:
            self._look()
            self._look_at_s = time.monotonic() + LOOK_S
        if self._bytes_per_second and time.monotonic() >= self._scrub_at_s:
            self._step()

    def _rest_s(self) -> float:
        next_s = min(self._look_at_s, self._scrub_at_s) if self._bytes_per_second else self._look_at_s
        return max(0.0, next_s - time.monotonic())

    def _step(self) -> None:
        count = self._scrub.step(min(STEP_BYTES, self._bytes_per_second))
        if count is None:
            self._scrub.begin()
        rest_s = self._between_passes_s if count is None else count / self._bytes_per_second
        self._scrub_at_s = time.monotonic() + rest_s

    def _look(self) -> None:
        """Costs a look at each partition."""
        replicas = self._loop.replicas.copy()
        damaged = {ReplicaOf(name, found.topic_id): found for name, found in replicas.items() if found.damaged}
        refused_before = self._refused
        self._refused = {ReplicaOf(name, found.topic_id) for name, found in replicas.items() if found.disk_refuses}
        if not (damaged or self._known or self._mended or self._refused or refused_before or self._owes_report):
            return
        is_new = self._note(damaged)
        self._report()
        if damaged and (is_new or time.monotonic() >= self._mend_at_s):
            for replica, partition in damaged.items():
                self._mend(replica, partition)
            self._mend_at_s = time.monotonic() + REPEAT_S
            self._note({replica: partition for replica, partition in damaged.items() if partition.damaged})
            self._report()

    def _note(self, damaged: dict[ReplicaOf, Partition]) -> bool:
        """Note and log what is damaged. Returns whether some of it is new."""
        before, self._known = self._known, {}
        is_new = False
        for replica, partition in damaged.items():
            tried = before.get(replica, {})
            self._known[replica] = {batch: tried.get(batch, "") for batch in partition.damaged}
            new = [batch for batch in self._known[replica] if batch not in tried]
            is_new = is_new or bool(new)
            for batch in new[:LINES_MAX]:
                text = "%s is damaged on this disk: %s"
                log.error(text, replica.partition, batch, extra={"partition": replica.partition})
            if len(new) > LINES_MAX:
                log.error("%s is damaged in %d more batches", replica.partition, len(new) - LINES_MAX)
        return is_new

    def _mend(self, replica: ReplicaOf, partition: Partition) -> None:
        about = {"partition": replica.partition}
        for tried in mend(partition, sources(self._loop, replica.partition), self._copy):
            batch = tried.batch
            if tried.source is not None:
                known = self._mended.get(replica, NOTHING)
                self._mended[replica] = replace(known, mended=known.mended + 1, words=str(batch))
                text = "%s: %s has its bytes again, as broker %d has them"
                log.warning(text, replica.partition, batch, tried.source, extra=about)
            elif self._known.get(replica, {}).get(batch) != tried.why:
                self._known.setdefault(replica, {})[batch] = tried.why
                log.error("%s stays damaged: %s; %s", replica.partition, batch, tried.why, extra=about)
            if self._stopped.is_set():
                return

    def _report(self) -> None:
        me, now_s = self._loop.me, time.monotonic()
        if me is None:
            return
        found = dict(self._mended)
        for replica, batches in self._known.items():
            known = found.get(replica, NOTHING)
            found[replica] = replace(known, batches=len(batches), words=str(next(iter(batches))))
        for replica in self._refused:
            found[replica] = replace(found.get(replica, NOTHING), refuses=True)
        found = dict(sorted(found.items(), key=lambda item: not item[1].batches)[:TOLD_MAX])
        if now_s < self._tell_at_s and (self._owes_report or self._told == (me.epoch, found)):
            return
        try:
            self._tell(me.epoch, found)
        except ReplicationError as error:
            if not self._owes_report:
                log.warning("the controller does not know how this disk is, and is told again: %s", error)
            self._owes_report, self._tell_at_s = True, now_s + RETRY_S
        else:
            self._owes_report, self._tell_at_s = False, now_s + TELL_AGAIN_S
            self._told = (me.epoch, found)


class Others:
    """Whom the upkeep of a broker's logs asks, and tells."""

    def __init__(
        self,
        broker: BrokerId,
        loop: BrokerLoop,
        security: Security,
        controller_address: Callable[[], str | None],
        settings: Settings,
    ) -> None:
        self._broker = broker
        self._loop = loop
        self._security = security
        self._controller_address = controller_address
        self._timeout_ms = settings.request_timeout_ms

    def copy(self, broker: BrokerId, wanted: CopyBatch) -> bytes:
        registration = self._loop.brokers.get(broker)
        if registration is None:
            raise BrokerNotAvailable(f"broker {broker} is not registered")
        with self._security.client(registration.address) as client:
            return call(client, COPY_BATCH, wanted, self._timeout_ms).data

    def tell(self, epoch: Epoch, found: dict[ReplicaOf, DiskDamage]) -> None:
        address = self._controller_address()
        if address is None:
            raise NotController("there is none: it is told once there is")
        replicas = tuple(DamagedReplica(replica=replica, damage=damage) for replica, damage in found.items())
        told = DiskDamaged(broker_id=self._broker, broker_epoch=epoch, replicas=replicas)
        with self._security.client(address) as client:
            call(client, DISK_DAMAGED, told, self._timeout_ms)
