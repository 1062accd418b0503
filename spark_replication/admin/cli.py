"""`spark-replication`: errors go to stderr, exit 1; wrong usage exits 2; every listing has --format table|json."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from spark_replication.errors import ReplicationError
from spark_replication.sim import scenario as scenarios


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark_replication")
def cli() -> None:
    """A replicated, partitioned Arrow log inside a Spark cluster."""


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--quiet", "-q", is_flag=True, help="Only what fails, and the closing line.")
def scenario(paths: tuple[Path, ...], *, quiet: bool) -> None:
    """Run scenario files (or folders of them) through the core: exit 0 if all hold, 1 if not, 2 for a bad file."""
    passed = failed = 0
    try:
        for path in scenarios.files(paths):
            for result in scenarios.run_file(path):
                passed += result.failure is None
                failed += result.failure is not None
                if result.failure is not None or not quiet:
                    click.echo(str(result))
    except scenarios.BadScenario as error:
        click.echo(f"bad scenario: {error}", err=True)
        sys.exit(2)
    click.echo(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def main() -> None:
    try:
        cli()
    except ReplicationError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
