"""Compares the mirror's tables with ZooKeeper, and has them rebuilt: for the command line and for jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from spark_replication.client.asking.admin import Admin
from spark_replication.client.finding.bootstrap import SESSION_MS, ZooKeeperBrokers, parse_bootstrap
from spark_replication.core.controller.cluster import commands_of
from spark_replication.core.law.writes import StoredPartition
from spark_replication.errors import InvalidRequest
from spark_replication.mirror.asking.load import TABLES, UNREADABLE, read_table
from spark_replication.mirror.asking.verifying import Difference, differences
from spark_replication.mirror.tables.brokers import BROKERS, BrokerRow
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.tables.topics import TOPICS, TopicRow
from spark_replication.model import TopicPartition
from spark_replication.transport.security.security import Security
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session

TIMEOUT_MS = 30_000
LOOK_S = 0.2
READ_TOGETHER = 1_000  # partitions, between two reports of progress


class Agreement(msgspec.Struct, frozen=True):
    #: How many rows there should be.
    rows: int
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        return f"{self.rows} rows, {len(self.differences)} differences"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one comparison: first all partitions are read from ZooKeeper, then all rows are compared."""

    #: How many of `partitions` are read.
    read: int
    partitions: int
    #: How many of `rows` are compared.
    compared: int
    #: How many rows there should be; 0 until all partitions are read.
    rows: int
    #: How many were found among the compared rows.
    differences: int

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.read} of {self.partitions} partitions are read from ZooKeeper"
        return f"{self.compared} of {self.rows} rows are compared, {self.differences} differences"


Tell = Callable[[Comparison], None]


def verified(
    bootstrap: str, path: str, wait_s: float, security: Security, tell: Tell = lambda _comparison: None
) -> Agreement:
    """Compare until mirror and ZooKeeper agree, or the time is over: a change on its way is no difference."""
    with _zookeeper(bootstrap, security) as session:
        return _agreed(session, path, wait_s, tell)


def rebuilt(
    bootstrap: str, path: str, wait_s: float, security: Security, tell: Tell = lambda _comparison: None
) -> Agreement:
    """Let the controller rebuild the mirror, and compare it then. It alone knows what leaders have confirmed."""
    with _zookeeper(bootstrap, security) as session, closing(Admin(bootstrap, security=security)) as admin:
        admin.rebuild_mirror()
        return _agreed(session, path, wait_s, tell)


def told(found: Difference) -> tuple[Any, ...]:
    """The cells of a difference, in the columns of DIFFERENCE."""
    row = "-".join(str(each) for each in found.key)
    return found.table, row, found.column or "(row)", found.stored, found.shown


DIFFERENCE = ("table", "row", "column", "zookeeper", "shown")


def _agreed(session: Session, path: str, wait_s: float, tell: Tell) -> Agreement:
    deadline = time.monotonic() + wait_s
    found = _compared(session, path, tell)
    while found.differences and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        found = _compared(session, path, tell)
    return found


def _compared(session: Session, path: str, tell: Tell) -> Agreement:
    """Compare once. What cannot be read in ZooKeeper is left out."""
    reading = Reading(session)
    stored = _stored(reading, tell)
    partitions, rows = len(stored[PARTITIONS.name]), sum(map(len, stored.values()))
    found: list[Difference] = []
    compared = 0
    for name, table in TABLES.items():
        unlike = differences(table, stored[name], rows_of(partial(read_table, name), path))
        found += [each for each in unlike if not table.hides(reading.unreadable, each.key)]
        compared += len(stored[name])
        tell(Comparison(read=partitions, partitions=partitions, compared=compared, rows=rows, differences=len(found)))
    return Agreement(rows, tuple(found))


def _stored(reading: Reading, tell: Tell) -> dict[str, list[Any]]:
    """The rows that each table should have."""
    topics = reading.topics()
    named = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.state.partitions]
    partitions: dict[TopicPartition, StoredPartition] = {}
    for start in range(0, len(named), READ_TOGETHER):
        tell(Comparison(read=start, partitions=len(named), compared=0, rows=0, differences=0))
        partitions |= reading.partitions(named[start : start + READ_TOGETHER])
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
def _zookeeper(bootstrap: str, security: Security) -> Iterator[Session]:
    where = parse_bootstrap(bootstrap, security.zookeeper)
    if not isinstance(where, ZooKeeperBrokers):
        raise InvalidRequest(f"{bootstrap} names no ZooKeeper: give zk://host:port/chroot, which is what is compared")
    session = Session.connect(
        where.zookeeper,
        where.chroot,
        session_timeout_ms=SESSION_MS,
        request_timeout_ms=TIMEOUT_MS,
        login=where.login,
    )
    try:
        yield session
    finally:
        session.close()
