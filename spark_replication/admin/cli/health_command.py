"""`spark-replication health`: the verdict, its reasons, what set them off, and what mends them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.text import Text

from spark_replication.admin.cli.listing import (
    WIDE,
    Format,
    admin_at,
    bootstrap,
    output,
    security,
    show_json,
    tell_error,
    watched,
)
from spark_replication.client.asking.health import Health
from spark_replication.config import BOOTSTRAP_VARIABLE
from spark_replication.errors import ReplicationError
from spark_replication.process.logs import harmless, harmless_line
from spark_replication.transport.security.security import Security
from spark_replication.view.problem import Mend, guide_command
from spark_replication.view.verdict import Incident, Verdict

EXIT: dict[Verdict, int] = {"healthy": 0, "degraded": 1, "critical": 2}
STYLE: dict[str, str] = {
    "healthy": "bold green",
    "degraded": "bold yellow",
    "critical": "bold red",
    "warning": "yellow",
}


@click.command()
@bootstrap
@security
@output
@watched
def health(bootstrap: str, output: Format, security: Security) -> None:
    """How the cluster is: exit 0 if it is healthy, 1 if it is degraded, 2 if it is critical.

    critical: somebody cannot write, read or change something at present. degraded: all can, with fewer replicas in sync
    than there should be, or without some of the brokers. A cause stands before what follows from it, and says what set
    it off and what mends it. If nobody answers the exit code is 2, too.
    """
    try:
        with closing(admin_at(bootstrap, security)) as admin:
            found = admin.health()
    except ReplicationError as error:
        tell_error(error)
        raise click.exceptions.Exit(EXIT["critical"]) from error
    if output == "json":
        show_json(found)
    else:
        _show(found)
        _tell_bootstrap(found, bootstrap)
    raise click.exceptions.Exit(EXIT[found.verdict])


def _show(found: Health) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=WIDE)
    console.print(
        Text(found.verdict, STYLE[found.verdict]),
        Text(
            f"  {found.brokers} brokers, {found.topics} topics, {found.partitions} partitions; "
            f"controller {found.controller or 'none'}"
        ),
        sep="",
    )
    for incident in found.incidents:
        console.print(Text.assemble((incident.severity, STYLE[incident.severity]), "  ", harmless(incident.what)))
        for line in _lines(incident):
            console.print(Text(f"    {harmless(line)}"))


def _tell_bootstrap(found: Health, bootstrap: str) -> None:
    """The commands name no cluster: say which line lets them find it, if the environment does not."""
    named = any(mend.commands for incident in found.incidents for mend in incident.mends)
    if named and os.environ.get(BOOTSTRAP_VARIABLE) != bootstrap:
        click.echo(f"for these commands: export {BOOTSTRAP_VARIABLE}={shlex.quote(harmless_line(bootstrap))}", err=True)


def _lines(incident: Incident) -> Iterator[str]:
    if incident.consequences:
        yield f"so: {', '.join(map(str, incident.consequences))}"
    if because := _because(incident):
        yield f"because: {because}"
    for name, mend in zip(("mend", *["or"] * len(incident.mends)), incident.mends, strict=False):
        yield from _mend(name, mend)
    if incident.guide:
        yield f"more: {guide_command(incident.guide)}"


def _mend(name: str, mend: Mend) -> Iterator[str]:
    """A line of its own for each command, to be copied."""
    if not mend.words and len(mend.commands) == 1:
        yield f"{name}: {mend.commands[0]}"
        return
    yield f"{name}: {mend.words}{':' if mend.commands else ''}"
    for command in mend.commands:
        yield f"    {command}"


def _because(incident: Incident) -> str:
    if not incident.because or incident.since_ms is None:
        return ""
    at = datetime.fromtimestamp(incident.since_ms / 1_000, UTC)
    ago_s = time.time() - incident.since_ms / 1_000
    more = f"; more: spark-replication mirror events --cause {incident.cause}" if incident.cause else ""
    return f"{incident.because}, {at:%Y-%m-%d %H:%M:%S} UTC, {_ago(ago_s)}{more}"


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
