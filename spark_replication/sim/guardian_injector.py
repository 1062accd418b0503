"""Breaks guardians, their brokers, hosts, drivers and Spark, as a schedule says, and lets a run of them end well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from spark_replication.errors import StartFailed
from spark_replication.sim.cast.fleets import HOSTS, ROOM, SLOTS_MAX, Driver, Drivers
from spark_replication.sim.cast.guarded import BrokerRun
from spark_replication.sim.cast.guardians import GuardianTask
from spark_replication.sim.faults import Fault

LINGER_MS = 60_000  # of the last tasks that Spark takes for gone
SETTLE_MS = 1_500_000  # guardians on other hosts than their brokers may be left there with patience
LOOK_MS = 5_000
STOPPED_MS = 300_000
RESTART_MS = 2_000
HANG_MS = 100_000  # at the stop, longer than a guardian waits before it kills

_LOSSES = ("lose_host", "lose_slots")

Hit = TypeVar("Hit")


class GuardianInjector:
    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers
        self._world = drivers.world

    def plan(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._world.after(fault.at_ms, "a fault", partial(self._inject, fault), about=fault)

    def _inject(self, fault: Fault) -> None:
        inject: Callable[[Fault], bool] = getattr(self, f"_{fault.kind}")
        if inject(fault):
            self._world.counts[f"fault_{fault.kind}"] += 1
            # Whom guardians have lost so is to be kept meanwhile.
            self._drivers.brokers.disturbed(0 if fault.kind in _LOSSES else fault.for_ms)

    def _one(self, fault: Fault, found: Sequence[Hit]) -> Hit | None:
        return found[fault.pick % len(found)] if found else None

    def _later(self, fault: Fault, action: Callable[[], None]) -> None:
        self._world.after(fault.for_ms, f"{fault.kind} is over", action)

    @property
    def _tasks(self) -> list[GuardianTask]:
        return [task for driver in self._drivers.drivers.values() for task in driver.app.tasks()]

    def _run(self, fault: Fault) -> BrokerRun | None:
        return self._one(fault, sorted(self._drivers.runs(), key=lambda run: run.name))

    def _task(self, fault: Fault) -> GuardianTask | None:
        return self._one(fault, self._tasks)

    def _driver(self, fault: Fault) -> Driver | None:
        """More often than not the one that commands."""
        found = [each for each in self._drivers.drivers.values() if each.alive]
        controller = self._drivers.controller
        return controller if controller in found and fault.pick % 3 else self._one(fault, found)

    # Brokers

    def _kill_broker(self, fault: Fault) -> bool:
        run = self._run(fault)
        if run is not None:
            run.ends(-9)
        return run is not None

    def _hang_broker(self, fault: Fault) -> bool:
        run = self._run(fault)
        if run is not None:
            run.stopped_until_ms = self._world.now_ms + fault.for_ms
        return run is not None

    def _refuse_start(self, fault: Fault) -> bool:
        """A disk that refuses, of a host whose broker ends as well."""
        run = self._run(fault)
        if run is not None:
            run.directory.host.refuses_until_ms = self._world.now_ms + fault.for_ms
            run.ends(-9)
        return run is not None

    # Guardians

    def _kill_guardian(self, fault: Fault) -> bool:
        task = self._task(fault)
        if task is not None:
            task.post.ended(task, StartFailed("its worker has crashed"))
        return task is not None

    def _pause_guardian(self, fault: Fault) -> bool:
        task = self._task(fault)
        if task is not None:
            task.stands_still(self._world.now_ms + fault.for_ms)
        return task is not None

    def _forget_guardian(self, fault: Fault) -> bool:
        """Spark takes it for gone, and it goes on for a while."""
        task = self._task(fault)
        if task is not None:
            task.post.fails(StartFailed("an executor seems to be lost"))
        return task is not None

    # Hosts and the network

    def _cut_driver(self, fault: Fault) -> bool:
        driver = self._driver(fault)
        host = self._one(fault, HOSTS)
        if driver is not None and host is not None:
            self._cut(fault, driver.name, host)
        return driver is not None

    def _cut_hosts(self, fault: Fault) -> bool:
        one, other = fault.pick % len(HOSTS), fault.pick // len(HOSTS) % len(HOSTS)
        if one != other:
            self._cut(fault, HOSTS[one], HOSTS[other])
        return one != other

    def _cut(self, fault: Fault, one: str, other: str) -> None:
        pair = frozenset({one, other})
        self._drivers.brokers.cut.add(pair)
        for task in self._tasks:
            task.minds_nobody()
        self._later(fault, lambda: self._drivers.brokers.cut.discard(pair))

    def _lose_host(self, fault: Fault) -> bool:
        """Executors of both drivers, and with every third fault all else that runs there."""
        name = HOSTS[fault.pick % len(HOSTS)]
        for driver in self._drivers.drivers.values():
            driver.app.lose(name)
        if fault.pick % 3 == 0:
            for run in [each for each in self._drivers.runs() if each.directory.host.name == name]:
                run.ends(-9)
        self._later(fault, partial(self._add_executors, name, 1 + fault.pick % SLOTS_MAX))
        return True

    def _add_executors(self, name: str, slots: int) -> None:
        for driver in self._drivers.drivers.values():
            self._add_executor(driver, name, slots)

    def _add_executor(self, driver: Driver, name: str, slots: int) -> None:
        if driver.alive and name not in driver.app.executors:
            driver.app.add(name, ROOM if self._drivers.is_calm else slots)

    def _lose_slots(self, fault: Fault) -> bool:
        """All executors of one driver."""
        driver = self._driver(fault)
        if driver is None:
            return False
        for name in HOSTS:
            driver.app.lose(name)
            self._later(fault, partial(self._add_executor, driver, name, 1 + fault.pick % SLOTS_MAX))
        return True

    def _decommission(self, fault: Fault) -> bool:
        driver = self._driver(fault)
        found = None if driver is None else self._one(fault, sorted(driver.app.executors.values()))
        if driver is None or found is None:
            return False
        del driver.app.executors[found.host]
        driver.app.going.add(found.id)
        self._later(fault, partial(self._add_executors, found.host, found.slots))
        return True

    # Spark and drivers

    def _late_job(self, fault: Fault) -> bool:
        return self._fate(fault, "late")

    def _lost_job(self, fault: Fault) -> bool:
        return self._fate(fault, "lost")

    def _fate(self, fault: Fault, fate: str) -> bool:
        """Decide on the next job, which follows at once."""
        driver = self._driver(fault)
        task = None if driver is None else self._one(fault, driver.app.tasks())
        if driver is not None:
            driver.app.fates.append(fate)
        if task is not None:
            task.post.ended(task, StartFailed("its worker has crashed"))
        return driver is not None

    def _kill_driver(self, fault: Fault) -> bool:
        driver = self._driver(fault)
        if driver is not None:
            driver.ended()
            self._drivers.lost_session(driver)
            self._later(fault, partial(self._restart, driver.name))
        return driver is not None

    def _restart(self, name: str) -> None:
        if not self._drivers.drivers[name].alive:
            self._drivers.start_driver(name)

    def _pause_driver(self, fault: Fault) -> bool:
        driver = self._driver(fault)
        if driver is not None:
            driver.stopped_until_ms = self._world.now_ms + fault.for_ms
            self._drivers.lost_session(driver)
        return driver is not None

    # The end

    def heal(self) -> None:
        drivers, now_ms = self._drivers, self._world.now_ms
        drivers.is_calm = True
        self._drivers.brokers.disturbed(0)
        drivers.brokers.cut.clear()
        processes = [*drivers.drivers.values(), *drivers.runs(), *self._tasks]
        for process in processes:
            process.stopped_until_ms = min(process.stopped_until_ms, now_ms)
        for host in drivers.hosts.values():
            host.refuses_until_ms = 0
        for name, driver in list(drivers.drivers.items()):
            if not driver.alive:
                self._world.after(RESTART_MS, "starts it again", partial(self._restart, name))
            driver.app.fates.clear()
        for driver in drivers.drivers.values():
            for name, executor in driver.app.executors.items():
                driver.app.executors[name] = executor._replace(slots=ROOM)
        for name in HOSTS:
            self._add_executors(name, ROOM)

    def hang_at_the_stop(self) -> None:
        """A broker that hears of no order. It ends by a signal, or by its lease where nobody sees it."""
        self._drivers.brokers.disturbed(STOPPED_MS)
        run = next(iter(sorted(self._drivers.runs(), key=lambda run: run.name)), None)
        if run is not None:
            run.stopped_until_ms = self._world.now_ms + HANG_MS


def tell_of_guardians(drivers: Drivers, faults: Sequence[Fault]) -> None:
    """Run a story: its faults, what becomes of the cluster after them, and its clean stop."""
    world, injector = drivers.world, GuardianInjector(drivers)
    drivers.start()
    injector.plan(faults)
    world.run(max((fault.at_ms + fault.for_ms for fault in faults), default=0) + LINGER_MS)
    injector.heal()
    world.run(world.now_ms + LINGER_MS)
    settles_ms = world.now_ms + SETTLE_MS
    while (drivers.lacking() or drivers.short_of()) and world.now_ms < settles_ms:
        world.run(world.now_ms + LOOK_MS)
    drivers.judge.settled(drivers.lacking(), drivers.short_of())
    assert drivers.controller is not None, "somebody guards"
    if world.seed % 2:
        injector.hang_at_the_stop()
    drivers.controller.stop()
    world.run(world.now_ms + STOPPED_MS)
    drivers.judge.stopped(run.broker_id for run in drivers.runs())
