"""Drivers, each with its Spark application and, while it commands, its fleet: two of them, of which one commands.

A driver that was stopped for long, or cut off, takes itself for the one that commands until it looks again. One that
was killed leaves its tasks behind for a while. Spark begins jobs late, loses some, and places guardians as it likes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, TypeVar

from spark_replication.core.claims.campaigning import EPOCH
from spark_replication.core.claims.claim import ClaimRefused, NodeAsRead, Nodes
from spark_replication.core.claims.numbering import SEQUENCE, Numbering
from spark_replication.core.guardianship import Sight, assign, must_step_aside
from spark_replication.engine.guarding.leases import Lease
from spark_replication.engine.guarding.mustering import FleetMemory, KnownBrokers, Mustering, Submission, TaskPlace
from spark_replication.errors import NotController, ReplicationError, RequestTimedOut, StartFailed
from spark_replication.messages.guarding import BrokerDied, Guarding, GuardingAnswer
from spark_replication.model import BrokerId, BrokerSequence, ControllerEpoch
from spark_replication.sim.cast.guarded import LEASE_MS, RTT_MS, SESSION_MS, WANTED, BrokerRun, Brokers, Caller, Host
from spark_replication.sim.cast.guardians import (
    FLUSH_S,
    REPORT_TIMEOUT_MS,
    STOP_S,
    GuardianTask,
)
from spark_replication.sim.judges.guarding import GuardingJudge
from spark_replication.sim.world.world import World

HOSTS, SLOTS_MAX = "abcd", 3
ROOM = 4  # slots for all brokers that a host may have: of one that has fewer, some go unguarded
LEAVE_S = FLUSH_S + STOP_S + 10.0
JOB_MS, LATE_JOB_MS = (200, 2_000), (10_000, 90_000)
TASK_MS = (50, 1_500)
LINGER_MS, LINGER_LONG_MS = (20, 4_000), (10_000, 60_000)
POLL_MS = 500
STEP_ASIDE_MS = 5_000
AS_PREFERRED = 0.7
LONG_LINGER_PROBABILITY = 0.15
LAST_ATTEMPT = (1 << 62) - 1
ORDERS_MS = 500

Answer = TypeVar("Answer")


class Executor(NamedTuple):
    id: str
    host: str
    slots: int
    namespace: int


class Application:
    """Spark, as one driver has it. It is what a Mustering asks."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._world = driver.brokers.world
        self.executors: dict[str, Executor] = {}
        self.going: set[str] = set()
        self.jobs: dict[str, Job] = {}
        #: How the next jobs fare: "late" or "lost".
        self.fates: list[str] = []
        self.attempts = 0

    def add(self, host: str, slots: int) -> None:
        """An executor comes: in containers it has a PID namespace of its own."""
        number = self._world.step
        self.executors[host] = Executor(f"{host}/{number}", host, slots, number if self._driver.in_containers else 0)

    def lose(self, host: str) -> None:
        found = self.executors.pop(host, None)
        for task in self.tasks():
            if found is not None and task.executor == found.id:
                task.ended()
                self._world.after(POLL_MS, "Spark misses a task", partial(self._missed, task))

    def _missed(self, task: GuardianTask) -> None:
        for job in self.jobs.values():
            if task in job.tasks:
                job.ended(task, StartFailed("an executor was lost"))

    def tasks(self) -> list[GuardianTask]:
        return [task for job in self.jobs.values() for task in job.tasks if task.alive]

    def free(self) -> list[Executor]:
        """A slot each."""
        taken = Counter(task.executor for task in self.tasks())
        return [each for each in self.executors.values() for _ in range(each.slots - taken[each.id])]

    # What the fleet asks

    def slots(self) -> int:
        return sum(each.slots for each in self.executors.values())

    def slots_by_host(self) -> dict[str, int]:
        return {host: each.slots for host, each in sorted(self.executors.items())}

    def places_of(self, group: str) -> dict[int, TaskPlace]:
        return {task.number: TaskPlace(task.host.name, task.executor) for task in self.jobs[group].tasks}

    def are_to_go(self, executors: Collection[str]) -> frozenset[str]:
        return frozenset(executors) & self.going

    def has_begun(self, group: str) -> bool:
        return any(task.alive for task in self.jobs[group].tasks)

    def cancel(self, group: str) -> None:
        self.jobs[group].fails(StartFailed("cancelled"))

    def submit(self, mustering: Mustering, submission: Submission) -> None:
        job = self.jobs[submission.group] = Job(self._driver, mustering, submission)
        fate = self.fates.pop() if self.fates else ""
        between = self._world.between
        if fate:  # it was decided a while ago, perhaps
            self._driver.brokers.disturbed(LATE_JOB_MS[1])
        if fate == "lost":
            self._world.after(between(*LATE_JOB_MS), "loses a job", lambda: job.fails(StartFailed("lost")))
        else:
            delay_ms = between(*(LATE_JOB_MS if fate == "late" else JOB_MS))
            self._world.after(delay_ms, "begins a job", job.begin, about=submission.group)


class Job:
    """One submission, as Spark runs it: all of its tasks or none, and as a whole."""

    def __init__(self, driver: Driver, mustering: Mustering, submission: Submission) -> None:
        self._driver = driver
        self._mustering = mustering
        self._submitted = submission
        self._brokers = driver.brokers
        self._world = driver.brokers.world
        self.controller_epoch = mustering.epoch
        self.submission = submission.number
        self.wanted = WANTED
        self.known: tuple[BrokerId, ...] = tuple(submission.known)
        self.submitted_ms = self._world.now_ms
        self.tasks: list[GuardianTask] = []
        self._sights: dict[int, Sight] = {}
        self._left = submission.guardians
        self._is_over = False

    def begin(self) -> None:
        """All tasks at once, as soon as there are slots for all of them."""
        app, world = self._driver.app, self._world
        if self._is_over or not self._driver.alive:
            return
        free = app.free()
        if len(free) < self._submitted.guardians or app.slots() < self._submitted.guardians:
            world.after(POLL_MS, "waits for slots", self.begin)
            return
        for number, executor in enumerate(self._places(free)):
            app.attempts += 1
            host = self._brokers.hosts[executor.host]
            task = GuardianTask(
                self._brokers,
                host,
                self,
                number,
                attempt=app.attempts,
                executor=executor.id,
                namespace=executor.namespace,
            )
            self.tasks.append(task)
            world.after(world.between(*TASK_MS), "begins", partial(self._gather, task), on=task)

    def _places(self, free: list[Executor]) -> list[Executor]:
        """Where Spark prefers to compute each guardian's partition, or anywhere."""
        places = []
        for number in range(self._submitted.guardians):
            wanted = self._submitted.hosts[number] if self._submitted.hosts else ""
            near = [each for each in free if each.host == wanted]
            as_preferred = near and (self._driver.is_calm or self._world.chance(AS_PREFERRED))
            chosen = near[0] if as_preferred else free[self._world.between(0, len(free) - 1)]
            free.remove(chosen)
            places.append(chosen)
        return places

    def _gather(self, task: GuardianTask) -> None:
        """allGather: the last one to come lets all of them go on."""
        self._sights[task.number] = task.sight()
        if len(self._sights) < len(self.tasks) or self._is_over:
            return
        duties = assign(self._sights, known=self.known, wanted=self.wanted)
        lowest = min(each.attempt for each in self._sights.values())
        for each in self.tasks:
            begin = partial(each.begin, duties[each.number], lowest)
            self._world.after(self._world.between(*RTT_MS), "has gathered", begin, on=each)

    # What tasks do

    def takes_new_id(self) -> BrokerId:
        """Claim it, and raise why there is none."""
        brokers, drivers = self._brokers, self._driver.drivers
        nodes: Nodes = {
            EPOCH: NodeAsRead(ControllerEpoch(epoch=drivers.epoch), 0),
            SEQUENCE: NodeAsRead(BrokerSequence(next=brokers.last_id + 1), 0),
        }
        claimed = Numbering(self.controller_epoch).decide(nodes, None)
        if isinstance(claimed, ClaimRefused):
            raise claimed.error
        slots = self._driver.app.slots_by_host()
        near = {broker for name in slots for broker in brokers.hosts[name].directories}
        assigned = {broker: since_ms for broker, since_ms in brokers.assigned.items() if broker in near}
        known_ms = self.submitted_ms if self.controller_epoch == drivers.epoch else self._world.now_ms
        brokers.judge.takes_new_id(assigned, self.wanted, known_ms)
        brokers.last_id = claimed.claimed
        return claimed.claimed

    def report(
        self,
        task: GuardianTask,
        told: Guarding,
        answered: Callable[[GuardingAnswer], None],
        failed: Callable[[ReplicationError], None],
    ) -> None:
        self._asks_driver(task, lambda driver: driver.heard(told), answered, failed)

    def report_death(
        self,
        task: GuardianTask,
        died: BrokerDied,
        done: Callable[[], None],
        failed: Callable[[ReplicationError], None],
    ) -> None:
        self._asks_driver(task, lambda driver: driver.died(died), lambda _answer: done(), failed)

    def _asks_driver(
        self,
        task: GuardianTask,
        ask: Callable[[Driver], Answer],
        answered: Callable[[Answer], None],
        failed: Callable[[ReplicationError], None],
    ) -> None:
        driver, world = self._driver, self._world

        def fails(error: ReplicationError, after_ms: int) -> None:
            world.after(after_ms, "a report fails", lambda: failed(error), on=task, about=error.code)

        def arrives() -> None:
            if not driver.alive or driver.stopped_until_ms > world.now_ms:
                fails(RequestTimedOut("no answer"), REPORT_TIMEOUT_MS)
                return
            try:
                answer = ask(driver)
            except ReplicationError as error:
                fails(error, world.between(*RTT_MS))
            else:
                world.after(world.between(*RTT_MS), "hears the driver", lambda: answered(answer), on=task)

        if frozenset({task.host.name, driver.name}) in self._brokers.cut:
            fails(RequestTimedOut("unreachable"), REPORT_TIMEOUT_MS)
        else:
            world.after(world.between(*RTT_MS), "a report arrives", arrives)

    def ended(self, task: GuardianTask, error: ReplicationError | None) -> None:
        """One task has ended. With an error, the others end as well, some a good while after Spark has said so."""
        if task.alive:
            task.ended()
        if error is not None:
            self.fails(error)
        elif not self._is_over:
            self._left -= 1
            if not self._left:
                self._ends(None)

    def fails(self, error: ReplicationError) -> None:
        if not self._is_over:
            self._ends(error)
        for task in self.tasks:
            if task.alive:
                long = self._world.chance(LONG_LINGER_PROBABILITY)
                linger_ms = self._world.between(*(LINGER_LONG_MS if long else LINGER_MS))
                self._world.after(linger_ms, "Spark ends a task", task.ended, about=task.name)

    def _ends(self, error: ReplicationError | None) -> None:
        self._is_over = True
        self._submitted.ended(error)
        self._driver.wakes(self._mustering)


class Driver(Caller):
    def __init__(self, drivers: Drivers, name: str) -> None:
        super().__init__(name, name)
        self.drivers = drivers
        self.brokers = drivers.brokers
        self._world = drivers.brokers.world
        self.in_containers = drivers.in_containers
        self.app = Application(self)
        self._memory = FleetMemory()
        self.mustering: Mustering | None = None
        #: It has ended what it does at its last command.
        self._fleet_is_over = True
        self._looks = 0
        self._stops = False
        self._stands_aside_until_ms = 0
        self._poll()

    @property
    def is_calm(self) -> bool:
        return self.drivers.is_calm

    @property
    def commands(self) -> bool:
        return self.mustering is not None and self.mustering.order == "guard"

    def _after(self, delay_ms: float, what: str, action: Callable[[], None]) -> None:
        self._world.after(int(delay_ms), what, action, on=self)

    def _poll(self) -> None:
        """Look whether this driver is still the controller, or can become it."""
        drivers = self.drivers
        if self.commands and drivers.controller is not self:
            self._dismiss()
        elif self.commands and self.mustering is not None:
            unchanged_s = self.mustering.slots_unchanged_s()
            if must_step_aside(slots=self.mustering.slots, unchanged_s=unchanged_s, lease_ms=LEASE_MS):
                self._world.counts["stepped_aside"] += 1
                drivers.controller = None
                self._stands_aside_until_ms = self._world.now_ms + STEP_ASIDE_MS
                self._dismiss()
        elif drivers.controller is None and self._may_command:
            self._take_over()
        self._after(POLL_MS, "looks who commands", self._poll)

    @property
    def _may_command(self) -> bool:
        return self._fleet_is_over and not self._stops and self._world.now_ms >= self._stands_aside_until_ms

    def _take_over(self) -> None:
        self.drivers.controller = self
        self.drivers.epoch += 1
        self._world.counts["took_over"] += 1
        mustering: Mustering
        mustering = self.mustering = Mustering(
            self.app,
            lambda submission: self.app.submit(mustering, submission),
            self._known,
            brokers=WANTED,
            epoch=self.drivers.epoch,
            memory=self._memory,
            leave_s=LEAVE_S,
            now_s=lambda: self._world.now_ms / 1_000,
        )
        self._fleet_is_over = False
        self._look(mustering)

    def _dismiss(self) -> None:
        assert self.mustering is not None, "it commands"
        self.mustering.dismiss("leave")
        self.wakes(self.mustering)

    def _look(self, mustering: Mustering) -> None:
        self._looks += 1
        look, wait_s = self._looks, mustering.look()
        if wait_s is None:
            self._fleet_is_over = True
            if self._stops:
                self._shut_down_unguarded(frozenset(), self._world.now_ms + int((FLUSH_S + STOP_S) * 1_000))
        else:

            def looks() -> None:
                if look == self._looks:
                    self._look(mustering)

            self._after(math.ceil(wait_s * 1_000), "looks at its fleet", looks)

    def wakes(self, mustering: Mustering) -> None:
        if mustering is self.mustering and not self._fleet_is_over:
            self._after(1, "is woken", partial(self._look, mustering))

    def _known(self) -> KnownBrokers:
        if self.drivers.controller is not self:
            raise NotController("another commands")
        return self.brokers.needed()

    # What guardians tell

    def heard(self, told: Guarding) -> GuardingAnswer:
        if self.mustering is None:
            raise NotController("it does not command yet")
        return self.mustering.heard(told)

    def died(self, died: BrokerDied) -> None:
        if self.drivers.controller is not self:
            raise NotController("another commands")
        self.brokers.died(died.broker_id, died.incarnation)

    # The end

    def stop(self) -> None:
        """Stop all in a controlled way: first the guardians stop their brokers, then the driver who is left."""
        assert self.mustering is not None, "it commands"
        self._stops = True
        self.mustering.dismiss("shut_down")
        self.wakes(self.mustering)

    def _shut_down_unguarded(self, asked: frozenset[str], until_ms: int) -> None:
        """As spark.stopping.shut_down_unguarded."""
        assert self.mustering is not None, "it commands"
        order = Lease(self.mustering.epoch, LAST_ATTEMPT)
        found = {each.address for each in self.brokers.registered.values()}
        for address in sorted(found - asked):
            host, _, port = address.rpartition(":")
            self.brokers.call(
                self,
                (host, int(port)),
                lambda run: run.shut_down(order),
                lambda _answer: None,
                lambda _error: None,
                timeout_ms=REPORT_TIMEOUT_MS,
            )
        if found and self._world.now_ms < until_ms:
            self._after(ORDERS_MS, "stops who is left", lambda: self._shut_down_unguarded(asked | found, until_ms))

    def ended(self) -> None:
        """Its application ends: its tasks do so once they notice."""
        super().ended()
        for job in self.app.jobs.values():
            job.fails(StartFailed("the driver is gone"))


class Drivers:
    """The cluster: hosts, brokers and two drivers."""

    def __init__(self, world: World) -> None:
        self.world = world
        judge = self.judge = GuardingJudge(world)
        self.hosts = {name: Host(name) for name in HOSTS}
        self.brokers = Brokers(world, self.hosts, judge)
        self.in_containers = world.seed % 3 == 0
        self.controller: Driver | None = None
        self.epoch = 0
        #: Nothing is broken on purpose any more.
        self.is_calm = False
        self.drivers: dict[str, Driver] = {}
        world.check = lambda _process: judge.processes(run.broker_id for run in self.brokers.runs())

    def start(self) -> None:
        for name in ("x", "y"):
            self.start_driver(name)

    def start_driver(self, name: str) -> None:
        """Its executors come one by one."""
        driver = self.drivers[name] = Driver(self, name)
        for host in HOSTS:
            slots = ROOM if self.is_calm else self.world.between(1, SLOTS_MAX)
            self.world.after(
                self.world.between(0, 8_000), "an executor comes", partial(driver.app.add, host, slots), on=driver
            )

    def lost_session(self, driver: Driver) -> None:
        """ZooKeeper has heard nothing of it for long."""

        def expires() -> None:
            is_back = driver.alive and driver.stopped_until_ms <= self.world.now_ms
            if self.controller is driver and not is_back:
                self.controller = None

        self.world.after(SESSION_MS, "a driver's session expires", expires)

    def runs(self) -> list[BrokerRun]:
        return self.brokers.runs()

    # What must become of it

    def lacking(self) -> list[BrokerId]:
        """The known brokers that no guardian guards, though their hosts have slots for them."""
        driver = self.controller
        if driver is None or driver.mustering is None:
            return sorted(self.brokers.assigned)
        guarded, slots = driver.mustering.guarding_now(), driver.app.slots_by_host()
        needed = self.brokers.needed()
        lacking: list[BrokerId] = []
        for name, host in self.hosts.items():
            here = [broker for broker in sorted(host.directories) if broker in needed]
            without = [each for each in here if each not in guarded or not self._serves(host, each)]
            room = max(0, min(len(here), slots.get(name, 0)) - (len(here) - len(without)))
            lacking += without[:room]
        return lacking

    def _serves(self, host: Host, broker: BrokerId) -> bool:
        return host.directories[broker].process is not None and broker in self.brokers.registered

    def short_of(self) -> str:
        """Whether there are fewer brokers than wanted, though there are slots for them."""
        found = len(self.brokers.registered)
        return "" if found >= WANTED else f"{found} brokers are registered of {WANTED}"
