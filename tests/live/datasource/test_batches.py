"""A topic as a table: which rows are read, as what, by how many tasks, and what is said where they cannot be."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.testing import assertDataFrameEqual

import spark_replication as sr
from tests.live.cluster.waiting import eventually
from tests.live.datasource.stories import SCHEMA, Topic, orders

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]


def test_what_was_produced_is_read_with_where_it_lies(topic: Topic) -> None:
    acks = topic.fill(0, 10, 20, 30)
    produced = [row for first in (0, 10, 20, 30) for row in orders(first, 10).to_pylist()]
    assertDataFrameEqual(topic.rows(), topic.spark.createDataFrame(produced, topic.rows().schema))
    told = topic.rows(includeMetadata=True)
    assert [told.schema[name].nullable for name in ("id", "amount", "_offset")] == [False, True, False]
    found = {row["id"]: row for row in told.collect()}
    for first, ack in zip((0, 10, 20, 30), acks, strict=True):
        for number in range(10):
            row = found[first + number]
            assert (row["_topic"], row["_partition"], row["_offset"]) == (
                topic.name,
                ack.partition,
                ack.base_offset + number,
            )
            assert abs(row["_timestamp"].timestamp() - time.time()) < 600
            assert row["_leader_epoch"] >= 0


def test_a_read_begins_and_ends_where_it_is_told(topic: Topic) -> None:
    topic.fill(0, 10, 20, 30)  # partitions 0, 1, 2, 0
    between = datetime.now(UTC) + timedelta(milliseconds=1)
    eventually(lambda: datetime.now(UTC) > between + timedelta(milliseconds=5), "the next batch is later")
    topic.fill(40)
    assert topic.ids(startingOffsets='{"0": 15, "1": 8, "2": "latest"}') == [*range(18, 20), *range(35, 50)]
    assert topic.ids(endingOffsets='{"0": 3, "1": "earliest", "2": 1}') == [0, 1, 2, 20]
    assert topic.ids(startingTimestamp=between.isoformat()) == list(range(40, 50))
    assert topic.ids(endingTimestamp=between.isoformat()) == list(range(40))
    assert topic.ids(startingOffsets="latest") == []
    for wrong, said in (
        ('{"0": 31}', "offset 31 was asked for, and 30 is the end of what is committed"),
        ('{"7": 0}', r"offsets of partitions \[7\], and .* has \[0, 1, 2\]"),
    ):
        with pytest.raises(PySparkException, match=said):
            topic.ids(startingOffsets=wrong)


def test_whether_files_are_read_or_brokers_are_asked_the_rows_are_the_same(topic: Topic) -> None:
    topic.fill(*range(0, 300, 10))
    from_files, from_brokers = (
        topic.rows(includeMetadata=True, localReads=near).orderBy("id").toArrow() for near in (True, False)
    )
    assert from_files.num_rows == 300
    assert from_files.equals(from_brokers)


def test_only_the_columns_that_are_wanted_are_read(topic: Topic) -> None:
    topic.fill(0)
    assert topic.rows(columns="text,id").columns == ["text", "id"]
    by_schema = topic.spark.read.format("replicated_log").schema("amount double").option("topic", topic.name).load()
    assert by_schema.agg(sql.sum("amount")).scalar() is not None
    only = topic.spark.read.format("replicated_log").schema("_offset long").option("topic", topic.name)
    assert sorted(row[0] for row in only.option("includeMetadata", "true").load().collect()) == list(range(10))
    for ddl, said in (("zzz int", "has no column 'zzz'"), ("id string", "is bigint, not string")):
        with pytest.raises(PySparkException, match=said):
            topic.spark.read.format("replicated_log").schema(ddl).option("topic", topic.name).load().collect()


def test_conditions_on_where_and_when_are_carried_out_by_the_source(topic: Topic) -> None:
    topic.fill(0, 10, 20, 30)
    rows = topic.rows(includeMetadata=True)
    found = rows.where("_partition = 0 AND _offset >= 5 AND _offset < 15 AND id <> 7")
    assert sorted(row["id"] for row in found.collect()) == [5, 6, 8, 9, 30, 31, 32, 33, 34]
    found.explain("formatted")
    (looked_at,) = re.findall("Filter .*", found._jdf.queryExecution().executedPlan().toString())
    assert ("id#" in looked_at, "_offset" in looked_at, "_partition" in looked_at) == (True, False, False)
    newest = rows.agg(sql.max("_timestamp")).scalar()
    late = rows.where(sql.col("_timestamp") >= sql.lit(newest))
    assert 0 < late.count() == rows.count() - rows.where(sql.col("_timestamp") < newest).count()
    assert rows.where("_partition = 9").count() == 0


def test_a_large_partition_is_read_by_as_many_tasks_as_are_wanted(topic: Topic) -> None:
    topic.fill(*range(0, 20_000, 1_000), rows=1_000, partitions=1)
    assert topic.rows().rdd.getNumPartitions() == 1
    assert topic.rows(minPartitions=4).rdd.getNumPartitions() >= 4
    assert topic.ids(minPartitions=4) == list(range(20_000))


def test_older_versions_of_a_topic_and_compressed_ones_are_read(topic: Topic) -> None:
    packed = topic.another("packed", config={"compression": "zstd"})
    packed.fill(0)
    packed.cluster.admin.widen_topic(packed.name, SCHEMA.append(pa.field("region", pa.string())))
    eventually(lambda: "region" in packed.rows().columns, "brokers know of the new column")
    with sr.Producer(packed.cluster.bootstrap) as producer:
        wider = pa.Table.from_batches([orders(10, 5)]).append_column("region", pa.array(["north"] * 5))
        producer.send(packed.name, wider, partition=1).result()
    rows = packed.rows().select("id", "region").collect()
    assert {row["id"]: row["region"] for row in rows} == {
        **dict.fromkeys(range(10)),
        **dict.fromkeys(range(10, 15), "north"),
    }


def test_where_retention_has_removed_the_wanted_offset_both_are_named(topic: Topic) -> None:
    short = topic.another("short", partitions=1, config={"segment.bytes": 1_024, "retention.bytes": 1_024})
    short.fill(*range(0, 200, 10), partitions=1)
    eventually(lambda: short.log_start() > 0, "retention removes records")
    first = short.log_start()
    with pytest.raises(PySparkException, match=f"offset 0 was next, and the log begins at {first}"):
        short.ids(startingOffsets='{"0": 0}')
    assert short.ids(startingOffsets='{"0": 0}', failOnDataLoss=False) == list(range(first, 200))
    assert short.ids() == list(range(first, 200))


def test_the_tables_are_enough_to_find_the_cluster(topic: Topic) -> None:
    topic.fill(0)
    path = topic.cluster.directory / "mirror"
    eventually((path / "brokers").exists, "the tables are written")
    spark = topic.spark
    found = spark.read.format("replicated_log").option("topic", topic.name).option("mirror", str(path)).load()
    assert found.count() == 10


def test_a_mistake_is_one_sentence_of_ours_at_the_end(topic: Topic) -> None:
    for options, said in (
        ({"topic": "nope"}, "nobody knows a topic 'nope'"),
        ({"topic": topic.name, "startingoffset": "1"}, "did you mean startingOffsets"),
        ({"topic": topic.name, "bootstrap": "nonsense"}, "it is host:port"),
    ):
        with pytest.raises(PySparkException, match=said):
            topic.spark.read.format("replicated_log").options(**options).load()
