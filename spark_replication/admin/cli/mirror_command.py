"""`spark-replication mirror`: what the Delta tables say, and whether that is so."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from deltalake.exceptions import DeltaError

from spark_replication.admin.cli.listing import Format, bootstrap, output, show
from spark_replication.client.bootstrap import SESSION_MS, RegisteredBrokers, parse_bootstrap
from spark_replication.config import Settings
from spark_replication.core.controller.cluster import commands_of
from spark_replication.errors import InvalidRequest
from spark_replication.mirror.load import read_partitions, read_status
from spark_replication.mirror.partitions import PartitionRow
from spark_replication.mirror.status import STATUS
from spark_replication.mirror.verifying import Difference, differences
from spark_replication.model import TopicPartition
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session

TIMEOUT_MS = 30_000
LOOK_S = 0.2
COLUMNS = (
    *("topic", "partition", "leader", "leader_epoch", "active_epoch", "isr", "elr", "replicas", "state"),
    *("elected_how", "zxid", "updated_at"),
)
STATUS_COLUMNS = (*STATUS.schema.names, "fresh")

_path = click.option(
    "--path", default=str(Path(Settings().data_dir) / "mirror"), show_default=True, help="mirror.path of the cluster"
)


@click.group()
def mirror() -> None:
    """The Delta tables that show who leads which partition."""


@mirror.command(name="show")
@_path
@output
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def show_rows(path: str, output: Format, topics: tuple[str, ...]) -> None:
    """The partitions as the table shows them: no broker and no ZooKeeper is asked."""
    rows = sorted(_shown(path), key=lambda row: (row["topic"], row["partition"]))
    wanted = [row for row in rows if not topics or row["topic"] in topics]
    show(COLUMNS, ([row.get(name) for name in COLUMNS] for row in wanted), output=output)


@mirror.command()
@_path
@output
def status(path: str, output: Format) -> None:
    """How far the tables are, and who writes them: exit 1 if nobody has said so for two heartbeats."""
    rows = _rows(read_status, path)
    now = datetime.now(UTC)
    fresh = [now - row["as_of"] <= timedelta(milliseconds=2 * row["heartbeat_ms"]) for row in rows]
    show(STATUS_COLUMNS, ([*row.values(), is_fresh] for row, is_fresh in zip(rows, fresh, strict=True)), output=output)
    sys.exit(0 if fresh and all(fresh) else 1)


@mirror.command()
@bootstrap
@_path
@output
@click.option("--wait", "wait_s", default=5.0, show_default=True, help="seconds in which the table may catch up")
def verify(bootstrap: str, path: str, output: Format, wait_s: float) -> None:
    """Compare the table with ZooKeeper, row by row: exit 0 if they agree, 1 if not, with what differs.

    What goes on meanwhile is no difference: it is looked again until they agree, or --wait is over."""
    deadline = time.monotonic() + wait_s
    with _zookeeper(bootstrap) as session:
        found, count = _compared(session, path)
        while found and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            found, count = _compared(session, path)
    if output == "json" or found:
        rows = [(each.partition.topic, each.partition.partition, *_told(each)) for each in found]
        show(("topic", "partition", "column", "zookeeper", "table"), rows, output=output)
    click.echo(f"{count} partitions, {len(found)} differences", err=True)
    sys.exit(1 if found else 0)


def _told(difference: Difference) -> tuple[str, Any, Any]:
    return difference.column or "(row)", difference.stored, difference.shown


def _compared(session: Session, path: str) -> tuple[list[Difference], int]:
    """And how many partitions there are. What cannot be read in ZooKeeper is left as it is there, and here."""
    reading = Reading(session)
    topics = reading.topics()
    partitions = reading.partitions(
        TopicPartition(name, number) for name, topic in topics.items() for number in topic.state.partitions
    )
    stored = [
        PartitionRow(cluster_id="", command=command, zxid=partitions[command.topic_partition].zxid, told_ms=0)
        for command in commands_of(topics, partitions)
    ]
    hidden = reading.unreadable
    found = [each for each in differences(stored, _shown(path)) if not hidden.hides(each.partition)]
    return found, len(stored)


def _shown(path: str) -> list[dict[str, Any]]:
    return _rows(read_partitions, path)


def _rows(read: Callable[[str], pa.Table], path: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = read(path).to_pylist()
        return rows
    except (DeltaError, OSError) as error:
        raise InvalidRequest(
            f"there is no table to read at {path}: {error}. Name the mirror.path of the cluster with --path"
        ) from error


@contextmanager
def _zookeeper(bootstrap: str) -> Iterator[Session]:
    where = parse_bootstrap(bootstrap)
    if not isinstance(where, RegisteredBrokers):
        raise InvalidRequest(f"{bootstrap} names brokers: give zk://host:port/chroot, which is what is compared")
    session = Session.connect(
        where.zookeeper, where.chroot, session_timeout_ms=SESSION_MS, request_timeout_ms=TIMEOUT_MS
    )
    try:
        yield session
    finally:
        session.close()
