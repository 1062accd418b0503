"""`spark-replication bench …`: programs that measure. Each prints its figures, those of a limit or a peer measured in
the same run, and the ratio of the two: machines are noisy, ratios less so."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from spark_replication.admin.bench import (
    ack,
    consume,
    everything,
    failover,
    idle,
    latency,
    mirror,
    outage,
    produce,
    read,
    replicate,
    report,
    scale,
    secured,
    secured_changes,
    soak,
    takeover,
)
from spark_replication.admin.bench.beside import PACE_MB_PER_S
from spark_replication.admin.bench.cluster import filled
from spark_replication.admin.bench.decide import decide
from spark_replication.admin.bench.programs import WARM_UP_ROWS
from spark_replication.admin.bench.rounds import exactly
from spark_replication.admin.bench.side import Meanwhile, Paced, Rows
from spark_replication.admin.bench.sides import both
from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, output, show
from spark_replication.config import Settings
from spark_replication.core.controller.topics import PARTITIONS_MAX

SIZES = (4 << 10, 64 << 10, 1 << 20)

sizes = click.option(
    "--sizes",
    multiple=True,
    type=click.IntRange(8, 8 << 20),
    default=SIZES,
    show_default=True,
    help="bytes of a batch; given again and again",
)
seconds = click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="of each measurement"
)

no_kafka = click.option("--no-kafka", is_flag=True, help="ours alone; else Kafka is fetched the first time, 50 MB")


@click.group(cls=Group)
def bench() -> None:
    """Measure something, beside a limit measured in the same run."""
    # Like Ctrl-C: what was started for it ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@bench.command(name="all")
@click.option("--quick", is_flag=True, help="less of everything: minutes, not half an hour")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="for the report; one with the time in its name, if none is given",
)
@no_kafka
@output
def all_command(*, quick: bool, folder: Path | None, no_kafka: bool, output: Format) -> None:
    """Clients and Spark beside Kafka, brokers beside the machine's limit, failover, takeover and idling, in one run.

    A folder gets a table, its figures as JSON, and a chart of each comparison."""
    plan = everything.QUICK if quick else everything.FULL
    folder = folder or Path(f"bench-{datetime.now(UTC):%Y-%m-%dT%H-%M}")
    found = everything.everything(plan, folder, _progress, kafka=not no_kafka)
    try:
        from spark_replication.admin.bench import plots  # altair is an extra
    except ImportError:
        _progress("no charts: they need what `pip install 'spark_replication[notebook]'` installs")
    else:
        plots.draw(found.sections, folder)
    click.echo(report.table(found) if output == "table" else msgspec.json.encode(found).decode())
    _progress(f"the report is in {folder}")


@bench.command(name="decide")
@click.option(
    "--partitions",
    multiple=True,
    type=click.IntRange(min=1),
    default=(10_000, 100_000),
    show_default=True,
    help="how many the broker's failure touches; given twice, the ratio of the times per partition is told",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="the best of so many counts")
@output
def bench_decide(partitions: tuple[int, ...], rounds: int, output: Format) -> None:
    """A broker's failure, decided purely: what is to be stored, and who is told. No ZooKeeper, no network."""
    measured = [decide(count, rounds) for count in partitions]
    columns = (
        "partitions",
        "led_by_it",
        "decide_ms",
        "apply_ms",
        "announce_ms",
        "total_ms",
        "us_per_partition",
        "bare_ms",
        "ratio",
    )
    rows = [[getattr(figures, name) for name in columns] for figures in measured]
    show(columns, rows, output=output)
    if output == "table":
        click.echo(
            "bare: making the same states, writes and commands of ready values, which nothing that decides can beat."
        )
        if len(measured) > 1:
            grown = measured[-1].us_per_partition / measured[0].us_per_partition
            click.echo(f"per partition, {partitions[-1]} cost {grown:.2f} times what {partitions[0]} cost")


@bench.command(name="soak")
@click.option("--minutes", type=click.FloatRange(min=0.05), default=45.0, show_default=True)
@click.option("--batches-per-s", type=click.IntRange(min=1), default=150, show_default=True, help="of 64 rows")
@click.option("--kill-every", type=click.FloatRange(min=1.0), default=60.0, show_default=True, help="seconds")
@click.option("--widen-every", type=click.FloatRange(min=1.0), default=60.0, show_default=True, help="seconds")
@click.option("--sample-every", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="seconds")
@click.option("--seed", type=int, default=1, show_default=True, help="which broker is killed")
@output
def soak_command(
    *,
    minutes: float,
    batches_per_s: int,
    kill_every: float,
    widen_every: float,
    sample_every: float,
    seed: int,
    output: Format,
) -> None:
    """A mixed load for a long time, with dying brokers and wider schemas: what grows, and by how much an hour."""
    plan = soak.Plan(
        seconds=minutes * 60,
        batches_per_s=batches_per_s,
        kill_s=kill_every,
        widen_s=widen_every,
        sample_s=sample_every,
        seed=seed,
    )
    _show_figures(soak.COLUMNS, soak.soak(plan, _progress), output)


@bench.command(name="scale")
@click.option(
    "--partitions", multiple=True, type=click.IntRange(min=1), default=(1_000, 10_000, 100_000), show_default=True
)
@click.option("--brokers", multiple=True, type=click.IntRange(min=3), default=(3, 5, 9), show_default=True)
@click.option("--of-partitions", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--of-brokers", type=click.IntRange(min=3), default=100, show_default=True)
@output
def scale_command(
    *, partitions: tuple[int, ...], brokers: tuple[int, ...], of_partitions: int, of_brokers: int, output: Format
) -> None:
    """What a partition costs the controller, measured; and what a cluster needs in which it costs the last of that."""
    clusters = [scale.Cluster(brokers=each, partitions=count) for count in partitions for each in brokers]
    costs = list(scale.measure(clusters, _progress))
    needs = scale.needs(costs[-1], scale.Cluster(brokers=of_brokers, partitions=of_partitions))
    if output == "json":
        click.echo(msgspec.json.encode({"costs": costs, "needs": needs}).decode())
        return
    _show_figures(scale.Costs.__struct_fields__, costs, output)
    click.echo(f"{of_partitions:,} partitions on {of_brokers} brokers would need:")
    _show_figures(scale.Need.__struct_fields__, needs, output)


@bench.command(name="secured")
@sizes
@seconds
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="in turns; medians count")
@output
def secured_command(*, sizes: tuple[int, ...], seconds: float, rounds: int, output: Format) -> None:
    """What security.mode costs: MB/s, the brokers' CPU and acknowledgements with token and with tls, beside none."""
    found = secured.secured(sizes, seconds=seconds, rounds=rounds, progress=_progress)
    _show_figures(secured.COLUMNS, found, output)


@bench.command(name="replicate")
@sizes
@click.option("--partitions", multiple=True, type=click.IntRange(1, 900), default=(1, 16, 512), show_default=True)
@seconds
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="the best of so many counts")
@output
def replicate_command(
    sizes: tuple[int, ...], partitions: tuple[int, ...], seconds: float, rounds: int, output: Format
) -> None:
    """acks=all through three broker processes, beside a bare loop that moves the same bytes: rate, CPU, latency."""
    found = replicate.replicate(sizes, partitions, seconds=seconds, rounds=rounds, progress=_progress)
    _show_figures(replicate.COLUMNS, found, output)


@bench.command(name="latency")
@click.option("--sizes", multiple=True, type=click.IntRange(8, 8 << 20), default=(SIZES[0],), show_default=True)
@click.option("--partitions", multiple=True, type=click.IntRange(1, 900), default=(1,), show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option("--batches-per-s", type=click.IntRange(1, 10_000), default=200, show_default=True)
@output
def latency_command(
    sizes: tuple[int, ...], partitions: tuple[int, ...], *, seconds: float, batches_per_s: int, output: Format
) -> None:
    """How long an acks=all batch takes to its answer at a fixed rate, beside the bare loop."""
    found = latency.measure(sizes, partitions, seconds=seconds, batches_per_s=batches_per_s, progress=_progress)
    _show_figures(latency.COLUMNS, found, output)


@bench.command(name="read")
@click.option("--sizes", multiple=True, type=click.IntRange(8, 8 << 20), default=SIZES, show_default=True)
@click.option("--mib", type=click.IntRange(min=1), default=512, show_default=True, help="how much there is to read")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="the best of so many counts")
@output
def read_command(sizes: tuple[int, ...], mib: int, rounds: int, output: Format) -> None:
    """A partition read by our Reader, beside a bare socket; by DoGet, beside Flight alone; and from a broker's files,
    beside pyarrow mapping them."""
    found = read.read(sizes, total_bytes=mib << 20, rounds=rounds, progress=_progress)
    _show_figures(read.COLUMNS, found, output)


row_bytes = click.option(
    "--row-bytes", multiple=True, type=click.IntRange(1, 1 << 20), default=(1 << 10,), show_default=True
)
batch_bytes = click.option(
    "--batch-bytes", multiple=True, type=click.IntRange(8, 4 << 20), default=SIZES, show_default=True
)
rounds_compared = click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="the median counts"
)
warm_up_s = click.option(
    "--warm-up-s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help=f"at most, for each side: it is warm after {WARM_UP_ROWS:,} rows, and once its rate is steady",
)


@bench.command(name="produce")
@row_bytes
@batch_bytes
@click.option("--partitions", multiple=True, type=click.IntRange(1, 1_000), default=(1,), show_default=True)
@click.option("--producers", multiple=True, type=click.IntRange(1, 64), default=(1,), show_default=True)
@click.option(
    "--mib",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help=f"in each round, or {produce.BATCHES_MAX:,} batches",
)
@rounds_compared
@warm_up_s
@no_kafka
@output
def produce_command(
    *,
    row_bytes: tuple[int, ...],
    batch_bytes: tuple[int, ...],
    partitions: tuple[int, ...],
    producers: tuple[int, ...],
    mib: int,
    rounds: int,
    warm_up_s: float,
    no_kafka: bool,
    output: Format,
) -> None:
    """Producers in processes of their own, acks=all, beside Kafka's: rate, and processor time of brokers and client."""
    cases = [
        produce.Case(row_bytes=row, batch_bytes=batch, partitions=count, producers=clients)
        for row, batch, count, clients in product(row_bytes, batch_bytes, partitions, producers)
    ]
    with both(_progress, kafka=not no_kafka, warm_up_s=warm_up_s) as sides:
        found = _told(produce.produce(sides, cases, mib=mib, rounds=exactly(rounds, warm_up_s), progress=_progress))
        _show_figures(produce.COLUMNS, found, output)


@bench.command(name="consume")
@row_bytes
@batch_bytes
@click.option("--partitions", multiple=True, type=click.IntRange(1, 100), default=(3,), show_default=True)
@click.option("--mib", type=click.IntRange(min=1), default=512, show_default=True, help="in each round")
@rounds_compared
@warm_up_s
@no_kafka
@output
def consume_command(
    *,
    row_bytes: tuple[int, ...],
    batch_bytes: tuple[int, ...],
    partitions: tuple[int, ...],
    mib: int,
    rounds: int,
    warm_up_s: float,
    no_kafka: bool,
    output: Format,
) -> None:
    """A reader in a process of its own, of what was just written, beside Kafka's consumer."""
    cases = [
        Rows(row_bytes=row, batch_bytes=batch, partitions=count)
        for row, batch, count in product(row_bytes, batch_bytes, partitions)
    ]
    with both(_progress, kafka=not no_kafka, warm_up_s=warm_up_s) as sides:
        found = _told(consume.consume(sides, cases, mib=mib, rounds=exactly(rounds, warm_up_s), progress=_progress))
        _show_figures(consume.COLUMNS, found, output)


@bench.command(name="ack")
@row_bytes
@click.option("--rows-per-s", multiple=True, type=click.IntRange(1, 10_000), default=(200, 2_000), show_default=True)
@click.option("--partitions", multiple=True, type=click.IntRange(1, 1_000), default=(1,), show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=15.0, show_default=True, help="of each round, after a warm-up"
)
@click.option(
    "--meanwhile",
    multiple=True,
    type=click.Choice(get_args(Meanwhile)),
    default=("nothing",),
    show_default=True,
    help=f"catch-up: somebody reads another topic as fast as it goes; paced-catch-up: with {PACE_MB_PER_S} MB/s; "
    "reassignment: its replicas move",
)
@rounds_compared
@warm_up_s
@no_kafka
@output
def ack_command(
    *,
    row_bytes: tuple[int, ...],
    rows_per_s: tuple[int, ...],
    partitions: tuple[int, ...],
    seconds: float,
    meanwhile: tuple[Meanwhile, ...],
    rounds: int,
    warm_up_s: float,
    no_kafka: bool,
    output: Format,
) -> None:
    """A producer that sends one row at a time, acks=all, beside Kafka's: how long each waits to be acknowledged."""
    cases = [
        Paced(row_bytes=row, rows_per_s=pace, partitions=count, meanwhile=other)
        for row, pace, count, other in product(row_bytes, rows_per_s, partitions, meanwhile)
    ]
    with both(_progress, kafka=not no_kafka, warm_up_s=warm_up_s) as sides:
        found = _told(ack.ack(sides, cases, seconds=seconds, rounds=exactly(rounds, warm_up_s), progress=_progress))
        _show_figures(ack.COLUMNS, found, output)


@bench.command(name="outage")
@click.option(
    "--partitions",
    multiple=True,
    type=click.IntRange(3, PARTITIONS_MAX),
    default=(1_000,),
    show_default=True,
    help="of one topic, with three replicas each; given again and again",
)
@rounds_compared
@warm_up_s
@no_kafka
@output
def outage_command(
    *, partitions: tuple[int, ...], rounds: int, warm_up_s: float, no_kafka: bool, output: Format
) -> None:
    """kill -9 of a broker that leads a third of all partitions, beside Kafka: until each of them takes rows again."""
    with both(_progress, kafka=not no_kafka, warm_up_s=warm_up_s) as sides:
        found = _told(outage.outage(sides, partitions, rounds=exactly(rounds), progress=_progress))
        _show_figures(outage.COLUMNS, found, output)


partitions_of_one_topic = click.option(
    "--partitions",
    type=click.IntRange(3, PARTITIONS_MAX),
    default=PARTITIONS_MAX,
    show_default=True,
    help="of one topic, with three replicas each",
)


session_ms = click.option(
    "--session-ms",
    type=click.IntRange(1_000, 60_000),
    default=Settings().zookeeper_session_ms,
    show_default=True,
    help="after which ZooKeeper gives up who is silent",
)


@bench.command(name="failover")
@partitions_of_one_topic
@session_ms
@click.option("--no-writes", is_flag=True, help="nobody writes, so that tables are written with nothing beside it")
@click.option(
    "--pages", type=click.IntRange(0, 200), default=0, show_default=True, help="compare with so many pages open"
)
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="the median counts")
@output
def failover_command(
    *, partitions: int, session_ms: int, no_writes: bool, pages: int, rounds: int, output: Format
) -> None:
    """kill -9 of a broker that leads a third of all partitions, beside one conditional write at a time."""
    writes = not no_writes
    with filled(partitions, session_ms, _progress) as many:
        found = _told(failover.failover(many, _progress, writes=writes, pages=pages, rounds=rounds))
        _show_figures(failover.COLUMNS, found, output)
    if output == "table":
        click.echo(
            "ms since the loss. gone: its registration; elected: each new leader is stored; active: each confirmed; "
            "shown: the Delta table says so of each; written: each partition that it led has acknowledged a write; "
            "stored: all changes, others' too; ratio: of sequential and what storing took."
        )


@bench.command(name="takeover")
@partitions_of_one_topic
@session_ms
@output
def takeover_command(partitions: int, session_ms: int, output: Format) -> None:
    """kill -9 of the controller, whose process is started again, or for which another stands by."""
    with filled(partitions, session_ms, _progress) as many:
        _show_figures(takeover.COLUMNS, _told(takeover.takeover(many, _progress)), output)
    if output == "table":
        click.echo("ms since the kill. A standby waits for the session's end, which is part of its figures.")


@bench.command(name="secured-changes")
@click.option(
    "--partitions",
    type=click.IntRange(3, PARTITIONS_MAX),
    default=1_000,
    show_default=True,
    help="of one topic, with three replicas each",
)
@session_ms
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="in turns; medians count")
@output
def secured_changes_command(*, partitions: int, session_ms: int, rounds: int, output: Format) -> None:
    """kill -9 of the controller, then of a broker, with TLS to ZooKeeper, beside a cluster without."""
    found = secured_changes.secured_changes(partitions, session_ms=session_ms, rounds=rounds, progress=_progress)
    _show_figures(secured_changes.COLUMNS, found, output)


@bench.command(name="idle")
@partitions_of_one_topic
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@output
def idle_command(partitions: int, seconds: float, output: Format) -> None:
    """CPU, memory, threads and open files of brokers and controller while nobody writes."""
    with filled(partitions, Settings().zookeeper_session_ms, _progress) as many:
        _show_figures(idle.COLUMNS, idle.idle(many, seconds, _progress), output)


@bench.command(name="mirror")
@click.option(
    "--partitions", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="rows of the table"
)
@click.option(
    "--changed",
    multiple=True,
    type=click.IntRange(min=1),
    default=(1, 100, 3_333, 10_000),
    show_default=True,
    help="how many change at one time; given again and again",
)
@click.option("--writes", type=click.IntRange(min=1), default=20, show_default=True, help="of each")
@click.option("--commits", type=click.IntRange(min=1), help="instead: so many changes of one partition, one by one")
@output
def mirror_command(
    *, partitions: int, changed: tuple[int, ...], writes: int, commits: int | None, output: Format
) -> None:
    """How far the Delta tables are behind the controller, beside a plain append; or what they grow to."""
    if commits is not None:
        _show_figures(mirror.COMMITS_COLUMNS, [mirror.commits(partitions, commits, _progress)], output)
        return
    _show_figures(mirror.LAG_COLUMNS, _told(mirror.lag(partitions, changed, writes, _progress)), output)


@bench.command(name="spark")
@click.option("--rows", type=click.IntRange(min=1), default=2_000_000, show_default=True)
@click.option("--partitions", type=click.IntRange(1, 1_000), default=12, show_default=True)
@click.option("--master", default="local[2]", show_default=True, help="of Spark")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="after one that does not count"
)
@click.option("--triggers", type=click.IntRange(min=1), help="instead: so many micro-batches of one row")
@click.option("--where", is_flag=True, help="instead: where the time of a read goes")
@click.option("--kafka", help="host:port of a Kafka that runs, with topics that are made as they are written to")
@click.option("--kafka-jars", default="", help="of Spark's connector for it, separated by commas")
@output
def spark_command(
    *,
    rows: int,
    partitions: int,
    master: str,
    rounds: int,
    triggers: int | None,
    where: bool,
    kafka: str | None,
    kafka_jars: str,
    output: Format,
) -> None:
    """Rows through Spark, batch and stream, read and written: a topic beside Parquet files and, if one runs, Kafka."""
    from spark_replication.admin.bench import spark  # pyspark is heavy

    sizes = {"rows": rows, "partitions": partitions}
    if where:
        times = spark.read_times(master=master, progress=_progress, rounds=exactly(rounds), **sizes)
        _show_figures(spark.TIME_COLUMNS, _told(times), output)
        return
    peer = None if kafka is None else spark.Kafka(kafka, kafka_jars)
    if triggers is not None:
        measured_triggers = spark.triggers(triggers, master=master, kafka=peer, progress=_progress)
        _show_figures(spark.TRIGGER_COLUMNS, _told(measured_triggers), output)
        return
    measured = spark.measure(master=master, kafka=peer, progress=_progress, rounds=exactly(rounds), **sizes)
    _show_figures(spark.COLUMNS_SHOWN, _told(measured), output)


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _told(found: Iterable[Any]) -> Iterator[Any]:
    """Tell each of the figures as it comes: all of them take minutes."""
    for figures in found:
        _progress(f"{figures}")
        yield figures


def _show_figures(columns: tuple[str, ...], found: Iterable[Any], output: Format) -> None:
    show(columns, [[getattr(figures, name) for name in columns] for figures in found], output=output)
