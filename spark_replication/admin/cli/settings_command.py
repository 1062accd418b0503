"""`spark-replication settings`: all that there are, what each process has in force, and a change of the cluster's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click

from spark_replication.admin.cli.groups import Listing
from spark_replication.admin.cli.listing import (
    Format,
    admin_at,
    bootstrap,
    output,
    security,
    show,
    tell_refused,
)
from spark_replication.client.asking.told_settings import CONTROLLER, Process
from spark_replication.config import described, parse_change
from spark_replication.core.settings_in_force import CLUSTER, DEFAULT
from spark_replication.errors import ReplicationError
from spark_replication.messages.observing import ToldSettings
from spark_replication.transport.security.security import Security

_COLUMNS = ("process", "setting", "value", "from")


@click.group(cls=Listing, invoke_without_command=True)
@output
@click.pass_context
def settings(context: click.Context, output: Format) -> None:
    """Every setting: what it takes, its default, whether a topic may have its own, and what it means.

    `settings show` says which values are in force, and where they come from."""
    if context.invoked_subcommand is None:
        columns = ("setting", "values", "default", "topic", "meaning")
        rows = [(each.name, each.values, each.default, each.of_topic, each.meaning) for each in described()]
        show(columns, rows, output=output)


def _process(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value in (CLUSTER, CONTROLLER):
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is not cluster, controller, or the id of a broker")
    return int(value)


@settings.command("show")
@bootstrap
@security
@output
@click.option(
    "--of", "process", callback=_process, metavar="cluster|controller|ID", help="one alone; by default all of them"
)
@click.option("--topic", "-t", help="the settings that hold there for this topic")
@click.option("--all", "all_", is_flag=True, help="defaults, too")
def show_(
    bootstrap: str, security: Security, output: Format, *, process: int | str | None, topic: str | None, all_: bool
) -> None:
    """The settings that each process has in force, as it tells itself, and where each value comes from: default, a
    file, the environment, --set, the program that started it, the cluster, or the topic.

    Rows of `cluster` are what `settings set` has set. A setting that names a file is shown as (set)."""
    asked: Process = CONTROLLER if process in (CLUSTER, CONTROLLER) else process  # type: ignore[assignment]
    with closing(admin_at(bootstrap, security)) as admin:
        found = admin.settings(asked, topic=topic)
    told = {name: each for name, each in found.items() if not isinstance(each, ReplicationError)}
    rows = [*_of_cluster(told)] if process in (None, CLUSTER) else []
    if process != CLUSTER:
        for name, each in told.items():
            kept = (one for one in each.settings if all_ or one.origin != DEFAULT)
            rows.extend((name, one.name, one.value, one.origin) for one in kept)
    show(_COLUMNS, rows, output=output)
    tell_refused({name: each for name, each in found.items() if isinstance(each, ReplicationError)})


def _of_cluster(told: dict[str, ToldSettings]) -> Iterator[tuple[str, str, Any, str]]:
    """The cluster's own settings, as the controller has them: it changes them. Without it, as a broker has heard."""
    of_cluster = next((each.of_cluster for each in told.values() if each.of_cluster is not None), {})
    yield from ((CLUSTER, name, value, CLUSTER) for name, value in of_cluster.items())


@settings.command("set")
@bootstrap
@security
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE…")
def set_(bootstrap: str, security: Security, *, assignments: tuple[str, ...]) -> None:
    """Set settings for the whole cluster, such as reassignment.bytes.per.second=10485760, at once and without a
    restart; NAME= takes one away: then what each process was started with holds again.

    A topic's own setting is above the cluster's. A setting that processes read only as they start is refused."""
    changes = {name: value for each in assignments for name, value in parse_change(each).items()}
    with closing(admin_at(bootstrap, security)) as admin:
        admin.configure(None, changes)
    click.echo(f"the cluster is configured: {', '.join(assignments)}")
