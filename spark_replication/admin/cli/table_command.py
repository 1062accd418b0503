"""`spark-replication table`: topics that are Delta tables, too: how far each is, who writes it by hand, and upkeep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any, NamedTuple

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import (
    Format,
    bootstrap,
    output,
    reach_ms,
    settings_options,
    show,
    tell_refused,
)
from spark_replication.admin.cli.progress_line import ProgressLine
from spark_replication.admin.tables_by_hand import PATIENCE_S, write_tables
from spark_replication.admin.tables_restored import PlannedRestore, TablesRestoring
from spark_replication.client.asking.admin import Admin
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.ranges import answered_ranges
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.config import Settings
from spark_replication.core.tables.flushing import FlushRules, LogTold, trouble_of
from spark_replication.core.tables.restoring import ThenRestored
from spark_replication.core.tables.table import TableVersion
from spark_replication.engine.client.table_writing import told_by, wanted_of
from spark_replication.errors import ReplicationError
from spark_replication.live.tables.agreement import differences
from spark_replication.live.tables.table_topics import TableTopic, table_topics
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.model import PartitionNumber
from spark_replication.process.threads import now_ms
from spark_replication.tables.places import read_table_options
from spark_replication.tables.verifying import faults_of
from spark_replication.transport.security.security import Security, read_security

ASK_MS = 10_000
ALL = FlushRules(flush_ms=0, file_bytes=1 << 40)

_COLUMNS = (
    "topic",
    "partition",
    "table_start",
    "table_end",
    "log_start",
    "log_end",
    "rows_behind",
    "seconds_behind",
    "bytes_behind",
    "epoch",
    "trouble",
)
_FOUND = ("topic", "cluster_id", "topic_id", "partitions", "rows", "ends", "columns", "then")
_OF_A_FAULT = ("topic", "partition", "what", "start", "end")


class _Reach(NamedTuple):
    """What opens the cluster and its tables."""

    bootstrap: str
    security: Security
    store: StoreOptions

    @contextmanager
    def routes(self) -> Iterator[Routes]:
        with closing(Routes(self.bootstrap, self.security, reach_ms=reach_ms())) as routes:
            yield routes

    def admin(self) -> Admin:
        return Admin(self.bootstrap, security=self.security, reach_ms=reach_ms())

    def reader(self) -> Reader:
        return Reader(self.bootstrap, security=self.security, prefer="near", reach_ms=reach_ms())


def _reaching(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `reach` to the command."""

    @settings_options
    @wraps(command)
    def reached(*arguments: Any, bootstrap: str, settings: Settings, **others: Any) -> None:
        reach = _Reach(bootstrap, read_security(settings), read_table_options(settings))
        command(*arguments, reach=reach, **others)

    found: Callable[..., None] = bootstrap(reached)
    return found


@click.group(cls=Group)
def table() -> None:
    """Topics that are Delta tables, too: the log is the newest part, the table has the rest."""


@table.command()
@_reaching
@output
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def status(reach: _Reach, output: Format, topics: tuple[str, ...]) -> None:
    """How far each table has the log of each partition, and what the log has that the table has not."""
    with reach.routes() as routes:
        rows = [row for topic in table_topics(routes, topics) for row in _status_of(routes, topic, reach.store)]
    show(_COLUMNS, rows, output=output)


def _status_of(routes: Routes, topic: TableTopic, store: StoreOptions) -> Iterable[Sequence[Any]]:
    version = topic.table(store).load()
    wanted = wanted_of(topic.name, version.ends, topic.metadata.numbers, ALL)
    found = answered_ranges(routes, wanted, Deadline(ASK_MS))
    told = {each.partition: told_by(each) for each in found.values()}
    for number in topic.metadata.numbers:
        yield topic.name, number, *_place_of(version, number, told.get(number))


def _place_of(version: TableVersion, number: PartitionNumber, told: LogTold | None) -> Sequence[Any]:
    start, end = version.starts.get(number), version.end_of(number)
    if told is None:
        return start, end, None, None, None, None, None, version.epoch_of(number), "no leader answers"
    trouble = trouble_of(version, number, told)
    behind = max(0, told.high_watermark - (told.log_start if end is None else end))
    seconds = 0.0 if told.first_ms is None or not behind else max(0, now_ms() - told.first_ms) / 1_000
    why = "" if trouble is None else trouble.value
    return start, end, told.log_start, told.high_watermark, behind, seconds, told.bytes, version.epoch_of(number), why


@table.command()
@_reaching
@click.option("--once", is_flag=True, help="end as soon as the tables have what is committed by now")
@click.option(
    "--wait",
    "patience_s",
    type=click.FloatRange(min=0),
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="with --once: for a partition that cannot be read or written",
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def write(reach: _Reach, *, once: bool, patience_s: float, topics: tuple[str, ...]) -> None:
    """Write the tables of these topics, or of all that are tables, until Ctrl-C.

    Any number of writers may do so at one time, anywhere, and be killed: each row gets there once."""
    with ProgressLine() as line:
        done = write_tables(*reach, topics, once=once, patience_s=patience_s, reach_ms=reach_ms(), progress=line.tell)
    click.echo(done, err=True)


@table.command()
@_reaching
@output
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def verify(reach: _Reach, output: Format, topics: tuple[str, ...]) -> None:
    """Whether each table has each offset of each partition once, from its first to its end, and the log's rows at the
    offsets that both have. Exit code 1: one has not."""
    found: list[Sequence[Any]] = []
    with reach.routes() as routes, reach.reader() as reader:
        for topic in table_topics(routes, topics):
            opened = topic.table(reach.store).last()
            if opened is None:
                click.echo(f"{topic.name}: there is no table yet", err=True)
                continue
            table, version = opened
            faults = [*faults_of(table, version), *differences(topic, reader, table, version)]
            said = f"{len(faults)} faults" if faults else "each offset is there once, as the log has it"
            click.echo(f"{topic.name}: {said}", err=True)
            found.extend((topic.name, each.partition, each.what, each.start, each.end) for each in faults)
    show(_OF_A_FAULT, found, output=output)
    if found:
        raise click.exceptions.Exit(1)


@table.command()
@_reaching
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def compact(reach: _Reach, topics: tuple[str, ...]) -> None:
    """Remove what table.retention.* no longer keep, join small files, shorten the tables' own logs, and remove files
    that no version has. Writers do so by themselves."""
    with reach.routes() as routes:
        for topic in table_topics(routes, topics):
            topic.upkeep(reach.store).tidy(topic.upkeep_rules)


@table.command()
@_reaching
@output
@click.option("--all", "is_all", is_flag=True, help="all tables that are found")
@click.option("--dry-run", is_flag=True, help="list the tables, and what would be made of them")
@click.option(
    "--take-over",
    "taken_over",
    multiple=True,
    metavar="CLUSTER_ID",
    help="of the tables of this cluster, too, of which no part is to go on with them",
)
@click.option("--path", help="with --dry-run: look there, and not where table.path of the cluster says")
@click.option("--replication-factor", "-r", type=click.IntRange(min=1), help="by default as the cluster says")
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def restore(
    reach: _Reach,
    output: Format,
    *,
    is_all: bool,
    dry_run: bool,
    taken_over: tuple[str, ...],
    path: str | None,
    replication_factor: int | None,
    topics: tuple[str, ...],
) -> None:
    """Make the topics again of which there are tables below table.path, after the cluster that had them is gone.

    Each goes on where its table ends, with the schema, the settings and the number of partitions that it had. What is
    done already is left as it is: after a failure, do the same again."""
    if bool(topics) == is_all and not (dry_run and not topics):
        raise click.UsageError("Name topics, or say --all; --dry-run lists what there is.")
    with reach.routes() as routes, closing(reach.admin()) as admin:
        restoring = TablesRestoring(routes, admin, reach.store, path=path, taken_over=taken_over)
        if dry_run:
            show(_FOUND, map(_found_row, restoring.planned(topics)), output=output)
            return
        tell_refused(dict(_restored(restoring, topics, replication_factor)))


def _found_row(planned: PlannedRestore) -> Sequence[Any]:
    found = planned.table
    partitions = len(found.version.ends) if found.outline is None else found.outline.partitions
    ends = [found.version.end_of(number) or 0 for number in range(partitions)]
    origin = found.origin
    return (
        *(found.topic, origin.cluster_id, origin.topic_id, partitions, found.row_count, ends, list(found.columns)),
        planned.then.value if isinstance(planned.then, ThenRestored) else f"is refused: {planned.then.message}",
    )


def _restored(
    restoring: TablesRestoring, topics: Collection[str], replication_factor: int | None
) -> Iterator[tuple[str, ReplicationError]]:
    """Restore them. Yields what was refused."""
    for planned in restoring.planned(topics):
        try:
            click.echo(restoring.restored(planned, replication_factor))
        except ReplicationError as error:
            yield planned.table.topic, error
