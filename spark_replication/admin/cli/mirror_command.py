"""`spark-replication mirror`: the contents of the Delta tables, and whether they are right."""

from __future__ import annotations

import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, admin_at, bootstrap, optional_bootstrap, output, security, show
from spark_replication.admin.cli.progress_line import ProgressLine
from spark_replication.admin.mirror_agreement import DIFFERENCE, Agreement, rebuilt, rows_of, told, verified
from spark_replication.messages.mirroring import EVENTS_MAX, DescribeEvents, ToldEvent
from spark_replication.mirror.asking.load import TABLES, read_events, read_groups, read_status, read_table
from spark_replication.mirror.asking.told_events import told_event, where_of
from spark_replication.mirror.delta.paths import DEFAULT_PATH
from spark_replication.mirror.tables.events import EVENTS, face_of
from spark_replication.mirror.tables.groups import GROUPS
from spark_replication.mirror.tables.status import STATUS
from spark_replication.model import TopicPartition
from spark_replication.transport.security.security import Security

COLUMNS = {
    "partitions": (
        *("topic", "partition", "leader", "leader_epoch", "active_epoch", "leader_since", "isr", "elr", "replicas"),
        *("state", "waiting_for", "elected_how", "zxid", "changed_at"),
    ),
    "brokers": ("broker", "host", "port", "rack", "epoch", "state", "zxid", "changed_at"),
    "topics": ("topic", "topic_id", "partitions", "schema_version", "settings", "zxid", "changed_at"),
    "groups": (
        *("group", "topic", "partition", "state", "position", "log_end", "lag_records", "lag_ms", "member", "host"),
        *("committed_at", "updated_at"),
    ),
}
EVENT_COLUMNS = ("at", "kind", "topic", "partition", "broker", "changes", "why", "because", "cause")
# Those of the table's columns that the controller tells.
TOLD_COLUMNS = tuple(name for name in EVENTS.schema.names if name in ("at", *ToldEvent.__struct_fields__))
STATUS_COLUMNS = (*STATUS.schema.names, "fresh")

_path = click.option("--path", default=DEFAULT_PATH, show_default=True, help="mirror.path of the cluster")


@click.group(cls=Group)
def mirror() -> None:
    """The Delta tables that show who leads which partition."""


@mirror.command(name="show")
@_path
@output
@click.option("--table", type=click.Choice(sorted(COLUMNS)), default="partitions", show_default=True)
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def show_rows(path: str, output: Format, table: str, topics: tuple[str, ...]) -> None:
    """What there is as the table shows it: no broker and no ZooKeeper is asked."""
    if topics and table == "brokers":
        raise click.UsageError("a broker is of no topic: leave out TOPIC, or ask for another --table")
    key, columns = {**TABLES, GROUPS.name: GROUPS}[table].key, COLUMNS[table]
    read = read_groups if table == GROUPS.name else partial(read_table, table)
    rows = sorted(rows_of(read, path), key=lambda row: [row[name] for name in key])
    wanted = [row for row in rows if not topics or row["topic"] in topics]
    show(columns, ([row.get(name) for name in columns] for row in wanted), output=output)


@mirror.command()
@optional_bootstrap
@security
@_path
@output
@click.option("--broker", type=int, help="of this one, too")
@click.option("--cause", help="all that this set off: an id, as the listing has it")
@click.option("--last", type=click.IntRange(min=1), default=50, show_default=True, help="so many, the newest last")
@click.argument("names", nargs=-1, metavar="[TOPIC|TOPIC-PARTITION]…")
@click.pass_context
def events(
    context: click.Context,
    *,
    bootstrap: str | None,
    security: Security,
    path: str,
    output: Format,
    broker: int | None,
    cause: str | None,
    last: int,
    names: tuple[str, ...],
) -> None:
    """What happened, because of what, and what became of it: who led a partition at a time, and why.

    The controller is asked, and tells of 1,000 events at most. With --path, or where no bootstrap is known, the table
    is read: no broker and no controller is asked.
    """
    if bootstrap is None or _is_named(context, "path"):
        if bootstrap is not None and _is_named(context, "bootstrap"):
            raise click.UsageError(
                "--bootstrap asks the controller, and --path names the tables: leave out one of them"
            )
        asked = _asked(broker, cause, names)
        rows = rows_of(partial(read_events, where=where_of(asked), last=last), path)
        if output == "json":
            faces = ({**row, "was": face_of(row["was"]), "became": face_of(row["became"])} for row in rows)
            show(EVENTS.schema.names, ([*row.values()] for row in faces), output=output)
            return
        found = [*map(told_event, rows)]
    else:
        found = _told_by_controller(bootstrap, security, _asked(broker, cause, names), last)
        if output == "json":
            show(TOLD_COLUMNS, ([_column(event, name) for name in TOLD_COLUMNS] for event in found), output=output)
            return
    show(EVENT_COLUMNS, ([_column(event, name) for name in EVENT_COLUMNS] for event in found), output=output)


def _told_by_controller(bootstrap: str, security: Security, asked: DescribeEvents, last: int) -> list[ToldEvent]:
    if last > EVENTS_MAX:
        raise click.UsageError(f"the controller tells of {EVENTS_MAX} events at most: name --path for more")
    with closing(admin_at(bootstrap, security)) as admin:
        return admin.events(
            partitions=[*map(str, asked.partitions)],
            topics=asked.topics,
            brokers=asked.brokers,
            cause=asked.cause,
            last=last,
        )


def _column(event: ToldEvent, name: str) -> Any:
    match name:
        case "at":
            return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=event.at_ms)
        case "changes":
            return ", ".join(event.changes)
        case _:
            return getattr(event, name)


def _is_named(context: click.Context, option: str) -> bool:
    """Whether the option was given on the command line, and not by a default or the environment."""
    return context.get_parameter_source(option) is ParameterSource.COMMANDLINE


def _asked(broker: int | None, cause: str | None, names: tuple[str, ...]) -> DescribeEvents:
    """The question for these events. A name that ends as a partition's does stands for a topic, too."""
    return DescribeEvents(
        partitions=tuple(found for name in names if (found := _partition_named(name)) is not None),
        topics=names,
        brokers=() if broker is None else (broker,),
        cause=cause,
    )


def _partition_named(name: str) -> TopicPartition | None:
    try:
        return TopicPartition.parse(name)
    except ValueError:
        return None


@mirror.command()
@_path
@output
def status(path: str, output: Format) -> None:
    """How far the tables are, and who writes them: exit 1 if nobody has said so for two heartbeats."""
    rows = rows_of(read_status, path)
    now = datetime.now(UTC)
    fresh = [now - row["as_of"] <= timedelta(milliseconds=2 * row["heartbeat_ms"]) for row in rows]
    show(STATUS_COLUMNS, ([*row.values(), is_fresh] for row, is_fresh in zip(rows, fresh, strict=True)), output=output)
    sys.exit(0 if fresh and all(fresh) else 1)


wait = click.option("--wait", "wait_s", default=5.0, show_default=True, help="seconds in which the tables may catch up")


@mirror.command()
@bootstrap
@security
@_path
@output
@wait
def verify(bootstrap: str, security: Security, path: str, output: Format, wait_s: float) -> None:
    """Compare the tables with ZooKeeper, row by row: exit 0 if they agree, 1 if not, with what differs.

    What goes on meanwhile is no difference: it is looked again until they agree, or --wait is over."""
    with ProgressLine() as line:
        found = verified(bootstrap, path, wait_s, security, line.tell)
    _tell(found, output)


@mirror.command()
@bootstrap
@security
@_path
@output
@wait
def rebuild(bootstrap: str, security: Security, path: str, output: Format, wait_s: float) -> None:
    """Have the controller write what the tables lack, and compare them, as verify does.

    After somebody has removed or changed rows, or a whole table. A new controller does the same as it begins."""
    with ProgressLine() as line:
        line.tell("the controller writes what the tables lack")
        found = rebuilt(bootstrap, path, wait_s, security, line.tell)
    _tell(found, output)


def _tell(found: Agreement, output: Format) -> None:
    if output == "json" or found.differences:
        show(DIFFERENCE, map(told, found.differences), output=output)
    click.echo(str(found), err=True)
    sys.exit(1 if found.differences else 0)
