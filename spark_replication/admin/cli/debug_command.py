"""`spark-replication debug bundle`: one archive for whoever is to find out what is wrong."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import bootstrap, settings_options, tell_error
from spark_replication.admin.debug_bundle import write_bundle
from spark_replication.client.asking.admin import Admin
from spark_replication.config import Settings
from spark_replication.errors import InvalidRequest
from spark_replication.transport.security.security import read_security

DEADLINE_MS = 10_000  # for each part: the logs of a cluster that does not answer are collected all the same


@click.group(cls=Group)
def debug() -> None:
    """What helps to find out what is wrong."""


@debug.command()
@bootstrap
@settings_options
@click.argument("file", required=False, type=click.Path(dir_okay=False, writable=True, path_type=Path))
def bundle(bootstrap: str, settings: Settings, file: Path | None) -> None:
    """State, events, versions, the cluster's settings and those in force at each process, and the logs of all processes
    on this host, in FILE.tar.gz (by default named by the time).

    Run it in any folder: processes say where their logs are. It has no records of topics and no secret; of a cluster
    that does not answer it has the rest, and errors.txt says what it could not get, and why. Logs of brokers on other
    hosts are on those hosts: run it there, too."""
    target = file or Path(f"spark-replication-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    with closing(Admin(bootstrap, security=read_security(settings), deadline_ms=DEADLINE_MS)) as admin:
        try:
            missing = write_bundle(target, admin, settings, lambda name: click.echo(f"  {name}", err=True))
        except OSError as error:
            raise InvalidRequest(f"{target} cannot be written: {error.strerror}. Name another file") from error
    for line in missing:
        tell_error(line)
    click.echo(str(target))
