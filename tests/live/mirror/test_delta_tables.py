"""Spark reads what the mirror wrote without it: whole, of an earlier version, and as changes; and it may tidy up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chispa import assert_df_equality
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from spark_replication.mirror.asking.load import load_partition_changes, load_partitions
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.tables.columns import Tombstone
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from tests.live.mirror.mirror_stories import CLUSTER, command, gone, row

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def file(path: str) -> DeltaFile[PartitionRow]:
    return DeltaFile(PARTITIONS, PARTITIONS.path(path), CLUSTER)


def merge(file: DeltaFile[PartitionRow], live: Sequence[PartitionRow], dead: Sequence[Tombstone] = ()) -> None:
    rows = PARTITIONS.rows(live, dead)
    file.merge(lambda _opened: rows)


def assert_stored(spark: SparkSession, path: str, rows: Sequence[PartitionRow]) -> None:
    found, wanted = load_partitions(spark, path), spark.createDataFrame(PARTITIONS.rows(rows, []))
    assert_df_equality(found, wanted, ignore_row_order=True, ignore_metadata=True, ignore_nullable=True)


def test_spark_reads_rows_whole_and_no_tombstones(
    spark: SparkSession, path: str, file: DeltaFile[PartitionRow]
) -> None:
    rows = [row(command("orders", 0), 10), row(command("orders", 1, leader=None, leader_epoch=4), 11, active_epoch=3)]
    merge(file, rows, [gone("orders", 2, 12)])
    assert_stored(spark, path, rows)
    fields = {field.name: field for field in load_partitions(spark, path).schema}
    assert "route to the leader once it equals" in fields["active_epoch"].metadata["comment"]


def test_the_change_feed_answers_who_led_at_a_version(
    spark: SparkSession, path: str, file: DeltaFile[PartitionRow]
) -> None:
    for zxid, leader in enumerate([1, 3, None, 2], start=1):
        merge(file, [row(command("orders", 3, leader=leader, leader_epoch=zxid), zxid), row(command("other", 3), zxid)])
    changes = load_partition_changes(spark, path).where("topic = 'orders' AND partition = 3").orderBy("_commit_version")
    history = [(change["_commit_version"], change["leader"]) for change in changes.collect()]
    versions = [version for version, _ in history]
    assert [leader for _, leader in history] == [1, 3, None, 2]

    up_to_second = load_partition_changes(spark, path, last_version=versions[1]).where("topic = 'orders'")
    (last,) = up_to_second.orderBy("_commit_version", ascending=False).limit(1).collect()
    assert last["leader"] == 3
    third = spark.read.format("delta").option("versionAsOf", versions[2]).load(PARTITIONS.path(path))
    assert [found["leader"] for found in third.where("topic = 'orders'").collect()] == [None]


def test_spark_may_tidy_between_two_writes(spark: SparkSession, path: str, file: DeltaFile[PartitionRow]) -> None:
    for number in range(3):
        merge(file, [row(command("orders", number), 10 + number)])
    DeltaTable.forPath(spark, PARTITIONS.path(path)).optimize().executeCompaction()
    after = row(command("orders", 1, leader_epoch=5), 20)
    merge(file, [after])
    assert_stored(spark, path, [row(command("orders", 0), 10), after, row(command("orders", 2), 12)])
