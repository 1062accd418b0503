"""`spark-replication`: errors go to stderr, exit 1; wrong usage exits 2; every listing has --format table|json."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

import click

from spark_replication.admin.cli.groups import Group, begin
from spark_replication.errors import ReplicationError, WrongUsage
from spark_replication.process.extras import importing_for

# What each section of the help has: the command, and the module that it is in. Only the command that is asked for is
# loaded: loading is half the time of a short one.
_SECTIONS = {
    "See how the cluster is": {
        "health": "health_command",
        "topics": "topics_command",
        "partitions": "partitions_command",
        "brokers": "brokers_command",
        "metrics": "metrics_command",
        "mirror": "mirror_command",
        "page": "page_command",
    },
    "Write and read records": {
        "produce": "produce_command",
        "consume": "consume_command",
        "groups": "groups_command",
        "table": "table_command",
        "log": "log_commands",
    },
    "Move leaders and replicas": {
        "leader": "leader_command",
        "reassign": "reassign_command",
    },
    "Let people in": {
        "acls": "acls_command",
        "quotas": "quotas_command",
        "tokens": "tokens_command",
        "certificates": "certificates_command",
    },
    "Run a cluster on this host": {
        "start": "start_command",
        "stop": "start_command",
        "zookeeper": "zookeeper_command",
    },
    "Find out more": {
        "guide": "guide_command",
        "settings": "settings_command",
        "debug": "debug_command",
        "completion": "completion_command",
    },
    "Work on spark_replication itself": {
        "bench": "bench_command",
        "scenario": "scenario_command",
        "sim": "sim_command",
    },
}
_HOMES = {name: home for commands in _SECTIONS.values() for name, home in commands.items()}


class _Wrong(click.UsageError):
    """Click's error, told as every other."""

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(error.format_message(), error.ctx)

    def show(self, _file: IO[Any] | None = None) -> None:
        from spark_replication.admin.cli.listing import tell_error

        said = " ".join(self.message.split())  # choices are on lines of their own
        path = "spark-replication" if self.ctx is None else self.ctx.command_path
        tell_error(WrongUsage(f"{said.rstrip('.')} (see {path} --help)"))


@contextmanager
def _told_as_ours() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # a help, and no error
    except click.UsageError as error:
        raise _Wrong(error) from error


class Commands(Group):
    def make_context(self, *given: Any, **more: Any) -> click.Context:
        began_s = time.monotonic()  # nothing is loaded yet, and loading is most of what a command does by itself
        with _told_as_ours():
            made = super().make_context(*given, **more)
        begin(made, began_s)
        return made

    def invoke(self, ctx: click.Context) -> Any:
        with _told_as_ours():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_HOMES)

    def sections(self, ctx: click.Context) -> Iterable[tuple[str, Iterable[str]]]:
        return _SECTIONS.items()

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
        with importing_for("this command"):
            cli(prog_name="spark-replication")
    except ReplicationError as error:
        from spark_replication.admin.cli.listing import tell_error

        tell_error(error)
        sys.exit(1)
