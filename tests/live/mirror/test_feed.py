"""The mirror's thread against real Delta: it coalesces, never blocks who tells it, and tries again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_replication.errors import RequestTimedOut, StorageFailed
from spark_replication.mirror.delta_tables import partitions_path
from spark_replication.mirror.feed import MirrorThread
from spark_replication.mirror.load import load_partition_changes, load_partitions
from spark_replication.model import TopicPartition
from spark_replication.ports import MirrorFeed
from tests.live.mirror.mirror_stories import CLUSTER, command

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
ORDERS_3 = TopicPartition("orders", 3)

Start = Callable[..., MirrorThread]


@pytest.fixture
def start(spark: SparkSession, path: str) -> Iterator[Start]:
    started: list[MirrorThread] = []

    def starter(interval_ms: int = 100) -> MirrorThread:
        started.append(MirrorThread(spark, path, CLUSTER, interval_ms))
        return started[-1]

    yield starter
    for mirror in started:
        mirror.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def test_a_decision_and_its_confirmation_arrive(spark: SparkSession, path: str, start: Start) -> None:
    mirror = start()
    feed: MirrorFeed = mirror
    feed.changed((told, 10) for told in [command(leader=1, leader_epoch=7)])
    mirror.flush(DEADLINE_S)
    (before,) = load_partitions(spark, path).collect()
    feed.confirmed(ORDERS_3, command().topic_id, 7)
    mirror.flush(DEADLINE_S)
    (after,) = load_partitions(spark, path).collect()
    assert (before["leader_epoch"], before["active_epoch"]) == (7, -1)
    assert (after["leader_epoch"], after["active_epoch"]) == (7, 7)
    assert (mirror.pending, mirror.lag_ms()) == (0, 0)


def test_a_deleted_topic_leaves(spark: SparkSession, path: str, start: Start) -> None:
    mirror = start()
    mirror.changed([(command("orders"), 10), (command("payments"), 10)])
    mirror.deleted("orders", 11)
    mirror.flush(DEADLINE_S)
    assert [found["topic"] for found in load_partitions(spark, path).collect()] == ["payments"]


def test_a_thousand_changes_are_few_merges_and_nobody_waits_for_them(
    spark: SparkSession, path: str, start: Start
) -> None:
    mirror = start(interval_ms=1)
    mirror.changed([(command("orders", 0), 1)])
    wait_for((Path(partitions_path(path)) / "_delta_log").exists)  # the first write is under way, and takes seconds
    began = time.monotonic()
    slowest_s = 0.0
    for zxid in range(2, 1_002):
        told = time.monotonic()
        mirror.changed([(command("orders", zxid % 4, leader_epoch=zxid), zxid)])
        slowest_s = max(slowest_s, time.monotonic() - told)
    told_s = time.monotonic() - began
    waited, lag_ms = mirror.pending, mirror.lag_ms()
    mirror.flush(DEADLINE_S)
    flushed_s = time.monotonic() - began

    assert slowest_s < flushed_s / 2
    assert told_s < flushed_s
    assert 0 < waited <= 4
    assert lag_ms > 0
    merges = load_partition_changes(spark, path).select("_commit_version").distinct().count()
    assert merges <= 20
    stored = {found["partition"]: found["zxid"] for found in load_partitions(spark, path).collect()}
    assert stored == {0: 1_000, 1: 1_001, 2: 998, 3: 999}


def test_a_failing_path_is_reported_once_and_tried_again(
    spark: SparkSession, path: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    Path(path).write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, logger="spark_replication.mirror"):
        mirror = start()
        mirror.changed([(command(leader_epoch=1), 10)])
        wait_for(lambda: mirror.error is not None)
        error = mirror.error
        with pytest.raises(RequestTimedOut, match=r"1 partitions are not in .*KAFKA_STORAGE_ERROR"):
            mirror.flush(2.0)
        mirror.changed([(command(leader_epoch=2), 11)])
        assert (mirror.pending, mirror.lag_ms() > 0) == (1, True)
        Path(path).unlink()
        mirror.flush(DEADLINE_S)

    assert isinstance(error, StorageFailed)
    assert "mirror.path" in error.message
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert mirror.error is None
    assert [found["leader_epoch"] for found in load_partitions(spark, path).collect()] == [2]


def test_closing_writes_what_waits(spark: SparkSession, path: str, start: Start) -> None:
    mirror = start(interval_ms=600_000)
    mirror.changed([(command(leader_epoch=1), 10)])
    mirror.close(DEADLINE_S)
    assert load_partitions(spark, path).count() == 1
    mirror.changed([(command(leader_epoch=2), 11)])
    with pytest.raises(RequestTimedOut, match="has ended"):
        mirror.flush(DEADLINE_S)


def test_closing_gives_up_after_a_last_try(path: str, start: Start) -> None:
    Path(path).write_text("a file where the folder should be")
    mirror = start()
    mirror.changed([(command(), 10)])
    mirror.close(DEADLINE_S)
    assert mirror.pending == 1
