"""`spark-replication mirror`: what the Delta tables say, and whether that is so."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
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
from spark_replication.mirror.brokers import BROKERS, BrokerRow
from spark_replication.mirror.load import TABLES, read_status, read_table
from spark_replication.mirror.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.status import STATUS
from spark_replication.mirror.topics import TOPICS, TopicRow
from spark_replication.mirror.verifying import Difference, differences
from spark_replication.model import TopicPartition
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session

TIMEOUT_MS = 30_000
LOOK_S = 0.2
COLUMNS = {
    "partitions": (
        *("topic", "partition", "leader", "leader_epoch", "active_epoch", "leader_since", "isr", "elr", "replicas"),
        *("state", "waiting_for", "elected_how", "zxid", "changed_at"),
    ),
    "brokers": ("broker", "host", "port", "rack", "epoch", "state", "zxid", "changed_at"),
    "topics": ("topic", "topic_id", "partitions", "schema_version", "settings", "zxid", "changed_at"),
}
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
@click.option("--table", type=click.Choice(sorted(COLUMNS)), default="partitions", show_default=True)
@click.argument("topics", nargs=-1, metavar="[TOPIC]…")
def show_rows(path: str, output: Format, table: str, topics: tuple[str, ...]) -> None:
    """What there is as the table shows it: no broker and no ZooKeeper is asked."""
    if topics and table == "brokers":
        raise click.UsageError("a broker is of no topic: leave out TOPIC, or ask for another --table")
    key, columns = TABLES[table].key, COLUMNS[table]
    rows = sorted(_shown(table, path), key=lambda row: [row[name] for name in key])
    wanted = [row for row in rows if not topics or row["topic"] in topics]
    show(columns, ([row.get(name) for name in columns] for row in wanted), output=output)


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
@click.option("--wait", "wait_s", default=5.0, show_default=True, help="seconds in which the tables may catch up")
def verify(bootstrap: str, path: str, output: Format, wait_s: float) -> None:
    """Compare the tables with ZooKeeper, row by row: exit 0 if they agree, 1 if not, with what differs.

    What goes on meanwhile is no difference: it is looked again until they agree, or --wait is over."""
    deadline = time.monotonic() + wait_s
    with _zookeeper(bootstrap) as session:
        found, count = _compared(session, path)
        while found and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            found, count = _compared(session, path)
    if output == "json" or found:
        show(("table", "row", "column", "zookeeper", "shown"), map(_told, found), output=output)
    click.echo(f"{count} rows, {len(found)} differences", err=True)
    sys.exit(1 if found else 0)


def _told(found: Difference) -> tuple[Any, ...]:
    row = "-".join(str(each) for each in found.key)
    return found.table, row, found.column or "(row)", found.stored, found.shown


def _compared(session: Session, path: str) -> tuple[list[Difference], int]:
    """And how many rows there should be. What cannot be read in ZooKeeper is left as it is there, and here."""
    reading = Reading(session)
    stored = _stored(reading)
    found = [
        each
        for name, table in TABLES.items()
        for each in differences(table, stored[name], _shown(name, path))
        if not table.hides(reading.unreadable, each.key)
    ]
    return found, sum(map(len, stored.values()))


def _stored(reading: Reading) -> dict[str, list[Any]]:
    """The rows of each table, as they are to be."""
    topics = reading.topics()
    partitions = reading.partitions(
        TopicPartition(name, number) for name, topic in topics.items() for number in topic.state.partitions
    )
    brokers = reading.brokers()
    return {
        PARTITIONS.name: [
            PartitionRow(cluster_id="", command=command, zxid=partitions[command.topic_partition].zxid, told_ms=0)
            for command in commands_of(topics, partitions)
        ],
        TOPICS.name: [TopicRow(cluster_id="", name=name, topic=topic, told_ms=0) for name, topic in topics.items()],
        BROKERS.name: [
            BrokerRow(
                cluster_id="",
                broker=broker,
                registration=registration,
                zxid=brokers.registered[broker].zxid,
                at_ms=0,
                told_ms=0,
            )
            for broker, registration in brokers.brokers.items()
        ],
    }


def _shown(table: str, path: str) -> list[dict[str, Any]]:
    return _rows(partial(read_table, table), path)


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
