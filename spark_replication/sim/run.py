"""Runs of the simulator: of one seed, of a range of seeds on several processes, and the shrink of a failed run."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from spark_replication.messages.requests import ElectLeaders
from spark_replication.model import Scalar, TopicPartition
from spark_replication.sim.cast.cluster import SETTINGS, TOPIC, SimulatedCluster
from spark_replication.sim.cast.fleets import Drivers
from spark_replication.sim.faults import DEFAULT, Fault, Profile, profile_of, schedule
from spark_replication.sim.guardian_injector import tell_of_guardians
from spark_replication.sim.injector import Injector
from spark_replication.sim.judges.liveness import acknowledge_all, settle
from spark_replication.sim.world.world import InvariantBroken, World

EPOCHS_MIN = 3
EPOCH_ATTEMPTS_MAX = 30
EPOCH_STEP_MS = 300
QUIET_MS = 300
SEEDS_PER_TASK = 8
PACKAGE = "spark_replication"
#: What groups have not read yet stays, and so does what was committed.
OF_GROUPS: dict[str, Scalar] = {
    "unclean.recovery.enabled": False,
    "retention.bytes": -1,
    "flush": "always",
    "recovery.trust.page.cache": True,
}
WRITERS = 2
UNEXPECTED = "unexpected_error"  # production code raised what it never should


class Failure(msgspec.Struct, frozen=True):
    invariant: str
    step: int
    what: str


class Result(msgspec.Struct, frozen=True):
    """The result of one run."""

    seed: int
    events: int
    epochs: int
    #: How often each fault, election and other occurrence came.
    counts: dict[str, int]
    failure: Failure | None = None
    faults: tuple[Fault, ...] = ()
    trace: tuple[str, ...] = ()

    def sentence(self, profile: str = DEFAULT) -> str:
        assert self.failure is not None, "it failed"
        options = "" if profile == DEFAULT else f" --profile {profile}"
        return (
            f"seed={self.seed} step={self.failure.step} broke {self.failure.invariant}; "
            f"replay: spark-replication sim --seed {self.seed}{options}"
        )


def run_seed(
    seed: int, profile: str = DEFAULT, *, faults: Sequence[Fault] | None = None, traced: bool = False
) -> Result:
    """Run one seed, with its own schedule or with `faults`."""
    mix = profile_of(profile, seed)
    planned = schedule(seed, mix) if faults is None else list(faults)
    world = World(seed, traced=traced)
    tell, epochs = _guardians(world) if mix.guardians else _cluster(world, mix)
    failure: Failure | None = None
    try:
        with _noted(world):
            tell(planned)
    except InvariantBroken as broken:
        failure = Failure(broken.name, world.step, broken.what)
    except Exception as error:  # noqa: BLE001 (whatever production raises here is a finding)
        failure = Failure(UNEXPECTED, world.step, f"{type(error).__name__}: {error}")
    return Result(
        seed=seed,
        events=world.step,
        epochs=epochs(),
        counts=dict(sorted(world.counts.items())),
        failure=failure,
        faults=tuple(planned),
        trace=tuple(world.trace or ()),
    )


_Story = tuple[Callable[[Sequence[Fault]], None], Callable[[], int]]  # what tells it, and how many epochs it had


def _cluster(world: World, mix: Profile) -> _Story:
    seed = world.seed
    cluster = SimulatedCluster(
        world,
        brokers=4 if seed % 5 else 3,
        candidates=2,
        settings=_settings(seed) | (OF_GROUPS if mix.groups else {}) | (_of_tables(seed) if mix.tables else {}),
        queries=None if not mix.queries else "jobs" if seed % 2 else "streams",
        groups=mix.groups,
        writers=WRITERS if mix.tables else 0,
    )
    return partial(_tell, cluster), partial(_epochs, cluster)


def _guardians(world: World) -> _Story:
    drivers = Drivers(world)
    return partial(tell_of_guardians, drivers), lambda: drivers.epoch


class _Notes(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.trace is not None:
            self._world.note(f"logged: {record.getMessage()}")


@contextmanager
def _noted(world: World) -> Iterator[None]:
    """What production code logs meanwhile stands in the trace."""
    logger, notes = logging.getLogger(PACKAGE), _Notes(world)
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)


def _settings(seed: int) -> dict[str, Scalar]:
    return {
        # So small that each batch begins a segment, or every tenth does.
        "segment.bytes": 1 if seed // 5 % 3 == 0 else SETTINGS["segment.bytes"],
        "recovery.trust.page.cache": seed % 7 > 2,
        "unclean.recovery.enabled": seed % 3 != 0,
        "flush": "always" if seed % 4 == 0 else "interval" if seed % 4 == 1 else "none",
        "reassignment.bytes.per.second": (0, 150, 300, 600)[seed // 2 % 4],
        "retention.bytes": 2 * int(SETTINGS["segment.bytes"]) if seed % 2 else -1,
    }


def _of_tables(seed: int) -> dict[str, Scalar]:
    # A leader that is alone in its ISR commits what no other replica has, until it hears that it leads no longer.
    return {"table": True, **({"min.insync.replicas": 1} if seed % 2 else {})}


def _tell(cluster: SimulatedCluster, faults: Sequence[Fault]) -> None:
    world = cluster.world
    injector = Injector(cluster)
    cluster.start()
    injector.plan(faults)
    world.run(max((fault.at_ms for fault in faults), default=0) + 700)
    injector.heal()
    world.run(world.now_ms + QUIET_MS)
    _lead_on(cluster)
    for client in cluster.clients:
        client.stopped = True
    settle(cluster)
    acknowledge_all(cluster)


def _epochs(cluster: SimulatedCluster) -> int:
    """How many leader epochs the partition with the most of them has seen."""
    return max((stored.state.leader_epoch + 1 for stored in cluster.store.partitions.values()), default=0)


def _lead_on(cluster: SimulatedCluster) -> None:
    """Restart the leader of a calm run until the run has at least three leader epochs."""
    first = TopicPartition(TOPIC, 0)
    for _ in range(EPOCH_ATTEMPTS_MAX):
        if _epochs(cluster) >= EPOCHS_MIN:
            return
        stored = cluster.store.partitions.get(first)
        leader = None if stored is None else stored.state.leader
        process = None if leader is None else cluster.hosts[leader].process
        if process is not None:
            process.ended()
            cluster.world.run(cluster.world.now_ms + cluster.settings.zookeeper_session_ms + EPOCH_STEP_MS)
            cluster.start_broker(process.broker)
        cluster.ask(ElectLeaders(kind="preferred"))
        cluster.world.run(cluster.world.now_ms + EPOCH_STEP_MS)


class Report(msgspec.Struct):
    """The results of a range of seeds."""

    seeds: int = 0
    events: int = 0
    events_min: int = 0
    epochs_min: int = 0
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    failures: list[Result] = []
    traces: list[str] = []

    def add(self, result: Result) -> None:
        self.events_min = result.events if not self.seeds else min(self.events_min, result.events)
        self.epochs_min = result.epochs if not self.seeds else min(self.epochs_min, result.epochs)
        self.seeds += 1
        self.events += result.events
        self.counts.update(result.counts)
        self.traces.extend(result.trace)
        if result.failure is not None:
            self.failures.append(result)


def run_seeds(
    seeds: Sequence[int], profile: str = DEFAULT, *, jobs: int | None = None, first_failure: bool = False
) -> Report:
    report = Report()
    for result in _results(seeds, profile, jobs or os.cpu_count() or 1):
        report.add(result)
        if first_failure and result.failure is not None:
            break
    return report


def _results(seeds: Sequence[int], profile: str, jobs: int) -> Iterator[Result]:
    if jobs == 1 or len(seeds) <= SEEDS_PER_TASK:
        yield from (run_seed(seed, profile) for seed in seeds)
        return
    tasks = ((seeds[start : start + SEEDS_PER_TASK], profile) for start in range(0, len(seeds), SEEDS_PER_TASK))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for results in pool.imap(_run_task, tasks):
            yield from results


def _run_task(task: tuple[Sequence[int], str]) -> list[Result]:
    return [run_seed(seed, task[1]) for seed in task[0]]


def shrink(result: Result, profile: str = DEFAULT) -> Result:
    """Break the same invariant with fewer faults: halves are left out first, single faults last."""
    assert result.failure is not None, "it failed"
    best = result
    size = max(1, len(best.faults) // 2)
    while True:
        found = next(_failing(best, size, profile), None)
        if found is not None:
            best = found
        elif size == 1:
            return best
        else:
            size //= 2


def _failing(best: Result, size: int, profile: str) -> Iterator[Result]:
    assert best.failure is not None
    for start in range(0, len(best.faults), size):
        fewer = best.faults[:start] + best.faults[start + size :]
        tried = run_seed(best.seed, profile, faults=fewer)
        if tried.failure is not None and tried.failure.invariant == best.failure.invariant:
            yield tried
