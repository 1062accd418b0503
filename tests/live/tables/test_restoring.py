"""A cluster that is thrown away with all of its disks, and another that goes on with its tables (TB7)."""

from __future__ import annotations

import base64
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.core.tables.restoring import FoundTable, TopicOutline, outline_of
from spark_replication.errors import ReplicationError, WrongCluster
from spark_replication.mirror.delta.object_store import PATIENCE
from spark_replication.model import TopicConfig
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import schema_to_bytes
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.found import found_tables
from spark_replication.tables.opening import TablesPlace
from spark_replication.tables.parquet_files import StoredRows
from tests.live.cluster.faults import kill
from tests.live.cluster.test_command_line import Shell
from tests.live.cluster.test_local_cluster import processes_of
from tests.live.tables.written import SCHEMA, faults, produce, rows, stored, write
from tests.unit.tables import table_stories
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

BROKERS = 2
CONFIG = {
    "page.enabled": False,
    "min.insync.replicas": 1,
    "default.replication.factor": BROKERS,
    "table.writer.enabled": False,
}
WIDE = SCHEMA.append(pa.field("more", pa.float64()))
FOUND = {"topic", "cluster_id", "topic_id", "partitions", "rows", "ends", "columns", "then"}
DEADLINE_S = 60.0


def first_cluster(directory: Path, tables: Path) -> None:
    """Orders is led for the second time, and was widened; clicks is another table; all else is no table."""
    config = {**CONFIG, "table.path": str(tables)}
    with_tables: dict[str, Any] = {"table": True, "table.flush.ms": 7_000}
    cluster = sr.LocalCluster.start(brokers=BROKERS, directory=directory, config=config)
    cluster.admin.create_topic("orders", SCHEMA, partitions=3, replication_factor=BROKERS, config=with_tables)
    cluster.admin.create_topic("clicks", SCHEMA, partitions=1, replication_factor=1, config={"table": True})
    cluster.admin.create_topic("plain", SCHEMA, partitions=1, replication_factor=1)
    cluster.wait_healthy()
    produce(cluster, 0, 100)
    leader = leader_of(cluster)
    assert leader is not None
    cluster.kill_broker(leader)
    eventually(lambda: leader_of(cluster) not in (None, leader), "another leads", DEADLINE_S)
    cluster.restart_broker(leader)
    cluster.wait_healthy()
    produce(cluster, 100, 20)
    produce(cluster, 1_000, 30, partition=1)
    produce(cluster, 0, 10, topic="clicks")
    write(cluster)
    cluster.admin.widen_topic("orders", WIDE)
    write(cluster)
    produce(cluster, 5_000, 40)  # which is not flushed when the end comes
    os.kill(os.getpid(), signal.SIGKILL)


def leader_of(cluster: sr.LocalCluster) -> int | None:
    (topic,) = cluster.admin.describe_topics(["orders"])
    return topic.partitions[0].leader


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """What is left: tables."""
    directory, tables = tmp_path / "first", tmp_path / "tables"
    starter = multiprocessing.get_context("spawn").Process(target=first_cluster, args=(directory, tables))
    starter.start()
    starter.join()
    assert starter.exitcode == -signal.SIGKILL
    kill(*processes_of(directory))
    eventually(lambda: not processes_of(directory), "all have ended", DEADLINE_S)
    shutil.rmtree(directory)
    return tables


@pytest.fixture
def cluster(tmp_path: Path, tables: Path) -> Iterator[sr.LocalCluster]:
    config = {**CONFIG, "table.path": str(tables)}
    with sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path / "second", config=config) as cluster:
        yield cluster


@pytest.fixture
def shell(cluster: sr.LocalCluster) -> Shell:
    return Shell(cluster.bootstrap)


def found(tables: Path, topic: str = "orders") -> FoundTable:
    (table,) = found_tables(str(tables), PATIENCE, [topic])
    return table


def test_a_cluster_goes_on_with_the_tables_of_one_that_is_gone(
    cluster: sr.LocalCluster, shell: Shell, tables: Path, tmp_path: Path
) -> None:
    before = found(tables)
    old_cluster = before.origin.cluster_id
    writer = woken_writer(tables, before)

    planned = shell.rows("table", "restore", "--dry-run", has=FOUND)
    assert [(each["topic"], each["partitions"], each["rows"], each["ends"]) for each in planned] == [
        ("clicks", 1, 10, [10]),
        ("orders", 3, 150, [120, 30, 0]),
    ]
    assert {each["cluster_id"] for each in planned} == {old_cluster}
    assert planned[1]["columns"] == ["number:int64", "text:string", "more:double"]
    assert planned[1]["then"].startswith("is refused: ")
    refused = shell.run("table", "restore", "--all", code=1).stderr
    assert f"--take-over {old_cluster}" in refused
    assert cluster.admin.describe_topics() == []

    taking = ("table", "restore", "--all", "--take-over", old_cluster)
    made = shell.run(*taking).stdout
    assert made.splitlines() == [
        "clicks has 1 partitions, which go on at 10",
        "orders has 3 partitions, which go on at 120, 30, 0",
    ]
    (topic,) = cluster.admin.describe_topics(["orders"])
    assert (topic.arrow_schema, topic.config) == (WIDE, {"table": True, "table.flush.ms": 7_000})
    assert topic.partitions[0].leader_epoch > before.version.epoch_of(0) > 0
    epochs = [each.leader_epoch for each in topic.partitions]
    version = found(tables).version.number

    assert shell.run(*taking).stdout == made, "done again, it says the same"
    assert [each.leader_epoch for each in cluster.admin.describe_topics(["orders"])[0].partitions] == epochs
    assert found(tables).version.number == version, "and does nothing"

    with pytest.raises(WrongCluster, match="it stays as it is"):
        writer()
    assert produce(cluster, 7_000, 20) == [120, 130]
    assert produce(cluster, 8_000, 10, partition=1) == [30]
    assert produce(cluster, 9_000, 10, partition=2) == [0]
    produce(cluster, 10, 10, topic="clicks")
    write(cluster)
    assert faults(cluster) == []
    assert shell.rows("table", "verify", has={"topic", "partition", "what", "start", "end"}) == []
    wanted = [(each, each) for each in range(120)] + [(120 + each, 7_000 + each) for each in range(20)]
    assert stored(tmp_path, "_offset", "number", where='"_partition" = 0') == wanted
    wanted = [(each, 1_000 + each) for each in range(30)] + [(30 + each, 8_000 + each) for each in range(10)]
    assert stored(tmp_path, "_offset", "number", where='"_partition" = 1') == wanted
    assert stored(tmp_path, "number", topic="clicks") == [(each,) for each in range(20)]
    cluster.wait_healthy()


def woken_writer(tables: Path, table: FoundTable) -> Any:
    """A writer of the cluster that is gone, which was stopped before its commit."""
    assert table.outline is not None
    place = TablesPlace(table.origin.cluster_id, str(tables), PATIENCE)
    old = place.table("orders", table.origin.topic_id, table.outline)
    version = old.load()
    added = table_stories.rows(0, 120, 130, epoch=version.epoch_of(0))
    files = table_stories.uploads(old, [StoredRows(0, 120, 0, added.last_epoch, rows(666, 10))])
    return lambda: old.commit(version, [added], files)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[sr.LocalCluster]:
    """A cluster with one broker; tables of others come to where its own are."""
    config = {**CONFIG, "default.replication.factor": 1}
    with sr.LocalCluster.start(brokers=1, directory=tmp_path, config=config) as cluster:
        yield cluster


def left_by_another(directory: Path, topic: str, *, is_outlined: bool = True) -> TopicOutline:
    """A table of a cluster that is gone: 30 rows in partition 0 of 2, at leader epoch 3."""
    config = TopicConfig(schema=base64.b64encode(schema_to_bytes(SCHEMA)).decode())
    outline = outline_of(config, 2)
    owner = TableOwner(cluster_id="gone", topic=topic, topic_id="00000001-00000000")
    uri = str(directory / "tables" / topic)
    table = DeltaTopicTable(uri, owner, SCHEMA, now_ms=now_ms, outline=outline if is_outlined else None)
    files = table_stories.uploads(table, [StoredRows(0, 0, 0, 3, rows(0, 30))])
    table.commit(table.load(), [table_stories.rows(0, 0, 30, epoch=3)], files)
    return outline


def test_a_restore_that_is_cut_off_is_completed_by_the_same_command(alone: sr.LocalCluster, tmp_path: Path) -> None:
    shell, taking = Shell(alone.bootstrap), ("table", "restore", "orders", "--take-over", "gone")
    left_by_another(tmp_path, "orders")
    (table,) = found_tables(str(tmp_path / "tables"), PATIENCE, ["orders"])
    home, away = tmp_path / "tables" / "orders", tmp_path / "away"
    home.rename(away)
    missing = pytest.raises(ReplicationError, match="there is no table")
    with sr.Admin(alone.bootstrap, deadline_ms=5_000) as admin, missing:
        admin.restore_topic(table)
    reasons = [str(each) for each in alone.admin.health().reasons]
    assert any("orders-0 is not made yet" in each or "wait for the table" in each for each in reasons), reasons
    kill(alone.controller_pid)
    away.rename(home)
    assert shell.run(*taking).stdout == "orders has 2 partitions, which go on at 30, 0\n"
    assert produce(alone, 700, 10) == [30]
    write(alone)
    assert faults(alone) == []
    wanted = [(each, each) for each in range(30)] + [(30 + each, 700 + each) for each in range(10)]
    assert stored(tmp_path, "_offset", "number") == wanted

    alone.admin.delete_topic("orders")
    assert shell.run("table", "restore", "orders").stdout == "orders has 2 partitions, which go on at 40, 0\n"
    assert produce(alone, 800, 10) == [40]
    write(alone)
    assert faults(alone) == []


def test_what_is_there_or_not_known_is_left_as_it_is(alone: sr.LocalCluster, tmp_path: Path) -> None:
    shell = Shell(alone.bootstrap)
    alone.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1)
    left_by_another(tmp_path, "orders")
    left_by_another(tmp_path, "old", is_outlined=False)
    refused = shell.run("table", "restore", "orders", "old", "--take-over", "gone", code=1).stderr
    assert "topics delete orders, and restore again" in refused
    assert "has no outline of its topic (its schema, its settings and the number of its partitions)" in refused
    assert [each.name for each in alone.admin.describe_topics()] == ["orders"]
    for topic in ("orders", "old"):
        assert found(tmp_path / "tables", topic).origin.cluster_id == "gone"
    elsewhere = tmp_path / "elsewhere"
    left_by_another(elsewhere, "clicks")
    at = ("--path", str(elsewhere / "tables"))
    assert [each["topic"] for each in shell.rows("table", "restore", "--dry-run", *at, has=FOUND)] == ["clicks"]
    refused = shell.run("table", "restore", "clicks", *at, "--take-over", "gone", code=1).stderr
    assert f"start it with table.path={elsewhere / 'tables'}" in refused
    assert "Name topics, or say --all" in shell.run("table", "restore", code=2).stderr
