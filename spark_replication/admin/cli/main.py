"""`spark-replication`: errors go to stderr, exit 1; wrong usage exits 2; every listing has --format table|json."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from spark_replication.admin.cli.bench_command import bench
from spark_replication.admin.cli.brokers_command import brokers
from spark_replication.admin.cli.consume_command import consume
from spark_replication.admin.cli.health_command import health
from spark_replication.admin.cli.leader_command import leader
from spark_replication.admin.cli.listing import Format, output, show, tell_error
from spark_replication.admin.cli.log_commands import log
from spark_replication.admin.cli.mirror_command import mirror
from spark_replication.admin.cli.partitions_command import partitions
from spark_replication.admin.cli.produce_command import produce
from spark_replication.admin.cli.reassign_command import reassign
from spark_replication.admin.cli.sim_command import sim
from spark_replication.admin.cli.topics_command import topics
from spark_replication.admin.cli.zookeeper_command import zookeeper
from spark_replication.config import described
from spark_replication.errors import ReplicationError
from spark_replication.sim.scenarios import scenario as scenarios
from spark_replication.sim.scenarios.expectation import BadScenario


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark_replication")
def cli() -> None:
    """A replicated, partitioned Arrow log inside a Spark cluster."""


@cli.command()
@output
def settings(output: Format) -> None:
    """Every setting: what it takes, its default, whether a topic may have its own, and what it means."""
    columns = ("setting", "values", "default", "topic", "meaning")
    rows = [(each.name, each.values, each.default, each.of_topic, each.meaning) for each in described()]
    show(columns, rows, output=output)


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
    except BadScenario as error:
        click.echo(f"bad scenario: {error}", err=True)
        sys.exit(2)
    click.echo(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


cli.add_command(bench)
cli.add_command(brokers)
cli.add_command(consume)
cli.add_command(health)
cli.add_command(leader)
cli.add_command(log)
cli.add_command(mirror)
cli.add_command(partitions)
cli.add_command(produce)
cli.add_command(reassign)
cli.add_command(sim)
cli.add_command(topics)
cli.add_command(zookeeper)


def main() -> None:
    try:
        cli()
    except ReplicationError as error:
        tell_error(error)
        sys.exit(1)
