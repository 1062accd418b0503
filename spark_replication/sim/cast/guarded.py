"""What guardians guard, reduced to what they see of it: hosts, directories, and brokers' processes with their leases.

A process starts, takes the lock of its directory, serves, registers, and ends by an order, a signal or its lease. It
outlives whoever started it. Its `HeldLease` is the one of production.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from spark_replication.core.controller.cluster import needed
from spark_replication.core.guardianship import FoundDirectory
from spark_replication.engine.guarding.guardian_life import FAILED, IN_USE, STOPPED, TAKEN_OVER
from spark_replication.engine.guarding.leases import HeldLease, Lease
from spark_replication.errors import BrokerNotAvailable, NotReady, ReplicationError, RequestTimedOut, StaleLease
from spark_replication.model import BrokerId, Registration
from spark_replication.sim.judges.guarding import GuardingJudge
from spark_replication.sim.world.world import Process, World

WANTED = 3
LEASE_MS = 60_000
START_MS = (300, 3_000)
STOP_MS = (100, 2_000)
LEASE_LOOK_MS = 1_000
RTT_MS = (1, 30)
SESSION_MS = 6_000
PORTS = 3  # of a host: ports come again
PIDS = 3  # of a namespace: so do pids
ASSIGNED_PROBABILITY = 0.8
NOBODY_YET = Lease(0, -1)


class File(NamedTuple):
    """broker.json."""

    incarnation: str
    pid: int
    namespace: int
    host: str
    port: int


class Directory:
    def __init__(self, host: Host, broker_id: BrokerId) -> None:
        self.host = host
        self.broker_id = broker_id
        #: The process that has the directory's lock.
        self.process: BrokerRun | None = None
        self.file: File | None = None
        #: lease.json.
        self.holder = NOBODY_YET


class Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.directories: dict[BrokerId, Directory] = {}
        self.listening: dict[int, BrokerRun] = {}
        #: No broker can start here before.
        self.refuses_until_ms = 0

    def found(self) -> tuple[FoundDirectory, ...]:
        return tuple(
            FoundDirectory(broker, alive=each.process is not None) for broker, each in sorted(self.directories.items())
        )


class Caller(Process):
    def __init__(self, name: str, place: str) -> None:
        """place: what may be cut off from hosts."""
        super().__init__(name)
        self.place = place


class Brokers:
    """The brokers as ZooKeeper has them."""

    def __init__(self, world: World, hosts: dict[str, Host], judge: GuardingJudge) -> None:
        self.world = world
        self.hosts = hosts
        self.judge = judge
        self.registered: dict[BrokerId, Registration] = {}
        #: Those that hold replicas, and since when.
        self.assigned: dict[BrokerId, int] = {}
        self.last_id = 0
        #: When the last fault was over.
        self.disturbed_until_ms = 0
        #: Pairs of names that cannot reach each other.
        self.cut: set[frozenset[str]] = set()

    def needed(self) -> dict[BrokerId, Registration | None]:
        return needed(sorted(self.assigned), self.registered, WANTED)

    def disturbed(self, for_ms: int) -> None:
        self.disturbed_until_ms = max(self.disturbed_until_ms, self.world.now_ms + for_ms)

    def died(self, broker: BrokerId, incarnation: str) -> None:
        found = self.registered.get(broker)
        if found is not None and found.incarnation == incarnation:
            del self.registered[broker]

    def runs(self) -> list[BrokerRun]:
        """The processes that have a lock."""
        found = [each.process for host in self.hosts.values() for each in host.directories.values()]
        return [each for each in found if each is not None]

    def call(
        self,
        caller: Caller,
        to: tuple[str, int],
        order: Callable[[BrokerRun], Any],
        answered: Callable[[Any], None],
        failed: Callable[[ReplicationError], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Have whoever listens there carry out an order. Each of order and answer takes a while."""
        world, (name, port) = self.world, to
        host = self.hosts[name]

        def fails(error: ReplicationError, after_ms: int) -> None:
            world.after(after_ms, "a call fails", lambda: failed(error), on=caller, about=error.code)

        def arrives() -> None:
            run = host.listening.get(port)
            if run is None:
                fails(BrokerNotAvailable("refused"), 1)
            elif run.stopped_until_ms > world.now_ms:
                fails(RequestTimedOut("no answer"), timeout_ms)
            else:
                try:
                    answer = order(run)
                except ReplicationError as error:
                    fails(error, world.between(*RTT_MS))
                else:
                    world.after(world.between(*RTT_MS), "is answered", lambda: answered(answer), on=caller)

        if frozenset({caller.place, name}) in self.cut:
            fails(RequestTimedOut("unreachable"), timeout_ms)
        else:
            world.after(world.between(*RTT_MS), "an order arrives", arrives, about=name)


class BrokerRun(Process):
    """One life of a broker."""

    def __init__(self, brokers: Brokers, directory: Directory, lease: Lease, namespace: int) -> None:
        self._world = brokers.world
        host = directory.host
        super().__init__(f"b{directory.broker_id}@{host.name}")
        self._brokers = brokers
        self.directory = directory
        self.broker_id = directory.broker_id
        self.pid = 1 + self._world.between(0, PIDS - 1)
        self.namespace = namespace
        self.incarnation = f"{self.name}/{self._world.step}"
        self.exit_code: int | None = None
        #: Called at its end.
        self.watchers: list[Callable[[], None]] = []
        self._port = -1
        self._started_by = lease
        self._held: HeldLease | None = None
        self._stopping = False
        self._after(self._world.between(*START_MS) // 3, "takes its directory", self._take_directory)

    def _after(self, delay_ms: int, what: str, action: Callable[[], None]) -> None:
        self._world.after(delay_ms, what, action, on=self)

    def _take_directory(self) -> None:
        directory, now_ms = self.directory, self._world.now_ms
        if directory.host.refuses_until_ms > now_ms:
            self.ends(FAILED)
        elif directory.process is not None:
            self.ends(IN_USE)
        else:
            held = HeldLease(directory.holder, lease_ms=LEASE_MS, now_ms=now_ms)
            try:
                self._take(held, self._started_by)
            except StaleLease:
                self.ends(TAKEN_OVER)
                return
            directory.process, self._held = self, held
            self._after(LEASE_LOOK_MS, "looks at its lease", self._look_at_lease)
            self._after(self._world.between(*START_MS), "serves", self._serve)

    def _take(self, held: HeldLease, lease: Lease) -> None:
        """Before anything that was ordered is carried out."""
        if held.take(lease):
            self.directory.holder = lease
        self._brokers.judge.carries_out(self.name, lease)

    def _serve(self) -> None:
        host, free = self.directory.host, [port for port in range(PORTS) if port not in self.directory.host.listening]
        self._port = free[self._world.between(0, len(free) - 1)] if free else PORTS + self._world.step
        host.listening[self._port] = self
        self.directory.file = File(self.incarnation, self.pid, self.namespace, host.name, self._port)
        self._register()
        if self._world.chance(ASSIGNED_PROBABILITY):
            self._brokers.assigned.setdefault(self.broker_id, self._world.now_ms)

    def _register(self) -> None:
        host = self.directory.host
        self._brokers.registered[self.broker_id] = Registration(
            host=host.name, port=self._port, replication_port=1, epoch=0, incarnation=self.incarnation
        )

    def _look_at_lease(self) -> None:
        assert self._held is not None, "it has its directory"
        if self._held.left_ms(self._world.now_ms) == 0:
            brokers = self._brokers
            calm_ms = self._world.now_ms - brokers.disturbed_until_ms if self.broker_id in brokers.needed() else 0
            brokers.judge.lease_ran_out(self.incarnation, self.broker_id, LEASE_MS, calm_ms=calm_ms)
            self._world.counts["lease_ran_out"] += 1
            self._begin_stop()
        elif self._port >= 0 and not self._stopping and self.broker_id not in self._brokers.registered:
            self._register()  # it was taken for dead
        self._after(LEASE_LOOK_MS, "looks at its lease", self._look_at_lease)

    # Orders

    def renew(self, lease: Lease) -> BrokerId:
        assert self._held is not None, "it has its directory"
        self._take(self._held, lease)
        self._held.renewed(LEASE_MS, self._world.now_ms)
        if self._port < 0:
            raise NotReady("it has not registered yet")
        return self.broker_id

    def shut_down(self, lease: Lease) -> None:
        assert self._held is not None, "it has its directory"
        self._take(self._held, lease)
        self._begin_stop()

    def terminate(self) -> None:
        self._after(0, "hears a signal", self._begin_stop)

    def _begin_stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._after(self._world.between(*STOP_MS), "has stopped", self._stopped)

    def _stopped(self) -> None:
        self.directory.file = None
        self._brokers.died(self.broker_id, self.incarnation)
        self.ends(STOPPED)

    def ends(self, code: int) -> None:
        """At once, as a process does that is killed. Its session in ZooKeeper expires later."""
        if self.exit_code is not None:
            return
        self.exit_code = code
        self.ended()
        self.directory.host.listening.pop(self._port, None)
        if self.directory.process is self:
            self.directory.process = None
        self._world.after(
            SESSION_MS, "its session expires", lambda: self._brokers.died(self.broker_id, self.incarnation)
        )
        for each in self.watchers.copy():
            each()
