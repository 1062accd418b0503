"""`spark-replication bench …`: programs that measure. Each prints its figures, those of a limit or a peer measured in
the same run, and the ratio of the two: machines are noisy, ratios less so.

Here a case, its sides and its rounds are made from options. What is measured is in admin.bench.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import click
import msgspec

from spark_replication.admin.bench import columns, everything, report, scale, soak, tables
from spark_replication.admin.bench.decide import decide
from spark_replication.admin.bench.failover import LoseBroker, LoseController, Loss, Writes, filled, settings
from spark_replication.admin.bench.harness import WARM_UP_ROWS, Case, Harness, Rounds, Row
from spark_replication.admin.bench.losses import Successor
from spark_replication.admin.bench.side import Door
from spark_replication.admin.bench.sides import PLAIN, Peer, all_sides, clusters, kafka, starts, warm
from spark_replication.admin.bench.tables import TablePart
from spark_replication.admin.bench.traffic import BATCHES_MAX, PACE_MB_PER_S, Acknowledge, Consume, Meanwhile, Produce
from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, output, show, show_json
from spark_replication.config import SecurityMode, Settings
from spark_replication.core.controller.topics import PARTITIONS_MAX

Option = Callable[[Callable[..., None]], Callable[..., None]]
SIZES = (4 << 10, 64 << 10, 1 << 20)


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _numbers(name: str, least: int, most: int, default: int | Sequence[int], what: str) -> Option:
    """An option that may be given again and again: each is measured."""
    given = (default,) if isinstance(default, int) else tuple(default)
    return click.option(
        name, multiple=True, type=click.IntRange(least, most), default=given, show_default=True, help=what
    )


def _words(name: str, kind: Any, default: Sequence[str], what: str) -> Option:
    return click.option(
        name, multiple=True, type=click.Choice(get_args(kind)), default=tuple(default), show_default=True, help=what
    )


row_bytes = _numbers("--row-bytes", 1, 1 << 20, 1 << 10, "of a row; each option with a list may be given again")
batch_bytes = _numbers("--batch-bytes", 8, 4 << 20, SIZES, "of a batch")
mib = click.option("--mib", type=click.IntRange(min=1), default=512, show_default=True, help="in each round")
rounds = click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="in turns; the median counts"
)

warm_up_s = click.option(
    "--warm-up-s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help=f"at most, for each side: it is warm after {WARM_UP_ROWS:,} rows, and once its rate is steady",
)


class Comparison(NamedTuple):
    """What is beside ours, and how often and in which form it is told."""

    harness: Harness
    #: Of our clusters: one for each.
    modes: tuple[SecurityMode, ...]
    #: None given: the default.
    beside: tuple[str, ...]
    output: Format
    #: Whether each side runs beside nothing.
    apart: bool = False

    @property
    def peers(self) -> list[Peer]:
        given = self.beside or (("kafka",) if self.modes == PLAIN else ())
        return [cast(Peer, each) for each in given if each != "nothing"]

    def show(self, cases: Sequence[Case[Any]], sides: Sequence[Any] = ()) -> None:
        with ExitStack() as running:
            if self.apart:
                apart = starts(self.harness, self.peers, self.modes)
                found = (row for case in cases for row in self.harness.measure_apart(case, apart))
            else:
                among = sides or running.enter_context(all_sides(self.harness, self.peers, self.modes))
                found = (row for case in cases for row in self.harness.measure(case, among))
            _show(found, self.output)


def compared(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `comparison` to the command."""

    @_words("--security", SecurityMode, PLAIN, "of our cluster; several are measured beside each other")
    @click.option(
        "--beside",
        multiple=True,
        type=click.Choice((*get_args(Peer), "nothing")),
        help="Kafka, which is fetched the first time, 50 MB; or the bare limit of the machine  [default: kafka, but "
        "nothing beside several modes of security]",
    )
    @rounds
    @warm_up_s
    @output
    @wraps(command)
    def with_comparison(
        *,
        security: tuple[SecurityMode, ...],
        beside: tuple[str, ...],
        rounds: int,
        warm_up_s: float,
        output: Format,
        **others: Any,
    ) -> None:
        harness = Harness(Rounds(rounds, rounds), warm_up_s, _progress)
        command(comparison=Comparison(harness, security, beside, output), **others)

    return with_comparison


apart = click.option(
    "--apart",
    is_flag=True,
    help="start each side anew for each of its rounds, beside nothing; else all run, and each costs the others time",
)
session_ms = click.option(
    "--session-ms",
    type=click.IntRange(1_000, 60_000),
    default=Settings().zookeeper_session_ms,
    show_default=True,
    help="after which ZooKeeper gives up who is silent",
)


@click.group(cls=Group)
def bench() -> None:
    """Measure something, beside a limit or a peer measured in the same run."""
    # Like Ctrl-C: what was started for it ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@bench.command(name="all")
@click.option("--quick", is_flag=True, help="less of everything: minutes, not half an hour")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(everything.PARTS)),
    help="these parts  [default: all but "
    f"{', '.join(name for name, part in everything.PARTS.items() if not part.is_usual)}]",
)
@click.option(
    "--set",
    "assigned",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"how much is measured: {', '.join(everything.settable())}",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="for the report; one with the time in its name, if none is given",
)
@click.option("--no-kafka", is_flag=True, help="ours alone; else Kafka is fetched the first time, 50 MB")
@output
def all_command(
    *,
    quick: bool,
    only: tuple[str, ...],
    assigned: tuple[str, ...],
    folder: Path | None,
    no_kafka: bool,
    output: Format,
) -> None:
    """Everything: clients and Spark beside Kafka, brokers beside the machine's limit, what fails, idling, the tables.

    A folder gets a table, its figures as JSON, and a chart of each comparison."""
    values = {name: value for name, _, value in (each.partition("=") for each in assigned)}
    plan = everything.with_values(everything.QUICK if quick else everything.FULL, values)
    folder = folder or Path(f"bench-{datetime.now(UTC):%Y-%m-%dT%H-%M}")
    found = everything.everything(plan, folder, _progress, only=only, with_kafka=not no_kafka)
    try:
        from spark_replication.admin.bench import plots  # altair is an extra
    except ImportError:
        _progress("no charts: they need what `pip install 'spark_replication[notebook]'` installs")
    else:
        plots.draw(found.sections, folder)
    click.echo(report.table(found) if output == "table" else msgspec.json.encode(found).decode())
    _progress(f"the report is in {folder}")


@bench.command(name="produce")
@row_bytes
@batch_bytes
@_numbers("--partitions", 1, 1_000, 1, "of the topic")
@_numbers("--producers", 1, 64, 1, "each a process")
@click.option(
    "--mib", type=click.IntRange(min=1), default=512, show_default=True, help=f"a round, or {BATCHES_MAX:,} batches"
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    type=click.IntRange(1, 10_000),
    help="instead of batches: so many single rows a second, and how long each waits to be acknowledged",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=15.0, show_default=True, help="of a round at a --rate"
)
@_words(
    "--meanwhile",
    Meanwhile,
    ("nothing",),
    "at a --rate. catch-up: somebody reads another topic as fast as it goes; paced-catch-up: with "
    f"{PACE_MB_PER_S} MB/s; reassignment: its replicas move",
)
@apart
@compared
def produce_command(
    *,
    row_bytes: tuple[int, ...],
    batch_bytes: tuple[int, ...],
    partitions: tuple[int, ...],
    producers: tuple[int, ...],
    mib: int,
    rates: tuple[int, ...],
    seconds: float,
    meanwhile: tuple[Meanwhile, ...],
    apart: bool,
    comparison: Comparison,
) -> None:
    """Producers in processes of their own, acks=all: rate, and processor time of brokers and clients. With --rate, how
    long rows wait."""
    cases: list[Case[Any]] = [
        Produce(row_bytes=row, batch_bytes=batch, partitions=count, producers=clients, mib=mib)
        for row, batch, count, clients in product(row_bytes, batch_bytes, partitions, producers)
    ]
    if rates:
        cases = [
            Acknowledge(row_bytes=row, rows_per_s=rate, partitions=count, seconds=seconds, meanwhile=other)
            for row, rate, count, other in product(row_bytes, rates, partitions, meanwhile)
        ]
    if "bare" in comparison.peers and rates and "reassignment" in meanwhile:
        raise click.UsageError("the bare loop has no replicas that move: leave out --beside bare, or reassignment")
    comparison._replace(apart=apart).show(cases)


@bench.command(name="consume")
@row_bytes
@batch_bytes
@_numbers("--partitions", 1, 100, 3, "of the topic")
@mib
@_words(
    "--by",
    Door,
    ("reader",),
    "our Reader; DoGet, as any client of Arrow Flight; or the files of a broker on the same host",
)
@apart
@compared
def consume_command(
    *,
    row_bytes: tuple[int, ...],
    batch_bytes: tuple[int, ...],
    partitions: tuple[int, ...],
    mib: int,
    by: tuple[Door, ...],
    apart: bool,
    comparison: Comparison,
) -> None:
    """A reader in a process of its own, of what was just written. Beside the bare limit, which is a socket, Flight
    alone or a memory map, both look at each byte."""
    looks = "bare" in comparison.peers
    cases = [
        Consume(row_bytes=row, batch_bytes=batch, partitions=count, mib=mib, door=door, looks=looks)
        for row, batch, count, door in product(row_bytes, batch_bytes, partitions, by)
    ]
    comparison._replace(apart=apart).show(cases)


@bench.command(name="columns")
@_numbers("--batch-bytes", 1 << 10, 4 << 20, (64 << 10, 1 << 20), "of a batch")
@_numbers("--partitions", 1, 100, 1, "of the topic")
@mib
@warm_up_s
@rounds
@output
def columns_command(
    *,
    batch_bytes: tuple[int, ...],
    partitions: tuple[int, ...],
    mib: int,
    warm_up_s: float,
    rounds: int,
    output: Format,
) -> None:
    """A topic of 20 columns as a table: 1 and 5 of them beside all, and all beside what a Reader gives of them.

    Whoever keeps all rows is beside whoever keeps them, too: memory that a process uses for the first time is slow."""
    harness = Harness(Rounds(rounds, rounds), warm_up_s, _progress)
    cases = [
        columns.ReadColumns(batch_bytes=batch, partitions=count, mib=mib)
        for batch, count in product(batch_bytes, partitions)
    ]
    with clusters(harness) as (side,):
        _show(columns.measure(cases, side, harness), output)


@bench.command(name="tables")
@_words("--of", TablePart, get_args(TablePart), "what is measured of topics that are tables")
@batch_bytes
@mib
@_numbers("--rate", 1, 10_000, 200, "so many single rows a second, and how long each waits")
@click.option("--commits", type=click.IntRange(min=2), default=10_000, show_default=True, help="to one table")
@click.option("--topics", type=click.IntRange(1, 10_000), default=100, show_default=True, help="of one cluster")
@_numbers("--flush-ms", 100, 3_600_000, 1_000, "table.flush.ms: a round of single rows lasts for three of them")
@rounds
@warm_up_s
@output
def tables_command(
    *,
    of: tuple[TablePart, ...],
    batch_bytes: tuple[int, ...],
    mib: int,
    rate: tuple[int, ...],
    commits: int,
    topics: int,
    flush_ms: tuple[int, ...],
    rounds: int,
    warm_up_s: float,
    output: Format,
) -> None:
    """Topics that are tables: producers beside writers and without, files beside those of delta-rs, many commits, and
    the memory of a writer of many topics."""
    harness = Harness(Rounds(rounds, rounds), warm_up_s, _progress)
    cases = [case for each in flush_ms for case in tables.producing(batch_bytes, mib, rate, each)]
    _show(tables.measure(of, cases, harness, mib=mib, commits=commits, topics=topics), output)


@bench.command(name="failover")
@click.option(
    "--of",
    type=click.Choice(("broker", "controller")),
    multiple=True,
    default=("broker",),
    show_default=True,
    help="who is lost: a broker that leads a third of all partitions, or the controller",
)
@click.option(
    "--partitions",
    type=click.IntRange(3, PARTITIONS_MAX),
    default=1_000,
    show_default=True,
    help="of one topic, with three replicas each",
)
@_words("--loss", Loss, ("killed",), "of a broker. silent: it is stopped, and only its session's end tells")
@click.option(
    "--write",
    type=click.Choice(get_args(Writes)),
    default="at-once",
    show_default=True,
    help="when somebody writes to what the broker led: from the loss on; once all of it is led; or never",
)
@_words(
    "--successor",
    Successor,
    ("restarted", "standby"),
    "of a controller: its process is started again, or another one stands by (with security, not measured)",
)
@click.option(
    "--pages",
    type=click.IntRange(0, 200),
    default=0,
    show_default=True,
    help="compare with so many pages open in browsers",
)
@session_ms
@compared
def failover_command(
    *,
    of: tuple[str, ...],
    partitions: int,
    loss: tuple[Loss, ...],
    write: Writes,
    successor: tuple[Successor, ...],
    pages: int,
    session_ms: int,
    comparison: Comparison,
) -> None:
    """Lose a broker or the controller: until all partitions have leaders, take rows again, are stored and shown.

    Milliseconds are those since the loss; a standby's and those of a silent broker have the session's end in them.
    Kafka is beside it only if a broker is lost and somebody writes at once."""
    cases: list[Case[Any]] = []
    if "broker" in of:
        cases += [LoseBroker(partitions=partitions, loss=each, writes=write) for each in loss]
    if "controller" in of:
        cases += [LoseController(partitions=partitions, successor=each, session_ms=session_ms) for each in successor]
    harness, modes = comparison.harness, comparison.modes
    kafka_can = of == ("broker",) and write == "at-once" and not pages
    if set(comparison.beside) - {"nothing", "kafka" if kafka_can else None}:
        raise click.UsageError(
            "beside it is Kafka, if a broker is lost, somebody writes at once and no pages are compared; else nothing"
        )
    if "controller" in of and "standby" in successor and modes != PLAIN:
        raise click.UsageError("no controller stands by that knows a cluster's secrets: add --successor restarted")
    with ExitStack() as running:
        ours = running.enter_context(clusters(harness, modes, settings(session_ms)))
        others: list[Any] = [each.with_pages(pages) for each in ours if pages]
        if kafka_can and "kafka" in comparison.peers and (theirs := running.enter_context(kafka(harness))) is not None:
            others.append(theirs)
            warm(harness, [*ours, *others])
        running.enter_context(filled(ours if pages else [*ours, *others], partitions, harness))
        comparison.show(cases, [*ours, *others])


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
    _show(soak.soak(plan, _progress), output)


@bench.command(name="scale")
@_numbers("--partitions", 1, 10_000_000, (1_000, 10_000, 100_000), "of a cluster that is measured")
@_numbers("--brokers", 3, 1_000, (3, 5, 9), "of a cluster that is measured")
@click.option("--of-partitions", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--of-brokers", type=click.IntRange(min=3), default=100, show_default=True)
@output
def scale_command(
    *, partitions: tuple[int, ...], brokers: tuple[int, ...], of_partitions: int, of_brokers: int, output: Format
) -> None:
    """What a partition costs the controller, measured; and what a cluster needs in which it costs the last of that."""
    sizes = [scale.Cluster(brokers=each, partitions=count) for count in partitions for each in brokers]
    costs = list(scale.measure(sizes, _progress))
    needs = scale.needs(costs[-1], scale.Cluster(brokers=of_brokers, partitions=of_partitions))
    if output == "json":
        click.echo(msgspec.json.encode({"costs": costs, "needs": needs}).decode())
        return
    for title, found in ((None, costs), (f"{of_partitions:,} partitions on {of_brokers} brokers would need:", needs)):
        if title is not None:
            click.echo(title)
        show(found[0].__struct_fields__, map(msgspec.structs.astuple, found), output=output)


@bench.command(name="decide")
@_numbers("--partitions", 1, 10_000_000, (10_000, 100_000), "how many the broker's failure touches")
@rounds
@output
def decide_command(partitions: tuple[int, ...], rounds: int, output: Format) -> None:
    """A broker's failure, decided purely: what is to be stored, and who is told. No ZooKeeper, no network.

    Bare is making the same states, writes and commands of ready values, which nothing that decides can beat."""
    _show((row for count in partitions for row in decide(count, rounds)), output)


def _show(found: Iterable[Row], output: Format) -> None:
    """Show all rows in the end; what came of each round was told before, since all of them take minutes."""
    rows = list(found)
    if output == "json":
        show_json(rows)
    else:
        show(*report.listing(rows), output=output)
