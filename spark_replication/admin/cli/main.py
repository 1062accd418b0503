"""`spark-replication`: errors go to stderr, exit 1; wrong usage exits 2; every listing has --format table|json."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import click

from spark_replication.admin.cli.bench_command import bench
from spark_replication.admin.cli.consume_command import consume
from spark_replication.admin.cli.health_command import health
from spark_replication.admin.cli.leader_command import leader
from spark_replication.admin.cli.listing import Format, bootstrap, output, security, show, tell_error
from spark_replication.admin.cli.log_commands import log
from spark_replication.admin.cli.mirror_command import mirror
from spark_replication.admin.cli.produce_command import produce
from spark_replication.admin.cli.reassign_command import reassign
from spark_replication.admin.cli.sim_command import sim
from spark_replication.admin.cli.topics_command import topics
from spark_replication.admin.cli.zookeeper_command import zookeeper
from spark_replication.client.admin import Admin
from spark_replication.config import described
from spark_replication.errors import ReplicationError
from spark_replication.sim.scenarios import scenario as scenarios
from spark_replication.sim.scenarios.expectation import BadScenario
from spark_replication.transport.security import Security


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark_replication")
def cli() -> None:
    """A replicated, partitioned Arrow log inside a Spark cluster."""


@cli.command()
@bootstrap
@security
@output
@click.argument("names", nargs=-1, metavar="[TOPIC]…")
def partitions(bootstrap: str, output: Format, security: Security, names: tuple[str, ...]) -> None:
    """Who leads which partition, who is in sync, who is eligible."""
    columns = ("topic", "partition", "leader", "leader_epoch", "partition_epoch", "isr", "elr", "replicas", "min_isr")
    with closing(Admin(bootstrap, security=security)) as admin:
        rows = [
            (topic.name, *(getattr(partition, name) for name in columns[1:]))
            for topic in admin.describe_topics(list(names) or None)
            for partition in topic.partitions
        ]
    show(columns, rows, output=output)


@cli.command()
@bootstrap
@security
@output
def brokers(bootstrap: str, output: Format, security: Security) -> None:
    """The brokers that live."""
    columns = ("id", "host", "port", "replication_port", "rack", "epoch", "shutting_down")
    with closing(Admin(bootstrap, security=security)) as admin:
        rows = [[getattr(broker, name) for name in columns] for broker in admin.describe_cluster().brokers]
    show(columns, rows, output=output)


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
cli.add_command(consume)
cli.add_command(health)
cli.add_command(leader)
cli.add_command(log)
cli.add_command(mirror)
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
