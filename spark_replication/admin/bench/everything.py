"""All measurements in one run, as `spark-replication bench all` does it. The report is written again after each, so a
run that is ended has what was found until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec

from spark_replication.admin.bench import ack, beside, consume, failover, idle, outage, produce, replicate, takeover
from spark_replication.admin.bench.cluster import Filled, filled
from spark_replication.admin.bench.kafka.jars import VERSION, connector_jars, kafka_jars
from spark_replication.admin.bench.programs import STEADY, STEADY_ROUNDS, WARM_UP_ROWS
from spark_replication.admin.bench.replicate import Progress
from spark_replication.admin.bench.report import Machine, Report, Row, Section, this_machine, write
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Meanwhile, Paced, Rows, Side
from spark_replication.admin.bench.sides import both
from spark_replication.config import Settings
from spark_replication.errors import ReplicationError

KIB, MIB = 1 << 10, 1 << 20
KAFKA = f"Kafka {VERSION}"
SPARK_PARTITIONS = 12
SPARK_MASTER = "local[2]"
BESIDE_S = 6.0
FEW = 2_000  # partitions: the files that they leave are soon removed (see `filled`)


class Plan(NamedTuple):
    """How much is measured."""

    rounds: Rounds
    producing: Sequence[produce.Case]
    produced_mib: int
    consuming: Sequence[Rows]
    consumed_mib: int
    pacing: Sequence[Paced]
    paced_s: float
    #: What goes on in turn while somebody waits for acknowledgements.
    meanwhile: Sequence[Meanwhile]
    outages: Sequence[int]
    sizes: Sequence[int]
    partitions: Sequence[int]
    spark_rows: int
    #: After which ZooKeeper gives up who is silent, where that is waited for.
    session_ms: int
    idle_s: float
    #: Of the cluster that is idle, and loses a broker and its controller.
    many: int


def _case(row_bytes: int, batch_bytes: int, partitions: int = 1, producers: int = 1) -> produce.Case:
    return produce.Case(row_bytes=row_bytes, batch_bytes=batch_bytes, partitions=partitions, producers=producers)


FULL = Plan(
    rounds=Rounds(3, 5, within_s=30.0, warm_up_s=60.0),
    producing=(
        _case(KIB, 4 * KIB),
        _case(KIB, 64 * KIB),
        _case(KIB, MIB),
        _case(100, MIB),
        _case(KIB, 64 * KIB, partitions=12),
        _case(KIB, 64 * KIB, partitions=12, producers=8),
        _case(KIB, 64 * KIB, partitions=512),
    ),
    produced_mib=192,
    consuming=(
        Rows(row_bytes=KIB, batch_bytes=64 * KIB, partitions=3),
        Rows(row_bytes=100, batch_bytes=MIB, partitions=3),
    ),
    consumed_mib=768,
    pacing=(
        Paced(row_bytes=KIB, rows_per_s=200, partitions=1),
        Paced(row_bytes=KIB, rows_per_s=2_000, partitions=1),
    ),
    paced_s=12.0,
    meanwhile=("catch-up", "paced-catch-up", "reassignment"),
    outages=(1_000,),
    sizes=(4 * KIB, 64 * KIB, MIB),
    partitions=(1, 16, 512),
    spark_rows=1_000_000,
    session_ms=Settings().zookeeper_session_ms,
    idle_s=10.0,
    many=10_000,
)
QUICK = Plan(
    rounds=Rounds(2, 3, within_s=8.0, warm_up_s=40.0),
    producing=(_case(KIB, 64 * KIB), _case(KIB, MIB)),
    produced_mib=128,
    consuming=(Rows(row_bytes=KIB, batch_bytes=64 * KIB, partitions=3),),
    consumed_mib=256,
    pacing=(Paced(row_bytes=KIB, rows_per_s=200, partitions=1),),
    paced_s=5.0,
    meanwhile=(),
    outages=(300,),
    sizes=(64 * KIB,),
    partitions=(1,),
    spark_rows=200_000,
    session_ms=3_000,
    idle_s=5.0,
    many=1_000,
)


def everything(plan: Plan, folder: Path, progress: Progress, *, kafka: bool) -> Report:
    """Measure all of the plan, and write the report into the folder. A measurement that fails ends no other."""
    machine = this_machine(Kafka=VERSION) if kafka else this_machine()
    running = Running(machine, plan.rounds, folder, progress)
    with _kafka_fetched(progress) if kafka else nullcontext():
        for title, conditions, peer, alone in ALONE:
            running.measure(title, conditions, peer, alone(plan, progress))
        if plan.many <= FEW:
            _measure_many(running, plan, progress)
    with both(progress, kafka=kafka, warm_up_s=plan.rounds.warm_up_s) as sides:
        if kafka and len(sides) == 1:
            running.lacks("Kafka: it does not run here, and what was said above tells why")
        for title, conditions, compared in COMPARED:
            running.measure(title, conditions, KAFKA if len(sides) > 1 else None, compared(sides, plan, progress))
    if plan.many > FEW:
        _measure_many(running, plan, progress)
    return running.report


def _measure_many(running: Running, plan: Plan, progress: Progress) -> None:
    with running.required("a cluster of many partitions"), filled(plan.many, plan.session_ms, progress) as many:
        for title, conditions, measured in OF_MANY:
            running.measure(title, conditions, None, measured(many, plan, progress))


@contextmanager
def _kafka_fetched(progress: Progress) -> Iterator[None]:
    """Kafka is fetched while the block runs, of which it takes little. Whoever needs it tries again if that fails."""
    with ThreadPoolExecutor(1) as network:
        network.submit(kafka_jars, progress)
        yield


class Running:
    """The report while it grows."""

    def __init__(self, machine: Machine, rounds: Rounds, folder: Path, progress: Progress) -> None:
        self._machine = machine
        self._rounds = (
            f"Medians of {rounds.most} rounds, of {rounds.least} at least where they take long. Beside Kafka, both are "
            f"warm before: {WARM_UP_ROWS:,} rows, and on until {STEADY_ROUNDS} rounds in a row differ by less than "
            f"{STEADY - 1:.0%}, for {rounds.warm_up_s:.0f} s at most."
        )
        self._folder = folder
        self._progress = progress
        self._sections: list[Section] = []
        self._missing: list[str] = []

    @property
    def report(self) -> Report:
        sections = sorted(self._sections, key=lambda section: ORDER.index(section.title))
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

    def measure(self, title: str, conditions: str, peer: str | None, rows: Iterable[Row]) -> None:
        self._progress(f"{title}:")
        found: list[Row] = []
        try:
            for row in rows:
                found.append(row)
        except ReplicationError as error:
            self.lacks(f"{title}: {error}")
        if found:
            self._sections.append(Section(title=title, peer=peer, conditions=conditions, rows=found))
        write(self.report, self._folder)


# Beside Kafka


def _produced(sides: Sequence[Side], plan: Plan, progress: Progress) -> Iterator[Row]:
    for found in produce.produce(sides, plan.producing, mib=plan.produced_mib, rounds=plan.rounds, progress=progress):
        producers = "" if found.producers == 1 else f", {found.producers} producers"
        what = f"{_sizes(found)}, {_counted(found.partitions)}{producers}"
        yield _rate(what, found)
        yield Row(
            what=f"brokers, {what}",
            unit="CPU s/GB",
            ours=found.broker_cpu_s_per_gb,
            theirs=found.kafka_broker_cpu_s_per_gb,
            ratio=found.broker_cpu_ratio,
        )


def _acknowledged(sides: Sequence[Side], plan: Plan, progress: Progress) -> Iterator[Row]:
    for found in ack.ack(sides, plan.pacing, seconds=plan.paced_s, rounds=plan.rounds, progress=progress):
        yield from _waits(f"{found.rows_per_s:,} rows of {_bytes(found.row_bytes)} a second", found)


def _acknowledged_beside(sides: Sequence[Side], plan: Plan, progress: Progress) -> Iterator[Row]:
    cases = [msgspec.structs.replace(plan.pacing[0], meanwhile=each) for each in plan.meanwhile]
    for found in ack.ack(sides, cases, seconds=BESIDE_S, rounds=plan.rounds, progress=progress):
        yield from _waits(f"{found.meanwhile}, {found.rows_per_s:,} rows of {_bytes(found.row_bytes)} a second", found)
        ours, theirs = found.meanwhile_mb_per_s, found.kafka_meanwhile_mb_per_s
        assert ours is not None, "something goes on"
        ratio = None if theirs is None else round(ours / theirs, 2)
        yield Row(what=f"{found.meanwhile} beside them", unit="MB/s", ours=ours, theirs=theirs, ratio=ratio)


def _waits(what: str, found: ack.Figures) -> Iterator[Row]:
    for name, ours, theirs, ratio in (
        ("median", found.p50_ms, found.kafka_p50_ms, found.p50_ratio),
        ("99 %", found.p99_ms, found.kafka_p99_ms, found.p99_ratio),
        ("99.9 %", found.p999_ms, found.kafka_p999_ms, found.p999_ratio),
    ):
        yield Row(what=f"{what}, {name}", unit="ms", ours=ours, theirs=theirs, ratio=ratio)


def _consumed(sides: Sequence[Side], plan: Plan, progress: Progress) -> Iterator[Row]:
    for found in consume.consume(sides, plan.consuming, mib=plan.consumed_mib, rounds=plan.rounds, progress=progress):
        yield _rate(f"{_sizes(found)}, {_counted(found.partitions)}", found)


def _met(sides: Sequence[Side], plan: Plan, progress: Progress) -> Iterator[Row]:
    for found in outage.outage(sides, plan.outages, rounds=plan.rounds, progress=progress):
        of = f"{found.led:,} of {found.partitions:,} partitions"
        for name, ours, theirs, ratio in (
            ("have a new leader", found.elected_ms, found.kafka_elected_ms, found.elected_ratio),
            ("take rows again", found.written_ms, found.kafka_written_ms, found.written_ratio),
        ):
            yield Row(what=f"{of} {name}", unit="ms", ours=ours, theirs=theirs, ratio=ratio)


def _through_spark(sides: Sequence[Side], plan: Plan, progress: Progress) -> Iterator[Row]:
    from spark_replication.admin.bench import spark  # pyspark is heavy

    peer = None
    for kafka in sides[1:]:
        for number in range(1 + plan.rounds.most):
            kafka.create(f"bench-{number}", SPARK_PARTITIONS, {})
        jars = sorted(connector_jars(progress).glob("*.jar"))
        peer = spark.Kafka(kafka.bootstrap, ",".join(map(str, jars)))
    sizes = {"rows": plan.spark_rows, "partitions": SPARK_PARTITIONS}
    measured = spark.measure(master=SPARK_MASTER, kafka=peer, progress=progress, rounds=plan.rounds, **sizes)
    found = {each.what: each.mb_per_s for each in measured}
    for what in ("write", "read", "stream"):
        ours, theirs = found[f"{what} log"], found.get(f"{what} kafka")
        ratio = None if theirs is None else round(ours / theirs, 2)
        yield Row(what=f"{what}, {SPARK_PARTITIONS} partitions", unit="MB/s", ours=ours, theirs=theirs, ratio=ratio)


def _rate(what: str, found: produce.Figures | consume.Figures) -> Row:
    return Row(
        what=what,
        unit="MB/s",
        ours=found.mb_per_s,
        theirs=found.kafka_mb_per_s,
        ratio=found.ratio,
        least_ratio=found.least_ratio,
        most_ratio=found.most_ratio,
    )


# Beside a limit, or alone


def _replicated(plan: Plan, progress: Progress) -> Iterator[Row]:
    for found in replicate.replicate(plan.sizes, plan.partitions, seconds=2.0, rounds=2, progress=progress):
        what = f"batches of {_bytes(found.batch_bytes)}, {_counted(found.partitions)}"
        yield Row(what=what, unit="MB/s", ours=found.mb_per_s, theirs=found.bare_mb_per_s, ratio=found.ratio)
        yield Row(
            what=f"{what}, median",
            unit="ms",
            ours=found.p50_ms,
            theirs=found.bare_p50_ms,
            ratio=round(found.bare_p50_ms / found.p50_ms, 2),
        )


def _lost(many: Filled, _: Plan, progress: Progress) -> Iterator[Row]:
    """A broker, as the cluster itself tells it."""
    for found in failover.failover(many, progress):
        of = f"{found.led:,} of {found.partitions:,} partitions, told by {found.told_by}"
        for name, took_ms in (
            ("each has a new leader", found.elected_ms),
            ("each new leader has confirmed", found.active_ms),
            ("all changes are stored", found.stored_ms),
            ("the Delta table shows them", found.shown_ms),
        ):
            yield Row(what=f"{of}: {name}", unit="ms", ours=took_ms)


def _taken_over(many: Filled, _: Plan, progress: Progress) -> Iterator[Row]:
    for found in takeover.takeover(many, progress):
        what = f"{found.partitions:,} partitions, controller {found.successor}: each broker has been told"
        yield Row(what=what, unit="ms", ours=found.told_ms)


def _idled(many: Filled, plan: Plan, progress: Progress) -> Iterator[Row]:
    for found in idle.idle(many, plan.idle_s, progress):
        what = f"{found.process}, {found.partitions:,} partitions"
        yield Row(what=what, unit="% of a processor", ours=found.cpu_percent)
        yield Row(what=what, unit="MB", ours=found.memory_mb)


def _sizes(of: Rows) -> str:
    return f"rows of {_bytes(of.row_bytes)}, batches of {_bytes(of.batch_bytes)}"


def _bytes(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def _counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


_ALIKE = "Three brokers, three replicas of which two must have a row, acks=all, no sync of the disk"
COMPARED: Sequence[tuple[str, str, Callable[[Sequence[Side], Plan, Progress], Iterator[Row]]]] = (
    (
        "Produce",
        f"{_ALIKE}; producers in processes of their own, 64 MiB unanswered at most, logs that keep 64 MiB. Our rows "
        "are Arrow batches, checked where they are stored; Kafka's are records that brokers do not look into.",
        _produced,
    ),
    ("Acknowledge", f"{_ALIKE}; one row at a time, each when it is due, lingering for no other.", _acknowledged),
    (
        "Acknowledge while others work",
        f"{_ALIKE}; meanwhile one reader reads another topic of {beside.MIB} MiB again and again, as fast as each side "
        f"does it (catch-up) or as fast on either side (paced-catch-up), or a replica of each of its "
        f"{beside.ROWS.partitions} partitions moves to another broker and back (reassignment).",
        _acknowledged_beside,
    ),
    ("Consume", "What was written a moment before; one reader, in a process of its own.", _consumed),
    (
        "Outage",
        f"{_ALIKE}; kill -9 of a broker that leads a third of all partitions, to which a producer writes from then on. "
        "Our brokers' deaths are reported by their guardians; Kafka's session is 3 s, where 9 are usual. Its active "
        "controller lives on, as ours does.",
        _met,
    ),
    (
        "Spark",
        "One session, two tasks at a time; each side by its own connector, as DataFrames and as a stream that takes "
        "all there is. MB are those of the rows as Arrow has them. Our topics have columns; Kafka's rows are JSON, "
        "which is made as they are written, and not taken apart as they are read.",
        _through_spark,
    ),
)
ALONE: Sequence[tuple[str, str, str | None, Callable[[Plan, Progress], Iterator[Row]]]] = (
    (
        "Replicate",
        "As Producer sends, acks=all, beside three processes that do nothing but move and write the same bytes.",
        "bare loop",
        _replicated,
    ),
)
OF_MANY: Sequence[tuple[str, str, Callable[[Filled, Plan, Progress], Iterator[Row]]]] = (
    ("Idle", "Nobody writes.", _idled),
    ("Takeover", "kill -9 of the controller. A standby waits until its session ends.", _taken_over),
    ("Failover", "kill -9 of a broker, or its silence until its session ends; milliseconds since then.", _lost),
)
#: In the report. What needs no Kafka is measured first, while that is fetched.
ORDER = [title for title, *_ in (*COMPARED, *ALONE, *OF_MANY)]
