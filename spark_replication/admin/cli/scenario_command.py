"""`spark-replication scenario`: runs files that say what the rules must do through the core."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from spark_replication.admin.cli.listing import tell_error
from spark_replication.errors import WrongUsage
from spark_replication.sim.scenarios import scenario as scenarios
from spark_replication.sim.scenarios.expectation import BadScenario


@click.command()
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
    except BadScenario as error:
        tell_error(WrongUsage(f"bad scenario: {' '.join(str(error).split())}"))
        sys.exit(2)
    click.echo(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
