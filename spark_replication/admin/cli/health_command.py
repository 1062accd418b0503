"""`spark-replication health`: the verdict, its reasons, what set them off, and what mends them."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.text import Text

from spark_replication.admin.cli.listing import (
    WIDE,
    Format,
    bootstrap,
    output,
    security,
    show_json,
    tell_error,
    watched,
)
from spark_replication.client.admin import Admin
from spark_replication.client.health import Health
from spark_replication.core.controller.verdict import Reason, Verdict
from spark_replication.errors import ReplicationError
from spark_replication.process.terminal import harmless
from spark_replication.transport.security import Security

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
    than there should be, or without some of the brokers. Each reason says what set it off, and what mends it. Without
    any answer within half a minute the exit code is 2, too.
    """
    try:
        with closing(Admin(bootstrap, security=security)) as admin:
            found = admin.health()
    except ReplicationError as error:
        tell_error(error)
        raise click.exceptions.Exit(EXIT["critical"]) from error
    if output == "json":
        show_json(found)
    else:
        _show(found)
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
    for reason in found.reasons:
        console.print(Text.assemble((reason.severity, STYLE[reason.severity]), "  ", harmless(str(reason))))
        for name, text in (("because", _because(reason)), ("mend", reason.mend)):
            if text:
                console.print(Text(f"    {name}: {harmless(text)}"))


def _because(reason: Reason) -> str:
    if not reason.because or reason.since_ms is None:
        return ""
    at = datetime.fromtimestamp(reason.since_ms / 1_000, UTC)
    ago_s = time.time() - reason.since_ms / 1_000
    more = f"; more: spark-replication mirror events --cause {reason.cause}" if reason.cause else ""
    return f"{reason.because}, {at:%Y-%m-%d %H:%M:%S} UTC, {_ago(ago_s)}{more}"


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
