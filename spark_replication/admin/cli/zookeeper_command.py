"""`spark-replication zookeeper`: runs the embedded ZooKeeper alone. `status` and `stop` find it by its directory."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, output, show
from spark_replication.config import Settings
from spark_replication.errors import InvalidRequest
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.zk.login import CA, CERTIFICATE, KEY, NOBODY, Login, read_login
from spark_replication.zookeeper_server.certificates import client_files
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, serve_over_tls
from spark_replication.zookeeper_server.keeper import Keeper, close_to_others
from spark_replication.zookeeper_server.layout import SERVER_COUNTS, servers_made
from spark_replication.zookeeper_server.locks import unused

START_TIMEOUT_S = 60.0
FILES = (CA, CERTIFICATE, KEY)  # the settings, in the order of ClientFiles

_directory = partial(
    click.option, "--directory", type=click.Path(file_okay=False, path_type=Path), help="where its servers keep all"
)


@click.group(cls=Group, invoke_without_command=True)
@_directory(default=Path(Settings().data_dir) / "zookeeper", show_default=True)
@click.option(
    "--servers",
    type=click.Choice([str(count) for count in SERVER_COUNTS]),
    help="of a new directory; three outlive any one of them  [default: 1]",
)
@click.option(
    "--auth-file",
    type=click.Path(dir_okay=False),
    help="holds USER:PASSWORD: nobody else may write there. The zookeeper.auth.file of its clusters, which it serves "
    "over TLS alone",
)
@click.option("--detach", is_flag=True, help="leave the servers running; those that live are adopted")
@click.pass_context
def zookeeper(
    context: click.Context, directory: Path, servers: str | None, auth_file: str | None, *, detach: bool
) -> None:
    """Run ZooKeeper from pyspark's jars until Ctrl-C, for clusters that are to share one or to come and go."""
    if context.invoked_subcommand is not None:
        context.default_map = {context.invoked_subcommand: {"directory": directory}}
        return
    count = servers_made(directory) or SERVER_COUNTS[0] if servers is None else int(servers)
    login = NOBODY if auth_file is None else read_login(Settings(zookeeper_auth_file=auth_file))
    if login.owns:
        serve_over_tls(directory)
    if detach:
        started = EmbeddedZooKeeper.start(directory, START_TIMEOUT_S, count)
        close_to_others(started, login)
        _tell(started, auth_file)
    else:
        _run(directory, count, login, auth_file)


@zookeeper.command()
@_directory()
@output
def status(directory: Path, output: Format) -> None:
    """Its servers: which of them live, and which leads."""
    rows = [
        (server.place.number, server.place.address, server.pid, server.mode(), server.log_path)
        for server in _found(directory).servers
    ]
    show(("server", "address", "pid", "mode", "log"), rows, output=output)


@zookeeper.command()
@_directory()
def stop(directory: Path) -> None:
    """End its servers, whoever started them, once no cluster uses them; what they hold stays."""
    found = _found(directory)
    with unused(found.directory) as is_unused:
        if not is_unused:
            raise InvalidRequest(
                f"the ZooKeeper in {directory} is in use, and would be started again: stop the clusters and drivers "
                "that use it first, and with Ctrl-C a `spark-replication zookeeper` that runs there"
            )
        found.stop()
    click.echo(f"no ZooKeeper runs in {directory} now")


def _run(directory: Path, count: int, login: Login, auth_file: str | None) -> None:
    found = EmbeddedZooKeeper.found_in(directory)
    if found is not None and found.alive():
        raise InvalidRequest(
            f"ZooKeeper runs in {directory} already, at {found.address}: use it, end it with "
            f"`spark-replication zookeeper stop --directory {directory}`, or start what is dead of it with --detach"
        )
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    keeper = Keeper.start(directory, START_TIMEOUT_S, count, login=login)
    try:
        _tell(keeper, auth_file)
        click.echo("Ctrl-C ends it")
        stopping.wait()
    finally:
        if not keeper.stop():
            click.echo(f"it runs on: a cluster uses the ZooKeeper in {directory}", err=True)


def _found(directory: Path) -> EmbeddedZooKeeper:
    found = EmbeddedZooKeeper.found_in(directory)
    if found is None:
        raise InvalidRequest(f"no ZooKeeper was ever started in {directory}: name its --directory")
    return found


def _tell(running: EmbeddedZooKeeper | Keeper, auth_file: str | None) -> None:
    closed = "" if auth_file is None else f" --set zookeeper.auth.file={auth_file}"
    files = client_files(running.directory)
    named = () if files is None else zip(FILES, files, strict=True)
    over_tls = "".join(f" --set {name}={path}" for name, path in named)
    click.echo(f"ZooKeeper runs at {running.address}, in {running.directory}")
    click.echo(f"a cluster uses it with:   --set zookeeper.connect={running.address}{closed}{over_tls}")
    click.echo(f"clients of that cluster:  --bootstrap zk://{running.address}{Settings().zookeeper_chroot}{over_tls}")
