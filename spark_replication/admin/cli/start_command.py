"""`spark-replication start` and `stop`: a cluster on this host, without Spark. `stop` finds it by its directory."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_replication.admin.cli.listing import given_options
from spark_replication.client.finding.settings_file import overrides_of
from spark_replication.config import BOOTSTRAP_VARIABLE
from spark_replication.core.settings_in_force import GivenSettings
from spark_replication.decoding import from_json
from spark_replication.errors import InvalidRequest, StartFailed
from spark_replication.process.files import shared_directory
from spark_replication.process.processes import LockedProcess, last_lines
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.process.whole_files import replace_text
from spark_replication.zookeeper_server.layout import SERVER_COUNTS

if TYPE_CHECKING:
    from spark_replication.live.local_cluster import LocalCluster

STARTER = "starter"  # the folder of the process that --detach leaves, with its log
TOLD_FILE = "told"  # what it has to say, once the cluster is healthy
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 180.0
POLL_S = 0.05


@click.command()
@click.option(
    "--brokers", type=click.IntRange(min=1), default=3, show_default=True, help="those that the directory has stay"
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="where it keeps all: a later start goes on there  [default: a temporary one]",
)
@click.option(
    "--zookeepers",
    type=click.Choice([str(count) for count in SERVER_COUNTS]),
    default=str(SERVER_COUNTS[0]),
    show_default=True,
    help="three outlive any one of them; as when the directory was made",
)
@given_options
@click.option("--detach", is_flag=True, help="leave it running; `spark-replication stop` ends it")
@click.option("--told-file", type=click.Path(path_type=Path), hidden=True)
@click.option("--origins", hidden=True, help="JSON: where the settings come from that --detach hands on by --set")
def start(
    *,
    brokers: int,
    directory: Path | None,
    zookeepers: str,
    given: GivenSettings,
    detach: bool,
    told_file: Path | None,
    origins: str | None,
) -> None:
    """Start a cluster on this host, without Spark: ZooKeeper, a controller, brokers, the page. Until Ctrl-C."""
    if origins is not None:
        given = GivenSettings(given.settings, from_json(origins, dict[str, str]))
    if not detach:
        _run(brokers, directory, int(zookeepers), given, told_file)
    elif directory is None:
        raise InvalidRequest("what runs on is found by its directory: name one with --directory")
    else:
        _detach(directory, ["--brokers", str(brokers), "--zookeepers", zookeepers, *as_options(given)])


@click.command()
@click.option(
    "--directory",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="that `start --detach` was given",
)
def stop(directory: Path) -> None:
    """End the cluster that `spark-replication start --detach` has left running here; what it has stored stays."""
    starter = _starter(directory)
    if not starter.alive():
        raise InvalidRequest(
            f"no cluster that `spark-replication start --detach` has left runs in {directory}: one that runs in a "
            "terminal ends by Ctrl-C there"
        )
    if not starter.stop(STOP_TIMEOUT_S):
        raise InvalidRequest(
            f"the cluster in {directory} has not ended in {STOP_TIMEOUT_S:.0f} s: see {starter.log_path}"
        )
    click.echo(f"no cluster runs in {directory} now; its data stays, and `spark-replication start` goes on with it")


def _run(brokers: int, directory: Path | None, zookeepers: int, given: GivenSettings, told_file: Path | None) -> None:
    from spark_replication.live.local_cluster import LocalCluster  # loads what serves, which `stop` does not need

    if told_file is None and directory is not None and _starter(directory).alive():
        raise _runs_already(directory)
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    click.echo(f"starting ZooKeeper, a controller and {brokers} brokers: a few seconds")
    with LocalCluster.start(brokers, directory, zookeepers, given) as cluster:
        told = introduction(cluster, is_temporary=directory is None)
        click.echo(told)
        if told_file is None:
            click.echo("Ctrl-C stops everything")
        else:
            replace_text(told_file, told)
        stopping.wait()
        click.echo("stopping brokers, controller and ZooKeeper")


def _detach(directory: Path, options: Sequence[str]) -> None:
    shared_directory(directory)
    starter = _starter(directory)
    told_file = starter.directory / TOLD_FILE
    with starter.locked() as lock:
        if lock is None:
            raise _runs_already(directory)
        told_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "spark_replication", "start", "--directory", str(directory.resolve())]
        child = starter.start([*command, *options, "--told-file", str(told_file)], lock)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not told_file.exists():
        if child.poll() is not None:
            raise StartFailed(f"the cluster in {directory} has not started:\n{last_lines(starter.log_path)}")
        if time.monotonic() > deadline_s:
            raise StartFailed(f"no healthy cluster within {START_TIMEOUT_S:.0f} s: see {starter.log_path}")
        time.sleep(POLL_S)
    click.echo(told_file.read_text())
    click.echo(f"it runs on: `spark-replication stop --directory {directory}` ends it")


def introduction(cluster: LocalCluster, *, is_temporary: bool) -> str:
    """Where everything of it is, and what to type first."""
    where = cluster.bootstrap if cluster.security.mode != "none" else cluster.zookeeper
    return f"""
page        {cluster.page or "none: see the controller's log"}
brokers     {cluster.bootstrap}
zookeeper   {cluster.zookeeper}
data        {cluster.directory}{"  (removed at the end: --directory keeps it)" if is_temporary else ""}
mirror      {cluster.mirror_path}  (Delta: partitions, brokers, topics, events, status)

from another terminal:
  export {BOOTSTRAP_VARIABLE}={where}
  spark-replication topics create orders --schema id:int64,item:string --partitions 3
  echo '{{"id": 1, "item": "tea"}}' | spark-replication produce orders
  spark-replication consume orders
"""


def as_options(given: GivenSettings) -> list[str]:
    """The settings that differ from the defaults, whether they come from a file, the environment or options, and which
    come from where."""
    different = overrides_of(given.settings).items()
    texts = ((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in different)
    options = [option for name, text in texts for option in ("--set", f"{name}={text}")]
    return [*options, "--origins", json.dumps(dict(given.origins))]


def _runs_already(directory: Path) -> InvalidRequest:
    return InvalidRequest(
        f"a cluster runs in {directory} already: `spark-replication stop --directory {directory}` ends it"
    )


def _starter(directory: Path) -> LockedProcess:
    return LockedProcess(directory.resolve() / STARTER)
