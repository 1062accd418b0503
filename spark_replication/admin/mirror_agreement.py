"""Whether the mirror's tables are as ZooKeeper is, and having them made so: for the command line and for jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from spark_replication.client.admin import Admin
from spark_replication.client.bootstrap import SESSION_MS, RegisteredBrokers, parse_bootstrap
from spark_replication.core.controller.cluster import commands_of
from spark_replication.errors import InvalidRequest
from spark_replication.mirror.brokers import BROKERS, BrokerRow
from spark_replication.mirror.load import TABLES, UNREADABLE, read_table
from spark_replication.mirror.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.topics import TOPICS, TopicRow
from spark_replication.mirror.verifying import Difference, differences
from spark_replication.model import TopicPartition
from spark_replication.transport.security import Security
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session

TIMEOUT_MS = 30_000
LOOK_S = 0.2


class Agreement(msgspec.Struct, frozen=True):
    """rows: as many as there should be."""

    rows: int
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        return f"{self.rows} rows, {len(self.differences)} differences"


def verified(bootstrap: str, path: str, wait_s: float) -> Agreement:
    """Looked at until they agree, or the time is over: what goes on meanwhile is no difference."""
    with _zookeeper(bootstrap) as session:
        return _agreed(session, path, wait_s)


def rebuilt(bootstrap: str, path: str, wait_s: float, security: Security) -> Agreement:
    """By the controller, which alone knows what leaders have confirmed; and then looked at."""
    with _zookeeper(bootstrap) as session, closing(Admin(bootstrap, security=security)) as admin:
        admin.rebuild_mirror()
        return _agreed(session, path, wait_s)


def told(found: Difference) -> tuple[Any, ...]:
    """As DIFFERENCE names it."""
    row = "-".join(str(each) for each in found.key)
    return found.table, row, found.column or "(row)", found.stored, found.shown


DIFFERENCE = ("table", "row", "column", "zookeeper", "shown")


def _agreed(session: Session, path: str, wait_s: float) -> Agreement:
    deadline = time.monotonic() + wait_s
    found = _compared(session, path)
    while found.differences and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        found = _compared(session, path)
    return found


def _compared(session: Session, path: str) -> Agreement:
    """What cannot be read in ZooKeeper is left as it is there, and here."""
    reading = Reading(session)
    stored = _stored(reading)
    found = tuple(
        each
        for name, table in TABLES.items()
        for each in differences(table, stored[name], rows_of(partial(read_table, name), path))
        if not table.hides(reading.unreadable, each.key)
    )
    return Agreement(sum(map(len, stored.values())), found)


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


def rows_of(read: Callable[[str], pa.Table], path: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = read(path).to_pylist()
        return rows
    except UNREADABLE as error:
        raise InvalidRequest(
            f"there is no table to read at {path}: {error}. Name the mirror.path of the cluster with --path"
        ) from error


@contextmanager
def _zookeeper(bootstrap: str) -> Iterator[Session]:
    where = parse_bootstrap(bootstrap)
    if not isinstance(where, RegisteredBrokers):
        raise InvalidRequest(f"{bootstrap} names no ZooKeeper: give zk://host:port/chroot, which is what is compared")
    session = Session.connect(
        where.zookeeper, where.chroot, session_timeout_ms=SESSION_MS, request_timeout_ms=TIMEOUT_MS
    )
    try:
        yield session
    finally:
        session.close()
