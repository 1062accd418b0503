"""`spark-replication leader elect`: who is to lead, by hand (L5)."""

from __future__ import annotations

from contextlib import closing
from typing import get_args

import click

from spark_replication.admin.cli.listing import bootstrap, security, tell_refused
from spark_replication.client.admin import Admin
from spark_replication.messages.requests import ElectionKind
from spark_replication.transport.security import Security


@click.group()
def leader() -> None:
    """Who leads which partition."""


@leader.command()
@bootstrap
@security
@click.option("--kind", type=click.Choice(get_args(ElectionKind)), default="preferred", show_default=True)
@click.option("--leader", "desired", type=int, metavar="ID", help="with --kind designation: who is to lead")
@click.argument("partitions", nargs=-1)
def elect(
    bootstrap: str, security: Security, kind: ElectionKind, desired: int | None, partitions: tuple[str, ...]
) -> None:
    """Elect leaders of PARTITIONS (such as orders-3), or of all that the kind can act on.

    preferred: the first replica leads again, if it is in sync. The others are for partitions without a leader, and may
    lose acknowledged records: unclean (any live replica, at once), longest_log_balanced and longest_log_proactive
    (whose log is longest), designation (the one that --leader names)."""
    designates = kind == "designation"
    if designates is (desired is None) or (designates and not partitions):
        raise click.UsageError(
            "A designation, and no other kind, needs --leader, and the partitions that it is to lead."
        )
    with closing(Admin(bootstrap, security=security)) as admin:
        refused = admin.elect_leaders(
            kind, partitions or None, {} if desired is None else dict.fromkeys(partitions, desired)
        )
    click.echo(f"elected as asked, but for {len(refused)}" if refused else "elected as asked")
    tell_refused(refused)
