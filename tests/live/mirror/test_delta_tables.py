"""What one MERGE after the other leaves in the table (M2, M3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_replication.mirror.delta_tables import PartitionsTable
from spark_replication.mirror.load import load_partition_changes, load_partitions
from spark_replication.mirror.rows import MirrorRow, to_arrow
from tests.live.mirror.mirror_stories import command, row

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]


def assert_stored(spark: SparkSession, path: str, rows: Sequence[MirrorRow]) -> None:
    found = load_partitions(spark, path)
    assert_df_equality(found, spark.createDataFrame(to_arrow(rows)), ignore_row_order=True, ignore_metadata=True)


def test_new_rows_are_inserted_whole(spark: SparkSession, path: str, table: PartitionsTable) -> None:
    rows = [row(command("orders", 0), 10), row(command("orders", 1, leader=None, leader_epoch=4), 11, active_epoch=3)]
    table.merge(rows)
    assert_stored(spark, path, rows)


FIRST = row(command(leader=1, leader_epoch=5), 10, active_epoch=4)


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        pytest.param(r := row(command(leader=3, leader_epoch=6), 11, active_epoch=6), r, id="a higher zxid wins"),
        pytest.param(row(command(leader=3, leader_epoch=4), 9, active_epoch=4), FIRST, id="an older zxid does nothing"),
        pytest.param(
            row(command(leader=3, leader_epoch=6), 9, active_epoch=6),
            FIRST,
            id="an older zxid does nothing, whatever it says of epochs",
        ),
        pytest.param(
            r := row(command(leader=1, leader_epoch=5), 10, active_epoch=5), r, id="equal zxid: a confirmation wins"
        ),
        pytest.param(
            row(command(leader=1, leader_epoch=5), 10), FIRST, id="equal zxid: a lower active_epoch does nothing"
        ),
        pytest.param(
            row(command(leader=1, leader_epoch=5, partition_epoch=9), 12),
            row(command(leader=1, leader_epoch=5, partition_epoch=9), 12, active_epoch=4),
            id="a new controller's change keeps what was confirmed to the old one",
        ),
        pytest.param(
            r := row(command(leader=1, leader_epoch=0, topic_id="second"), 12),
            r,
            id="a topic made again starts unconfirmed",
        ),
        pytest.param(
            r := row(command(leader=2, leader_epoch=0), 1, cluster_id="cluster-b"),
            r,
            id="another cluster's row is replaced, whatever its zxid",
        ),
    ],
)
def test_which_of_two_rows_counts(
    told: MirrorRow, stored: MirrorRow, spark: SparkSession, path: str, table: PartitionsTable
) -> None:
    table.merge([FIRST])
    table.merge([told])
    assert_stored(spark, path, [stored])


def test_rows_of_another_cluster_do_not_stay(spark: SparkSession, path: str, table: PartitionsTable) -> None:
    table.merge([row(command("orders", 0), 10), row(command("orders", 1), 10)])
    ours = row(command("payments", 0), 1, cluster_id="cluster-b")
    PartitionsTable(spark, path, "cluster-b").merge([ours])
    assert_stored(spark, path, [ours])


def test_a_deleted_partition_is_gone_and_a_late_writer_does_not_bring_it_back(
    spark: SparkSession, path: str, table: PartitionsTable
) -> None:
    table.merge([FIRST])
    table.merge([row(FIRST.command, 20, deleted=True)])
    table.merge([row(command(leader_epoch=6), 19)])
    assert_stored(spark, path, [])


def test_the_change_feed_answers_who_led_at_a_version(spark: SparkSession, path: str, table: PartitionsTable) -> None:
    for zxid, leader in enumerate([1, 3, None, 2], start=1):
        table.merge([row(command("orders", 3, leader=leader, leader_epoch=zxid), zxid), row(command("other", 3), zxid)])
    changes = load_partition_changes(spark, path).where("topic = 'orders' AND partition = 3").orderBy("_commit_version")
    history = [(change["_commit_version"], change["leader"]) for change in changes.collect()]
    versions = [version for version, _ in history]
    assert [leader for _, leader in history] == [1, 3, None, 2]

    up_to_second = load_partition_changes(spark, path, last_version=versions[1]).where("topic = 'orders'")
    (last,) = up_to_second.orderBy("_commit_version", ascending=False).limit(1).collect()
    assert last["leader"] == 3


def test_columns_say_what_they_mean(spark: SparkSession, path: str, table: PartitionsTable) -> None:
    table.merge([FIRST])
    fields = {field.name: field for field in load_partitions(spark, path).schema}
    assert "route to the leader once it equals" in fields["active_epoch"].metadata["comment"]
