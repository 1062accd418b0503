"""`spark-replication`: errors go to stderr, exit 1; wrong usage exits 2; every listing has --format table|json."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from spark_replication.errors import ReplicationError

# The module of each command. Only the command that is asked for is loaded: loading is half the time of a short one.
_HOMES = {
    "acls": "acls_command",
    "bench": "bench_command",
    "brokers": "brokers_command",
    "certificates": "certificates_command",
    "completion": "completion_command",
    "consume": "consume_command",
    "debug": "debug_command",
    "health": "health_command",
    "leader": "leader_command",
    "log": "log_commands",
    "metrics": "metrics_command",
    "mirror": "mirror_command",
    "page": "page_command",
    "partitions": "partitions_command",
    "produce": "produce_command",
    "quotas": "quotas_command",
    "reassign": "reassign_command",
    "scenario": "scenario_command",
    "settings": "settings_command",
    "sim": "sim_command",
    "topics": "topics_command",
    "zookeeper": "zookeeper_command",
}


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = _HOMES.get(cmd_name)
        if home is None:
            return None
        found = getattr(import_module(f"spark_replication.admin.cli.{home}"), cmd_name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=_HOMES, ctx=ctx) from error


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark_replication")
def cli() -> None:
    """A replicated, partitioned Arrow log inside a Spark cluster."""


def main() -> None:
    try:
        cli()
    except ReplicationError as error:
        from spark_replication.admin.cli.listing import tell_error

        tell_error(error)
        sys.exit(1)
