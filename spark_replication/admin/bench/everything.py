"""All measurements in one run, as `spark-replication bench all` does it. The report is written again after each, so a
run that is ended has what was found until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import msgspec

from spark_replication.admin.bench import columns, mirror
from spark_replication.admin.bench.columns import ReadColumns
from spark_replication.admin.bench.failover import LoseBroker, LoseController, Loss, filled, idle, settings
from spark_replication.admin.bench.harness import (
    STEADY,
    STEADY_ROUNDS,
    WARM_UP_ROWS,
    Case,
    Harness,
    Progress,
    Rounds,
    Row,
)
from spark_replication.admin.bench.kafka.jars import VERSION, kafka_jars
from spark_replication.admin.bench.losses import Successor
from spark_replication.admin.bench.ours import Ours
from spark_replication.admin.bench.report import Machine, Report, Section, this_machine, write
from spark_replication.admin.bench.side import Side, Target
from spark_replication.admin.bench.sides import Peer, all_sides, clusters
from spark_replication.admin.bench.traffic import (
    OTHER_MIB,
    OTHER_ROWS,
    Acknowledge,
    Consume,
    Meanwhile,
    Produce,
)
from spark_replication.config import SecurityMode, Settings
from spark_replication.errors import InvalidRequest, ReplicationError

KIB, MIB = 1 << 10, 1 << 20
WITHOUT_JAVA_S = 5.0  # until all is warm
BARE: tuple[Peer, ...] = ("bare",)
ONCE = Rounds(1, 1)  # where many partitions take long


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured. What is a number or a word can be set: see `with_values`."""

    rounds: Rounds
    warm_up_s: float
    producing: Sequence[Produce]
    consuming: Sequence[Consume]
    acknowledging: Sequence[Acknowledge]
    #: What goes on in turn while somebody waits for acknowledgements.
    meanwhile: Sequence[Meanwhile]
    outage_partitions: int
    #: Beside the bare limit.
    bare_producing: Sequence[Produce]
    bare_consuming: Sequence[Consume]
    securing: Sequence[Produce]
    columns: Sequence[ReadColumns]
    spark_rows: int
    spark_partitions: int = 12
    spark_master: str = "local[2]"
    spark_triggers: int = 10
    #: Of the cluster that is idle, and loses a broker and its controller.
    partitions: int
    #: After which ZooKeeper gives up who is silent, where that is waited for.
    session_ms: int
    idle_s: float
    mirror_partitions: int = 10_000
    mirror_writes: int
    mirror_commits: int


def _produce(mib: int, row_bytes: int, batch_bytes: int, partitions: int = 1, producers: int = 1) -> Produce:
    return Produce(row_bytes=row_bytes, batch_bytes=batch_bytes, partitions=partitions, producers=producers, mib=mib)


def _by_each_door(mib: int) -> Sequence[Consume]:
    sizes: dict[str, Any] = {"row_bytes": KIB, "batch_bytes": 64 * KIB, "partitions": 1, "mib": mib, "looks": True}
    return (Consume(**sizes), Consume(**sizes, door="flight"), Consume(**sizes, door="files"))


FULL = Plan(
    rounds=Rounds(3, 5, within_s=30.0),
    warm_up_s=60.0,
    producing=(
        _produce(192, KIB, 4 * KIB),
        _produce(192, KIB, 64 * KIB),
        _produce(192, KIB, MIB),
        _produce(192, 100, MIB),
        _produce(192, KIB, 64 * KIB, partitions=12),
        _produce(192, KIB, 64 * KIB, partitions=12, producers=8),
        _produce(192, KIB, 64 * KIB, partitions=512),
    ),
    consuming=(
        Consume(row_bytes=KIB, batch_bytes=64 * KIB, partitions=3, mib=768),
        Consume(row_bytes=100, batch_bytes=MIB, partitions=3, mib=768),
    ),
    acknowledging=(
        Acknowledge(row_bytes=KIB, rows_per_s=200, partitions=1, seconds=12.0),
        Acknowledge(row_bytes=KIB, rows_per_s=2_000, partitions=1, seconds=12.0),
    ),
    meanwhile=("catch-up", "paced-catch-up", "reassignment"),
    outage_partitions=1_000,
    bare_producing=tuple(
        _produce(192, KIB, batch_bytes, partitions)
        for batch_bytes in (4 * KIB, 64 * KIB, MIB)
        for partitions in (1, 16, 512)
    ),
    bare_consuming=_by_each_door(512),
    securing=(_produce(192, KIB, 64 * KIB), _produce(192, KIB, MIB)),
    columns=(
        ReadColumns(batch_bytes=64 * KIB, partitions=1, mib=512),
        ReadColumns(batch_bytes=MIB, partitions=1, mib=512),
    ),
    spark_rows=1_000_000,
    partitions=10_000,
    session_ms=Settings().zookeeper_session_ms,
    idle_s=10.0,
    mirror_writes=20,
    mirror_commits=1_000,
)
QUICK = Plan(
    rounds=Rounds(2, 3, within_s=8.0),
    warm_up_s=40.0,
    producing=(_produce(128, KIB, 64 * KIB), _produce(128, KIB, MIB)),
    consuming=(Consume(row_bytes=KIB, batch_bytes=64 * KIB, partitions=3, mib=256),),
    acknowledging=(Acknowledge(row_bytes=KIB, rows_per_s=200, partitions=1, seconds=5.0),),
    meanwhile=(),
    outage_partitions=300,
    bare_producing=(_produce(128, KIB, 64 * KIB),),
    bare_consuming=_by_each_door(128),
    securing=(_produce(128, KIB, 64 * KIB),),
    columns=(ReadColumns(batch_bytes=64 * KIB, partitions=1, mib=128),),
    spark_rows=200_000,
    partitions=1_000,
    session_ms=3_000,
    idle_s=5.0,
    mirror_writes=5,
    mirror_commits=100,
)
FEW = 2_000  # partitions: the files that they leave are soon removed (see failover)


def with_values(plan: Plan, values: dict[str, str]) -> Plan:
    """The plan, with these instead."""
    kinds = settable()
    for name, value in values.items():
        if name not in kinds:
            raise InvalidRequest(f"a plan has no {name}: it has {', '.join(kinds)}")
        try:
            plan = msgspec.structs.replace(plan, **{name: msgspec.convert(value, kinds[name], strict=False)})
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{name}={value}: {error}") from error
    return plan


def settable() -> dict[str, type]:
    return {each.name: each.type for each in msgspec.structs.fields(Plan) if each.type in (int, float, str)}


class Running:
    """The report while it grows."""

    def __init__(self, plan: Plan, machine: Machine, folder: Path, progress: Progress) -> None:
        self.plan = plan
        self.harness = Harness(plan.rounds, plan.warm_up_s, progress)
        self._machine = machine
        self._rounds = (
            f"Medians of {plan.rounds.most} rounds, of {plan.rounds.least} at least where they take long. Beside "
            f"Kafka, both are warm before: {WARM_UP_ROWS:,} rows, and on until {STEADY_ROUNDS} rounds in a row differ "
            f"by less than {STEADY - 1:.0%}, for {plan.warm_up_s:.0f} s at most."
        )
        self._folder = folder
        self._sections: list[Section] = []
        self._missing: list[str] = []

    @property
    def report(self) -> Report:
        titles = [part.title for part in PARTS.values()]
        sections = sorted(self._sections, key=lambda section: titles.index(section.title))
        return Report(machine=self._machine, rounds=self._rounds, sections=sections, missing=self._missing)

    @contextmanager
    def required(self, what: str) -> Iterator[None]:
        """Whatever is measured within needs this."""
        try:
            yield
        except ReplicationError as error:
            self.lacks(f"{what}: {error}")

    def lacks(self, what: str) -> None:
        self._missing.append(what)
        write(self.report, self._folder)

    def measure(self, part: Part, sides: Sequence[Any]) -> None:
        self.harness.progress(f"{part.title}:")
        found: list[Row] = []
        with self.required(part.title):
            for row in part.rows(self, sides):
                found.append(row)
        if found:
            self._sections.append(Section(title=part.title, conditions=part.conditions, rows=found))
        write(self.report, self._folder)


def everything(plan: Plan, folder: Path, progress: Progress, *, only: Collection[str] = (), with_kafka: bool) -> Report:
    """Measure these parts of the plan, or all that are usual, and write the report into the folder. A measurement that
    fails ends no other."""
    chosen = [part for name, part in PARTS.items() if (name in only if only else part.is_usual)]
    running = Running(plan, this_machine(Kafka=VERSION) if with_kafka else this_machine(), folder, progress)

    def measure(among: Among) -> None:
        parts = [part for part in chosen if part.among is among]
        if parts:
            with running.required("what is measured needs clusters"), among(running, with_kafka=with_kafka) as sides:
                for part in parts:
                    running.measure(part, sides)

    order = [_alone, _many, _compared] if plan.partitions <= FEW else [_alone, _compared, _many]
    with ThreadPoolExecutor(1) as network:  # of what comes first it takes little
        if with_kafka and any(part.among is _compared for part in chosen):
            network.submit(kafka_jars, progress)  # whoever needs it tries again if that fails
        measure(order[0])
    for among in order[1:]:
        measure(among)
    return running.report


# Among whom


class Among(Protocol):
    """Runs the sides that several parts have in common."""

    def __call__(self, running: Running, /, *, with_kafka: bool) -> AbstractContextManager[Sequence[Any]]: ...


@contextmanager
def _alone(running: Running, *, with_kafka: bool) -> Iterator[Sequence[Target]]:
    """Each part has sides of its own."""
    yield ()


@contextmanager
def _compared(running: Running, *, with_kafka: bool) -> Iterator[Sequence[Target]]:
    peers: list[Peer] = ["kafka"] if with_kafka else []
    with all_sides(running.harness, peers) as sides:
        if with_kafka and len(sides) == 1:
            running.lacks("Kafka: it does not run here, and what was said above tells why")
        yield sides


@contextmanager
def _many(running: Running, *, with_kafka: bool) -> Iterator[Sequence[Ours]]:
    plan = running.plan
    with (
        clusters(running.harness, config=settings(plan.session_ms)) as sides,
        filled(sides, plan.partitions, running.harness),
    ):
        yield sides


# What


def _each(cases: Iterable[Case[Any]], harness: Harness, sides: Sequence[Any]) -> Iterator[Row]:
    for case in cases:
        yield from harness.measure(case, sides)


def _beside_others(running: Running, sides: Sequence[Target]) -> Iterator[Row]:
    plan = running.plan
    cases = [msgspec.structs.replace(plan.acknowledging[0], meanwhile=each) for each in plan.meanwhile]
    yield from _each(cases, running.harness, sides)


def _outage(running: Running, sides: Sequence[Side]) -> Iterator[Row]:
    partitions = running.plan.outage_partitions
    with filled(sides, partitions, running.harness):
        yield from running.harness.measure(LoseBroker(partitions=partitions), sides)


def _bare(running: Running, _: Sequence[Target]) -> Iterator[Row]:
    plan = running.plan
    harness = running.harness._replace(warm_up_s=WITHOUT_JAVA_S)
    with all_sides(harness, BARE) as sides:
        yield from _each((*plan.bare_producing, *plan.acknowledging[:1]), harness, sides)


def _doors(running: Running, _: Sequence[Target]) -> Iterator[Row]:
    harness = running.harness._replace(warm_up_s=WITHOUT_JAVA_S)
    with all_sides(harness, BARE) as sides:
        yield from _each(running.plan.bare_consuming, harness, sides)


def _secured(running: Running, _: Sequence[Target]) -> Iterator[Row]:
    plan = running.plan
    harness = running.harness._replace(warm_up_s=WITHOUT_JAVA_S)
    with all_sides(harness, (), get_args(SecurityMode)) as sides:
        yield from _each((*plan.securing, *plan.acknowledging[:1]), harness, sides)


def _columns(running: Running, _: Sequence[Target]) -> Iterator[Row]:
    harness = running.harness._replace(warm_up_s=WITHOUT_JAVA_S)
    with clusters(harness) as (side,):
        yield from columns.measure(running.plan.columns, side, harness)


def _on_spark(
    running: Running, sides: Sequence[Any], *, does: Literal["through", "triggers", "times"]
) -> Iterator[Row]:
    from spark_replication.admin.bench import spark  # pyspark is heavy

    plan = running.plan
    ours, *others = sides
    load = spark.Load(plan.spark_rows, plan.spark_partitions, plan.spark_master)
    with spark.started(load, ours, others[0] if others else None, running.harness) as bench:
        match does:
            case "through":
                yield from spark.through(bench, running.harness)
            case "triggers":
                yield from spark.triggers(bench, plan.spark_triggers, running.harness)
            case "times":
                yield from spark.read_times(bench, running.harness)


def _idle(running: Running, sides: Sequence[Ours]) -> Iterator[Row]:
    plan = running.plan
    yield from idle(sides[0], plan.partitions, plan.idle_s, running.harness)


def _controllers(running: Running, sides: Sequence[Ours]) -> Iterator[Row]:
    plan = running.plan
    successors: tuple[Successor, ...] = ("restarted", "standby")
    cases = [
        LoseController(partitions=plan.partitions, successor=each, session_ms=plan.session_ms) for each in successors
    ]
    yield from _each(cases, running.harness._replace(rounds=ONCE), sides)


def _brokers(running: Running, sides: Sequence[Ours]) -> Iterator[Row]:
    partitions = running.plan.partitions
    cases = [LoseBroker(partitions=partitions, loss=each, writes="once-led") for each in get_args(Loss)]
    yield from _each(cases, running.harness._replace(rounds=ONCE), sides)


def _lag(running: Running, _: Sequence[Target]) -> Iterator[Row]:
    plan = running.plan
    changed = (1, 100, plan.mirror_partitions // 3, plan.mirror_partitions)
    yield from mirror.lag(plan.mirror_partitions, changed, plan.mirror_writes, running.harness)


def _growth(running: Running, _: Sequence[Target]) -> Iterator[Row]:
    plan = running.plan
    yield from mirror.growth(plan.mirror_partitions, plan.mirror_commits, running.harness.progress)


class Part(NamedTuple):
    title: str
    conditions: str
    among: Among
    rows: Callable[[Running, Sequence[Any]], Iterable[Row]]
    #: Else it is measured only if it is named.
    is_usual: bool = True


_ALIKE = "Three brokers, three replicas of which two must have a row, acks=all, no sync of the disk"
_LIMIT = "three processes that do nothing but move and write the same bytes"
#: In the order of the report. What needs no Kafka is measured first, while that is fetched.
PARTS: Mapping[str, Part] = {
    "produce": Part(
        "Produce",
        f"{_ALIKE}; producers in processes of their own, 64 MiB unanswered at most, logs that keep 64 MiB. Our rows "
        "are Arrow batches, checked where they are stored; Kafka's are records that brokers do not look into.",
        _compared,
        lambda running, sides: _each(running.plan.producing, running.harness, sides),
    ),
    "acknowledge": Part(
        "Acknowledge",
        f"{_ALIKE}; one row at a time, each when it is due, lingering for no other.",
        _compared,
        lambda running, sides: _each(running.plan.acknowledging, running.harness, sides),
    ),
    "beside": Part(
        "Acknowledge while others work",
        f"{_ALIKE}; meanwhile one reader reads another topic of {OTHER_MIB} MiB again and again, as fast as each side "
        f"does it (catch-up) or as fast on either side (paced-catch-up), or a replica of each of its "
        f"{OTHER_ROWS.partitions} partitions moves to another broker and back (reassignment).",
        _compared,
        _beside_others,
    ),
    "consume": Part(
        "Consume",
        "What was written a moment before; one reader, in a process of its own.",
        _compared,
        lambda running, sides: _each(running.plan.consuming, running.harness, sides),
    ),
    "outage": Part(
        "Outage",
        f"{_ALIKE}; kill -9 of a broker that leads a third of all partitions, to which a producer writes from then on. "
        "Our brokers' deaths are reported by their guardians; Kafka's session is 3 s, where 9 are usual. Its active "
        "controller lives on, as ours does.",
        _compared,
        _outage,
    ),
    "spark": Part(
        "Spark",
        "One session, two tasks at a time; each side by its own connector, as DataFrames and as a stream that takes "
        "all there is. MB are those of the rows as Arrow has them. Our topics have columns; Kafka's rows are JSON, "
        "which is made as they are written, and not taken apart as they are read.",
        _compared,
        partial(_on_spark, does="through"),
    ),
    "spark-triggers": Part(
        "Spark's triggers",
        "Micro-batches of one row into a Delta table.",
        _compared,
        partial(_on_spark, does="triggers"),
        is_usual=False,
    ),
    "spark-time": Part(
        "Where the time of a read goes",
        "Times of tasks are the share of one slot. Beside it, a read that finds nothing.",
        _compared,
        partial(_on_spark, does="times"),
        is_usual=False,
    ),
    "bare": Part("Beside the bare loop", f"As in Produce and Acknowledge, beside {_LIMIT}.", _alone, _bare),
    "doors": Part(
        "Read by each door",
        "A reader that looks at each byte, beside a bare socket; DoGet, beside Flight alone, which has one batch in "
        "memory; and a broker's files, beside a memory map.",
        _alone,
        _doors,
    ),
    "security": Part("Security", "A cluster of each security.mode, in turn.", _alone, _secured, is_usual=False),
    "columns": Part(
        "Some columns",
        "A topic as a table, of numbers and short texts; a Reader drops what it reads, or keeps it where a table does.",
        _alone,
        _columns,
        is_usual=False,
    ),
    "idle": Part("Idle", "Nobody writes.", _many, _idle),
    "takeover": Part(
        "Takeover", "kill -9 of the controller. A standby waits until its session ends.", _many, _controllers
    ),
    "failover": Part(
        "Failover",
        "kill -9 of a broker, or its silence until its session ends; milliseconds since then. Rows are written once "
        "all is led.",
        _many,
        _brokers,
    ),
    "mirror": Part(
        "Mirror",
        "From the controller's news to a committed table, beside a plain append of the same rows.",
        _alone,
        _lag,
    ),
    "mirror-growth": Part(
        "What the mirror grows to", "Commits that each change one partition.", _alone, _growth, is_usual=False
    ),
}
