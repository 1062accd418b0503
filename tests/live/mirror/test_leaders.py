"""Rows find their partition and its leader in Spark: as columns, and in code on executors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import spark_replication as sr
from spark_replication.core.routing import partition_of
from spark_replication.errors import InvalidRequest
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.mirror.asking.routing import LeaderTable
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.keys import key_bytes
from spark_replication.model import TopicConfig
from tests.live.mirror.mirror_stories import broker_row, command, gone, row, write_brokers, write_partitions

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

NUMBERS = (0, 2, 3, 7)  # the others were removed
ADDED = ["_partition", "_leader", "_leader_host", "_leader_port", "_leader_epoch"]


@pytest.fixture
def tables(path: str) -> str:
    """Partition 3's leader has not confirmed that it leads, partition 7 has none."""
    write_brokers(path, broker_row(1, 1), broker_row(2, 1))
    write_partitions(
        path,
        row(command("orders", 0, leader=1, leader_epoch=4), 10, active_epoch=4),
        row(command("orders", 2, leader=2, leader_epoch=5), 11, active_epoch=5),
        row(command("orders", 3, leader=2, leader_epoch=6), 12, active_epoch=5),
        row(command("orders", 7, leader=None, leader_epoch=7), 13, active_epoch=7),
        row(command("other", 1), 14),
        dead=[gone("orders", 1, 15), gone("dead", 0, 15)],
    )
    return path


LEADERS: dict[int, tuple[Any, ...]] = {
    0: (1, "host1", 9001, 4),
    2: (2, "host2", 9002, 5),
    3: (None, None, None, None),
    7: (None, None, None, None),
}


def place_of(key: bytes) -> int:
    partitions = tuple(command("orders", number) for number in NUMBERS)
    topic = TopicMetadata(name="orders", topic_id="first", config=TopicConfig(), partitions=partitions)
    return partition_of(topic, key)


def test_a_thousand_keys_go_where_clients_send_them(spark: SparkSession, tables: str) -> None:
    rows = spark.range(1_000).transform(sr.with_leader("orders", key=["id"], mirror=tables))
    assert rows.columns == ["id", *ADDED]
    found = {each["id"]: tuple(each)[1:] for each in rows.collect()}
    expected = {}
    for id_ in range(1_000):
        partition = place_of(str(id_).encode())
        expected[id_] = (partition, *LEADERS[partition])
    assert found == expected
    assert {partition for partition, *_ in found.values()} == set(NUMBERS)
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "Python" not in plan
    assert "Nested" not in plan


KEYS = pa.table(
    {
        "text": ["a", "ü", None, ""],
        "bytes": pa.array([b"\x00\xff", b"", None, b"a"]),
        "small": pa.array([-5, 7, None, 0], pa.int8()),
        "flag": [True, False, None, True],
        "day": [date(2026, 3, 1), date(1, 1, 1), None, date(9999, 12, 31)],
    }
)


@pytest.mark.parametrize("key", [["text"], ["bytes"], ["small"], ["flag"], ["day"], ["text", "bytes", "small", "day"]])
def test_a_key_has_the_same_bytes_in_spark_and_in_arrow(spark: SparkSession, tables: str, key: list[str]) -> None:
    rows = spark.createDataFrame(KEYS).transform(sr.with_leader("orders", key=key, mirror=tables))
    columns = [KEYS[name].combine_chunks() for name in key]
    keys = columns[0] if len(key) == 1 else pa.StructArray.from_arrays(columns, key)
    expected = [place_of(each) for each in key_bytes(keys).to_pylist()]
    assert LeaderTable(tables).partition_of("orders", keys).to_pylist() == expected
    found = rows.toArrow()
    order = [KEYS["small"].to_pylist().index(each) for each in found["small"].to_pylist()]
    assert found["_partition"].to_pylist() == [expected[place] for place in order]


def test_one_column_needs_no_list_and_may_lie_within_another(spark: SparkSession, tables: str) -> None:
    rows = spark.createDataFrame([("a",), ("b",)], "id string")
    (plain, within) = (
        frame.transform(sr.with_leader("orders", key=name, mirror=tables)).orderBy("id").select(*ADDED).collect()
        for frame, name in ((rows, "ID"), (rows.select("id", sql.struct("id").alias("whole")), "whole.id"))
    )
    assert plain == within
    assert plain[0]["_partition"] == place_of(b"a")


def test_what_cannot_be_is_refused_at_once(spark: SparkSession, tables: str, path: str) -> None:
    rows = spark.range(3).selectExpr("id", "cast(id as double) AS amount", "now() AS at", "1.0BD AS price")

    def refused(
        says: str, rows: DataFrame = rows, topic: str = "orders", key: Any = "id", mirror: str = tables
    ) -> None:
        with pytest.raises(InvalidRequest, match=says):
            rows.transform(sr.with_leader(topic, key=key, mirror=mirror))

    refused("no topic 'none'", topic="none")
    refused("no topic 'dead'", topic="dead")
    refused("Name the mirror", mirror=f"{path}-elsewhere")
    for key in ("amount", "at", "price"):
        refused(f"column {key} .+ cast others to string", key=key)
    refused("absent", key=["id", "absent"])
    refused("name one at least", key=[])
    refused("name each column", key="*")
    refused("_leader", rows=rows.withColumnRenamed("at", "_LEADER"))


def test_a_stream_sees_a_change_of_leader_with_its_next_batch(spark: SparkSession, tables: str, tmp_path: Path) -> None:
    """Also one of the number of partitions: a batch reads both of one version."""
    source, sink = tmp_path / "in", tmp_path / "out"
    source.mkdir()

    def stream() -> Iterator[set[tuple[Any, ...]]]:
        rows = spark.readStream.schema("id string").json(str(source))
        to = rows.transform(sr.with_leader("orders", key="id", mirror=tables)).writeStream.format("parquet")
        to = to.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(sink))
        query = to.trigger(processingTime="0 seconds").start()
        try:
            while True:
                query.processAllAvailable()
                yield {tuple(each) for each in spark.read.parquet(str(sink)).select("id", *ADDED).collect()}
        finally:
            query.stop()

    key = next(str(number) for number in range(100) if place_of(str(number).encode()) == 3)
    (source / "1.json").write_text(f'{{"id": "{key}"}}\n')
    answers = stream()
    assert next(answers) == {(key, 3, None, None, None, None)}
    write_partitions(tables, row(command("orders", 3, leader=2, leader_epoch=6), 12, active_epoch=6))
    (source / "2.json").write_text(f'{{"id": "{key}"}}\n')
    assert next(answers) == {(key, 3, None, None, None, None), (key, 3, 2, "host2", 9002, 6)}
    write_partitions(tables, dead=[gone("orders", number, 20) for number in NUMBERS if number != 2])
    (source / "3.json").write_text('{"id": "x"}\n')
    assert ("x", 2, 2, "host2", 9002, 5) in next(answers)
    answers.close()  # type: ignore[attr-defined]


def test_a_topic_that_is_deleted_meanwhile_is_an_error_and_no_null(spark: SparkSession, tables: str) -> None:
    rows = spark.range(3).transform(sr.with_leader("orders", key="id", mirror=tables))
    write_partitions(tables, dead=[gone("orders", number, 20) for number in NUMBERS])
    with pytest.raises(PySparkException, match="no topic 'orders' any more"):
        rows.collect()


def test_code_on_executors_routes_by_a_table_that_it_reads_itself(spark: SparkSession, tables: str) -> None:
    table = LeaderTable(tables)
    assert table.route("orders", 0) is not None
    # What the driver has read stays with it.
    write_partitions(tables, row(command("orders", 0, leader=2, leader_epoch=8), 20, active_epoch=8))

    def routed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            partitions = table.partition_of("orders", batch.column("id"))
            routes = {number: table.route("orders", number) for number in pc.unique(partitions).to_pylist()}
            addresses = [None if (to := routes[number]) is None else to.address for number in partitions.to_pylist()]
            yield pa.record_batch([batch.column("id"), partitions, pa.array(addresses, pa.string())], ["id", "p", "to"])

    rows = spark.range(1_000).repartition(3).mapInArrow(routed, "id long, p int, to string")
    found = {each["id"]: (each["p"], each["to"]) for each in rows.collect()}
    to = {0: "host2:9002", 2: "host2:9002", 3: None, 7: None}
    expected = {id_: place_of(str(id_).encode()) for id_ in range(1_000)}
    assert found == {id_: (partition, to[partition]) for id_, partition in expected.items()}


def test_it_needs_no_more_than_the_two_tables(spark: SparkSession, tables: str) -> None:
    """A broker that is gone by now is no leader, though the row of the partition does not say so yet."""
    write_brokers(tables, dead=[(1, 30)])
    assert DeltaTable(BROKERS.path(tables)).count() == 2
    rows = spark.range(100).transform(sr.with_leader("orders", key="id", mirror=tables))
    of_first = rows.where("_partition = 0").select("_leader", "_leader_epoch").distinct().collect()
    assert [tuple(each) for each in of_first] == [(None, None)]
