"""Questions to the mirror in SQL: views that show the newest version of the tables, and their history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace
from pyspark.sql import SparkSession

import spark_replication as sr
from spark_replication.admin.notebook.spark_frames import mirrored_partitions
from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.core.controller.describing import described
from spark_replication.core.controller.origin import Origin
from spark_replication.errors import InvalidRequest
from spark_replication.mirror.delta.delta_file import OWNER
from spark_replication.mirror.tables.columns import Tombstone
from spark_replication.mirror.tables.events import EVENTS, EventRow
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.status import STATUS, StatusRow
from spark_replication.mirror.tables.topics import TOPICS, TopicRow
from spark_replication.mirror.telling.feed import Teller
from spark_replication.model import TopicConfig, TopicState
from spark_replication.spark.views import changes_since, history
from spark_replication.view.conditions import WORDS
from tests.live.mirror.mirror_stories import (
    CLUSTER,
    broker_row,
    changed,
    command,
    everything,
    gone,
    group_row,
    row,
    thread,
    write,
    write_brokers,
    write_groups,
    write_partitions,
)
from tests.unit.view.described_conditions import KNOWN, cluster_with

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

VIEWS = (
    *("partitions", "brokers", "topics", "status", "routes", "events", "leaderships", "groups"),
    *("leaderless", "under_min_isr", "under_replicated", "moving", "not_preferred"),
)


DIED = Origin("4.9", "brokers", "broker 1 gone")


def led(number: int, kind: str, leader: int | None, leader_epoch: int, *, partition: int = 3) -> EventRow:
    """At as many seconds."""
    return EventRow(
        cluster_id=CLUSTER,
        number=number,
        kind=kind,
        subject={"topic": "orders", "partition": partition},
        leader=leader,
        leader_epoch=leader_epoch,
        why="isr" if kind == "elected" else None,
        origin=DIED,
        at_ms=number * 1_000,
        told_ms=0,
    )


LED = (
    led(1, "created", 1, 0),
    led(2, "created", 2, 0, partition=4),
    led(3, "isr", 1, 0),
    EventRow(cluster_id=CLUSTER, number=4, kind="gone", subject={"broker": 1}, origin=DIED, at_ms=4_000, told_ms=0),
    led(5, "leaderless", None, 1),
    led(6, "isr", None, 1),
    led(7, "elected", 1, 2),
)


@pytest.fixture
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    for name in VIEWS:
        spark.catalog.dropTempView(name)


def write_topic_and_status(path: str) -> None:
    topic = StoredTopic(state=TopicState(topic_id="first", partitions={}), version=1, config=TopicConfig(), zxid=9)
    dead = Tombstone(cluster_id=CLUSTER, key=("old",), zxid=9, told_ms=0)
    write(path, TOPICS, [TopicRow(cluster_id=CLUSTER, name="orders", topic=topic, told_ms=0)], [dead])
    status = StatusRow(
        cluster_id=CLUSTER,
        controller="127.0.0.1:9000",
        controller_epoch=4,
        zxid=20,
        event=7,
        as_of_ms=1_000,
        lag_ms=0,
        heartbeat_ms=10_000,
        problems=(),
    )
    write(path, STATUS, [status])
    write(path, EVENTS, LED)
    write_groups(path, group_row(1, 5), group_row(0, 9, group="spark:copy", lag=0))


def found(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in spark.sql(query).collect()]


def test_each_view_answers_its_question(spark: SparkSession, path: str) -> None:
    whole = command("orders", 0, leader=2, leader_epoch=3)
    whole = replace(whole, state=replace(whole.state, isr=frozenset({1, 2, 3}), epochs=dict.fromkeys((1, 2, 3), 0)))
    # Of replicas 2, 1, 3 with a min ISR of 2.
    lost = replace(row(command("orders", 3, leader=None, leader_epoch=6), 13), waiting_for="manual")
    write_partitions(
        path,
        row(whole, 10, active_epoch=3),
        row(command("orders", 1, leader=1, leader_epoch=4), 11, active_epoch=4),
        row(command("orders", 2, leader=2, leader_epoch=5), 12, active_epoch=4),
        lost,
        row(command("orders", 4, leader=3, leader_epoch=7), 14, active_epoch=7),
        dead=[gone("orders", 5, 15)],
    )
    write_brokers(path, broker_row(1, 1), broker_row(2, 1, shutting_down=True), dead=[(3, 2)])
    write_topic_and_status(path)
    sr.register(spark, mirror=path)
    assert found(spark, "SELECT partition FROM partitions ORDER BY 1") == [(0,), (1,), (2,), (3,), (4,)]
    brokers = "SELECT broker, state, host, port FROM brokers ORDER BY 1"
    assert found(spark, brokers) == [
        (1, "live", "host1", 9001),
        (2, "shutting_down", "host2", 9002),
        (3, "gone", None, None),
    ]
    assert found(spark, "SELECT topic FROM topics") == [("orders",)]
    assert found(spark, "SELECT controller, zxid FROM status") == [("127.0.0.1:9000", 20)]
    behind = "SELECT group, partition, member, lag_records FROM groups WHERE group = 'etl' AND lag_records > 0"
    assert found(spark, behind) == [("etl", 1, "one", 4)]
    assert found(spark, "SELECT count(*) FROM groups") == [(2,)]
    # Partition 2's leader has not confirmed its epoch, and 4's is gone.
    assert spark.table("routes").columns == [
        *("topic", "partition", "leader", "leader_epoch", "host", "port", "address", "topic_id")
    ]
    assert found(spark, "SELECT * FROM routes ORDER BY partition") == [
        ("orders", 0, 2, 3, "host2", 9002, "host2:9002", "first"),
        ("orders", 1, 1, 4, "host1", 9001, "host1:9001", "first"),
    ]
    leaderless = "SELECT partition, waiting_for, replicas, elr, last_known_leader, changed_at IS NULL FROM leaderless"
    assert found(spark, leaderless) == [(3, "manual", [2, 1, 3], [], None, False)]
    assert found(spark, "SELECT partition FROM under_min_isr ORDER BY 1") == [(2,), (3,)]
    assert found(spark, "SELECT partition FROM under_replicated ORDER BY 1") == [(1,), (2,), (3,), (4,)]
    assert found(spark, "SELECT partition FROM not_preferred ORDER BY 1") == [(1,), (4,)]


def test_sql_says_of_each_partition_what_all_others_say(spark: SparkSession, path: str) -> None:
    (known,) = described(cluster_with(*KNOWN), None, None).topics
    write_partitions(path, *(row(each, 10 + number) for number, each in enumerate(known.partitions)))
    write_brokers(path)
    write_topic_and_status(path)
    sr.register(spark, mirror=path)
    for condition in ("leaderless", "under_min_isr", "under_replicated", "moving"):
        holds = [(number,) for number, each in enumerate(KNOWN) if condition in each.holds]
        assert found(spark, f"SELECT partition FROM {condition} ORDER BY 1") == holds, condition
    worst = [(WORDS[each.holds[0]],) for each in KNOWN]
    shown = mirrored_partitions(spark, path).orderBy("partition").select("condition")
    assert [tuple(each) for each in shown.collect()] == worst


def test_who_led_at_a_time_and_why(spark: SparkSession, path: str) -> None:
    write_partitions(path)
    write_brokers(path)
    write_topic_and_status(path)
    sr.register(spark, mirror=path)
    assert found(spark, "SELECT number, kind FROM events WHERE cause = '4.9' AND broker = 1") == [(4, "gone")]
    led = (
        "SELECT leader, leader_epoch, unix_seconds(since), unix_seconds(until), kind, why, because FROM leaderships"
        " WHERE topic = 'orders' AND partition = {} ORDER BY since"
    )
    assert found(spark, led.format(3)) == [
        (1, 0, 1, 5, "created", None, "broker 1 gone"),
        (None, 1, 5, 7, "leaderless", None, "broker 1 gone"),
        (1, 2, 7, None, "elected", "isr", "broker 1 gone"),
    ]
    assert found(spark, led.format(4)) == [(2, 0, 2, None, "created", None, "broker 1 gone")]


def test_a_view_shows_what_was_written_after_it_was_made(spark: SparkSession, path: str) -> None:
    """By the thread that writes the tables in a controller."""
    teller = Teller(CLUSTER, 4, "127.0.0.1:9000")
    mirror = thread(path, teller)
    try:
        mirror.tell(everything(20, (command("orders", 0, leader=1), 10)))
        write_brokers(path, broker_row(1, 21))
        mirror.flush(60)
        write_topic_and_status(path)
        sr.register(spark, mirror=path)
        routes = "SELECT partition, leader, leader_epoch FROM routes ORDER BY 1"
        assert found(spark, routes) == []
        mirror.confirmed(command("orders", 0).topic_partition, "first", 0)
        mirror.flush(60)
        assert found(spark, routes) == [(0, 1, 0)]
        mirror.tell(changed((command("orders", 0, leader=None, leader_epoch=1), 30), (command("orders", 1), 31)))
        mirror.flush(60)
        assert found(spark, routes) == []
        assert found(spark, "SELECT partition FROM leaderless") == [(0,)]
        assert found(spark, "SELECT partition FROM partitions ORDER BY 1") == [(0,), (1,)]
    finally:
        mirror.close()


def test_a_view_outlives_tables_that_are_made_again(spark: SparkSession, path: str) -> None:
    write_partitions(path, row(command("orders", 0), 10))
    write_brokers(path, broker_row(1, 1))
    write_topic_and_status(path)
    sr.register(spark, mirror=path)
    assert found(spark, "SELECT topic FROM partitions") == [("orders",)]
    moved = Path(path).rename(f"{path}-before")
    write_partitions(path, row(command("payments", 0), 10))
    assert moved.exists()
    assert found(spark, "SELECT topic FROM partitions") == [("payments",)]


def test_a_view_outlives_a_table_that_gets_another_column(spark: SparkSession, path: str) -> None:
    """As when a controller of a later release takes over."""
    earlier = PARTITIONS.rows([row(command("orders", 0), 10)], []).drop_columns(["elected_how"])
    properties = {OWNER: CLUSTER}
    DeltaTable.create(PARTITIONS.path(path), earlier.schema, configuration=properties, raise_if_key_not_exists=False)
    write_deltalake(PARTITIONS.path(path), earlier, mode="append")
    write_brokers(path, broker_row(1, 1))
    write_topic_and_status(path)
    sr.register(spark, mirror=path)
    write_partitions(path, row(command("orders", 1), 11))
    assert "elected_how" in DeltaTable(PARTITIONS.path(path)).to_pyarrow_table().column_names
    assert found(spark, "SELECT partition FROM partitions ORDER BY 1") == [(0,), (1,)]
    sr.register(spark, mirror=path)
    assert found(spark, "SELECT partition, elected_how FROM partitions ORDER BY 1") == [(0, None), (1, None)]


def test_the_history_of_a_partition(spark: SparkSession, path: str) -> None:
    for zxid, leader in enumerate([1, 3, None, 2], start=1):
        led = row(command("orders", 3, leader=leader, leader_epoch=zxid), zxid)
        write_partitions(path, led, row(command("other", 3, leader_epoch=zxid), zxid))
    changes = history(spark, "orders", 3, mirror=path).collect()
    assert [each["leader"] for each in changes] == [2, None, 3, 1]
    versions = [each["_commit_version"] for each in changes]
    assert versions == sorted(versions, reverse=True)
    assert all(each["_commit_timestamp"] is not None for each in changes)
    assert history(spark, "orders", 9, mirror=path).collect() == []

    since = changes_since(spark, versions[2], mirror=path).where("topic = 'orders'").orderBy("_commit_version")
    assert [each["leader"] for each in since.collect()] == [None, 2]
    assert changes_since(spark, versions[0], mirror=path).count() == 0
    assert changes_since(spark, versions[0] + 100, mirror=path).count() == 0
    assert changes_since(spark, -1, mirror=path).count() == 8


def test_history_goes_on_once_the_tables_log_has_lost_its_head(spark: SparkSession, path: str) -> None:
    """As after a week, when what lies before a checkpoint is cleaned up."""
    for zxid in range(1, 6):
        write_partitions(path, row(command("orders", 3, leader=zxid % 2 + 1, leader_epoch=zxid), zxid))
    log = Path(PARTITIONS.path(path), "_delta_log")
    DeltaTable(PARTITIONS.path(path), version=3).create_checkpoint()
    for version in range(3):
        (log / f"{version:020}.json").unlink()
    assert [each["leader_epoch"] for each in history(spark, "orders", 3, mirror=path).collect()] == [5, 4, 3]
    assert [each["leader_epoch"] for each in changes_since(spark, 4, mirror=path).collect()] == [5]
    with pytest.raises(InvalidRequest, match="since version 0 are no longer kept: read it whole"):
        changes_since(spark, 0, mirror=path)


def test_a_tombstone_that_is_forgotten_is_no_value_of_its_row(spark: SparkSession, path: str) -> None:
    write_partitions(path, row(command("orders", 3, leader=1), 1))
    write_partitions(path, dead=[gone("orders", 3, 2)])
    DeltaTable(PARTITIONS.path(path)).delete("deleted")
    assert [each["deleted"] for each in history(spark, "orders", 3, mirror=path).collect()] == [True, False]


def test_no_tables_say_what_to_name(spark: SparkSession, path: str) -> None:
    for ask in (
        lambda: sr.register(spark, mirror=path),
        lambda: history(spark, "orders", 0, mirror=path),
        lambda: changes_since(spark, 0, mirror=path),
    ):
        with pytest.raises(InvalidRequest, match=rf"{path}.+Name the mirror.path"):
            ask()
    write_partitions(path, row(command("orders", 0), 10))
    with pytest.raises(InvalidRequest, match="brokers"):
        sr.register(spark, mirror=path)
    assert not spark.catalog.tableExists("partitions")


def test_a_session_without_delta_is_told_what_it_lacks(path: str) -> None:
    write_partitions(path, row(command("orders", 0), 10))
    program = (
        "import sys; from pyspark.sql import SparkSession; import spark_replication as sr\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "try: sr.register(spark, mirror=sys.argv[1])\n"
        "except sr.errors.InvalidRequest as error: print(error)\n"
        "finally: spark.stop()"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert "INVALID_REQUEST: this Spark session has no Delta" in told.stdout
    assert "make it by sr.session()" in told.stdout
