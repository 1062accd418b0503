"""Rows into a topic: which go where, that each is there once whatever is tried again, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import spark_replication as sr
from spark_replication.spark.datasource.data_source import ReplicatedLog
from spark_replication.spark.datasource.writing import ADAPTIVE, ADAPTIVE_STREAMS, BatchWriter, StreamWriter, Written
from tests.live.datasource.stories import SCHEMA, Topic, ended

# Of Spark's session, as long as a block lasts.
Settings = Callable[[Mapping[str, str]], AbstractContextManager[None]]

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def settings(spark: SparkSession) -> Settings:
    @contextmanager
    def settings(told: Mapping[str, str]) -> Iterator[None]:
        before = {name: spark.conf.get(name, None) for name in told}
        for name, value in told.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                spark.conf.unset(name) if old is None else spark.conf.set(name, old)

    return settings


def some(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("id", "id / 4D AS amount", "concat('order ', id % 7) AS text")


def test_rows_go_where_a_producer_sends_their_key_and_keep_their_order(topic: Topic) -> None:
    rows = some(topic.spark, 2_000)
    topic.write(rows, partitionBy="text")
    found = topic.rows(includeMetadata=True)
    assert topic.ids() == list(range(2_000))
    places = {row["text"]: row["_partition"] for row in found.select("text", "_partition").distinct().collect()}
    assert len(places) == 7, "a key is in one partition"
    with sr.Producer(topic.cluster.bootstrap) as producer:
        for text, partition in places.items():
            batch = pa.record_batch([pa.array([-1]), pa.array([0.0]), pa.array([text])], schema=SCHEMA)
            assert producer.send(topic.name, batch, key=text.encode()).result().partition == partition
    for partition in range(3):
        of_task = [
            row["id"]
            for row in found.where(f"_partition = {partition}").orderBy("_offset").collect()
            if 0 <= row["id"] < 500
        ]
        assert of_task == sorted(of_task)


def test_rows_may_name_their_partitions_or_stay_with_their_task(topic: Topic) -> None:
    topic.write(some(topic.spark, 30).selectExpr("*", "CAST(id % 2 AS INT) AS _partition"))
    found = topic.rows(includeMetadata=True)
    assert {row["id"] % 2: row["_partition"] for row in found.collect()} == {0: 0, 1: 1}
    by_task = topic.another("by-task")
    by_task.write(some(topic.spark, 40))
    counts = Counter(row["_partition"] for row in by_task.rows(includeMetadata=True).collect())
    assert counts == {0: 20, 1: 10, 2: 10}


def test_columns_that_the_rows_do_not_have_are_null(topic: Topic) -> None:
    topic.write(some(topic.spark, 5).select("id"))
    assert {(row["amount"], row["text"]) for row in topic.rows().collect()} == {(None, None)}


def test_what_does_not_fit_is_refused_before_any_task_starts_or_with_its_column(topic: Topic) -> None:
    rows = some(topic.spark, 5, tasks=1)  # a task that does not fail would leave its rows
    for wrong, said in (
        (rows.selectExpr("CAST(id AS STRING) id"), "column 'id' is string, and bigint in"),
        (rows.selectExpr("*", "1 AS more"), "column 'more' is not in"),
        (rows.drop("id"), "takes no nulls, and is not in the rows"),
        (rows.selectExpr("CASE WHEN id > 2 THEN id END AS id"), "'id'.* is not nullable and the batch has nulls"),
        (rows.selectExpr("*", "9 AS _partition"), r"_partition is \[9"),
    ):
        with pytest.raises(PySparkException, match=said):
            topic.write(wrong)
    with pytest.raises(PySparkException, match="partitionBy names 'region'"):
        topic.write(rows, partitionBy="region")
    with pytest.raises(PySparkException, match="a log is appended to"):
        rows.write.format("replicated_log").option("topic", topic.name).mode("overwrite").save()
    assert topic.ids() == []


def test_a_write_that_is_made_again_under_its_id_is_there_once(topic: Topic, settings: Settings) -> None:
    rows = some(topic.spark, 100)
    with settings({ADAPTIVE: "false"}):
        for _ in range(2):
            topic.write(rows, writeId="load-1", partitionBy="id")
        topic.write(rows.limit(3), writeId="load-2")
    assert Counter(topic.ids()) == {**dict.fromkeys(range(100), 1), **dict.fromkeys(range(3), 2)}


def test_other_rows_under_an_id_that_was_used_are_refused_though_they_are_as_many(
    topic: Topic, settings: Settings
) -> None:
    rows = some(topic.spark, 100)
    with settings({ADAPTIVE: "false"}):
        topic.write(rows, writeId="0")
        with pytest.raises(PySparkException, match="other rows were written under this writeId"):
            topic.write(rows.selectExpr("id + 1000 AS id", "amount", "text"), writeId="0")
    assert topic.ids() == list(range(100))


def test_micro_batches_of_a_foreach_batch_are_written_once_under_their_number(topic: Topic, settings: Settings) -> None:
    rows = some(topic.spark, 100)
    with settings({ADAPTIVE: "false"}):
        for number in (0, 1, 1):
            topic.write(rows.selectExpr(f"id + {100 * number} AS id", "text"), writeId="copy", writeBatch=number)
        with pytest.raises(PySparkException, match="is fenced by 1"):
            topic.write(rows, writeId="copy", writeBatch=0)
    assert topic.ids() == list(range(200))


def test_a_task_of_more_appends_than_brokers_remember_of_a_producer_is_there_once(
    topic: Topic, settings: Settings
) -> None:
    rows = topic.spark.range(0, 600, 1, 1).selectExpr("id", "0D AS amount", "repeat('x', 3000) AS text")
    with settings({ADAPTIVE: "false"}):
        for _ in range(2):
            topic.write(rows, writeId="large", appendBytes=4_096)
    found = topic.rows(includeMetadata=True).orderBy("_offset").select("id").collect()
    assert [row["id"] for row in found] == list(range(600)), "once, and in their order"


def test_rows_for_more_than_one_append_are_split(topic: Topic) -> None:
    rows = topic.spark.range(0, 40, 1, 1).selectExpr("id", "0D AS amount", "repeat('x', 100000) AS text")
    topic.write(rows)
    assert topic.ids() == list(range(40))


class Unlucky(ReplicatedLog):
    """The first attempt of each task fails after it has written; the second has its rows in another order."""

    @classmethod
    def name(cls) -> str:
        return "unlucky_log"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return UnluckyBatch(*vars(super().writer(schema, overwrite)).values())

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return UnluckyStream(*vars(super().streamWriter(schema, overwrite)).values())


def turned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in list(batches)[::-1]:
        yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))


class UnluckyBatch(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return unlucky(super().write, iterator)


class UnluckyStream(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return unlucky(super().write, iterator)


def unlucky(write: Callable[[Iterator[pa.RecordBatch]], Written], iterator: Iterator[pa.RecordBatch]) -> Written:
    task = TaskContext.get()
    assert task is not None
    if task.attemptNumber():
        return write(turned(iterator))
    write(iterator)
    raise RuntimeError("the task fails once its rows are there")


@pytest.fixture
def unlucky_log(topic: Topic) -> Topic:
    told = {"defaults": {"bootstrap": topic.cluster.bootstrap}}
    topic.spark.dataSource.register(type("UnluckyHere", (Unlucky,), told))
    return topic


def test_a_task_that_is_tried_again_writes_its_rows_once_whatever_their_order(unlucky_log: Topic) -> None:
    topic = unlucky_log
    rows = some(topic.spark, 1_000)
    rows.write.format("unlucky_log").options(topic=topic.name, partitionBy="id").mode("append").save()
    assert topic.ids() == list(range(1_000))


def test_a_task_with_more_than_one_append_that_comes_in_another_order_fails_and_says_what_is_there(
    unlucky_log: Topic,
) -> None:
    topic = unlucky_log
    rows = topic.spark.range(0, 40, 1, 1).selectExpr("id", "0D AS amount", "repeat('x', 100000) AS text")
    with pytest.raises(PySparkException, match="had its rows in another order"):
        rows.write.format("unlucky_log").options(topic=topic.name).mode("append").save()
    assert topic.ids() == list(range(40)), "once"


def test_a_micro_batch_that_is_tried_again_is_there_once(unlucky_log: Topic, tmp_path: Path) -> None:
    topic = unlucky_log
    source = topic.another("source")
    source.fill(*range(0, 900, 100), rows=100)
    writer = source.stream(maxRecordsPerTrigger=300).writeStream.format("unlucky_log")
    told = {"topic": topic.name, "partitionBy": "id", "checkpointLocation": str(tmp_path)}
    ended(writer.options(**told).trigger(availableNow=True).start())
    assert topic.ids() == list(range(900))


def uncommitted(checkpoint: Path) -> None:
    """As if the driver had died between the last micro-batch's end and its commit."""
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)


def test_a_query_that_repeats_its_last_micro_batch_writes_it_once(topic: Topic, tmp_path: Path) -> None:
    source = topic.another("source")
    source.fill(*range(0, 500, 100), rows=100)
    for _ in range(2):
        topic.written(source.stream(), tmp_path, partitionBy="text")
        assert topic.ids() == list(range(500))
        uncommitted(tmp_path)
    source.fill(500, rows=100)
    topic.written(source.stream(), tmp_path, partitionBy="text")
    assert topic.ids() == list(range(600))


def more_partitions(topic: Topic, count: int) -> None:
    """All brokers have heard of them."""
    topic.cluster.admin.add_partitions(topic.name, count)
    topic.cluster.wait_healthy()


def test_a_micro_batch_that_is_repeated_once_its_topic_has_more_partitions_is_there_once(
    topic: Topic, tmp_path: Path
) -> None:
    for name, told in (("text", {"partitionBy": "text"}), ("id", {"partitionBy": "id"}), ("none", {})):
        source, target = topic.another(f"source-{name}"), topic.another(f"target-{name}")
        source.fill(*range(0, 1_500, 100), rows=100)
        target.written(source.stream(minPartitions=6), tmp_path / name, **told)
        uncommitted(tmp_path / name)
        more_partitions(target, 5)
        source.fill(*range(1_500, 3_000, 100), rows=100)
        target.written(source.stream(minPartitions=6), tmp_path / name, **told)
        assert target.ids() == list(range(3_000)), name
        later = target.rows(includeMetadata=True).where("id >= 1500").select("_partition").distinct().collect()
        assert max(row["_partition"] for row in later) >= 3, "later micro-batches go to the new partitions, too"


class HalfWritten(ReplicatedLog):
    """Of a micro-batch only task 0 writes, and the query ends."""

    @classmethod
    def name(cls) -> str:
        return "half_written_log"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return HalfStream(*vars(super().streamWriter(schema, overwrite)).values())


class HalfStream(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        assert task is not None
        if task.partitionId():
            raise RuntimeError("this task writes nothing")
        return super().write(iterator)


def test_a_micro_batch_that_is_half_there_is_completed_once_its_topic_has_more_partitions(
    topic: Topic, tmp_path: Path
) -> None:
    told = {"defaults": {"bootstrap": topic.cluster.bootstrap}}
    topic.spark.dataSource.register(type("HalfHere", (HalfWritten,), told))
    source = topic.another("source")
    source.fill(*range(0, 900, 100), rows=100)
    rows = source.stream(minPartitions=6)
    options = {"topic": topic.name, "partitionBy": "id", "checkpointLocation": str(tmp_path)}
    with pytest.raises(PySparkException, match="this task writes nothing"):
        ended(rows.writeStream.format("half_written_log").options(**options).trigger(availableNow=True).start())
    half = topic.ids()
    assert 0 < len(half) < 900
    more_partitions(topic, 4)
    topic.written(rows, tmp_path, partitionBy="id")
    assert topic.ids() == list(range(900))


def test_a_write_under_an_id_that_is_made_again_once_its_topic_has_more_partitions_is_there_once(
    topic: Topic, settings: Settings
) -> None:
    rows = some(topic.spark, 1_000)
    with settings({ADAPTIVE: "false"}):
        topic.write(rows, writeId="load", partitionBy="id", appendBytes=2_048)
        more_partitions(topic, 7)
        topic.write(rows, writeId="load", partitionBy="id", appendBytes=2_048)
    assert topic.ids() == list(range(1_000))


def test_of_two_queries_with_one_checkpoint_the_one_that_is_behind_is_refused(topic: Topic, tmp_path: Path) -> None:
    source = topic.another("source", partitions=1)
    source.fill(0, partitions=1)
    topic.written(source.stream(), tmp_path / "one")
    copytree(tmp_path / "one", tmp_path / "copy")
    source.fill(10, partitions=1)
    topic.written(source.stream(), tmp_path / "one")
    topic.written(source.stream(), tmp_path / "copy")
    assert topic.ids() == list(range(20)), "the same rows of the same micro-batch: harmless"
    source.fill(20, partitions=1)
    topic.written(source.stream(), tmp_path / "one")
    source.fill(30, partitions=1)
    with pytest.raises(PySparkException, match="a copy of this one's checkpoint"):
        topic.written(source.stream(), tmp_path / "copy")
    assert topic.ids() == list(range(30))


def test_of_two_queries_at_one_micro_batch_with_as_many_rows_the_second_is_refused_if_they_are_others(
    topic: Topic, tmp_path: Path
) -> None:
    source = topic.another("source", partitions=1)
    source.fill(0, partitions=1)
    topic.written(source.stream(), tmp_path / "one")
    copytree(tmp_path / "one", tmp_path / "copy")
    source.fill(10, partitions=1)
    topic.written(source.stream(), tmp_path / "one")
    with pytest.raises(PySparkException, match="a copy of this one's checkpoint"):
        topic.written(source.stream().selectExpr("id + 1000 AS id", "amount", "text"), tmp_path / "copy")
    assert topic.ids() == list(range(20))


def test_a_micro_batch_that_is_too_large_for_one_append_names_the_settings(topic: Topic, tmp_path: Path) -> None:
    source = topic.another("source", partitions=1)
    with sr.Producer(topic.cluster.bootstrap) as producer:
        for first in range(0, 180, 30):
            ids = pa.array(range(first, first + 30))
            batch = pa.record_batch([ids, pa.nulls(30, pa.float64()), pa.array(["x" * 100_000] * 30)], schema=SCHEMA)
            producer.send(source.name, batch, partition=0).result()
    with pytest.raises(PySparkException, match=r"batch\.bytes\.max.*maxRecordsPerTrigger"):
        topic.written(source.stream(), tmp_path)
    assert topic.ids() == []
    topic.written(source.stream(maxRecordsPerTrigger=40), tmp_path / "another")
    assert topic.ids() == list(range(180))


def test_a_micro_batch_that_is_repeated_on_a_cluster_of_another_size_has_the_same_tasks(
    topic: Topic, tmp_path: Path, settings: Settings
) -> None:
    """Adaptive execution would join shuffled partitions until there are as few as the cluster has processors."""
    source = topic.another("source")
    source.fill(*range(0, 500, 100), rows=100)

    def copied(processors: int) -> None:
        few = {"minPartitionNum": processors, "minPartitionSize": 1}
        with settings({f"spark.sql.adaptive.coalescePartitions.{name}": str(value) for name, value in few.items()}):
            topic.written(source.stream().repartition("id"), tmp_path, partitionBy="id")

    copied(1)
    uncommitted(tmp_path)
    copied(4)
    assert topic.ids() == list(range(500))


def test_without_register_adaptive_execution_of_streams_is_refused_before_anything_is_written(
    topic: Topic, tmp_path: Path, settings: Settings
) -> None:
    source = topic.another("source")
    source.fill(0)
    with (
        settings({ADAPTIVE_STREAMS: "true"}),
        pytest.raises(PySparkException, match=rf"set {ADAPTIVE_STREAMS}=false \(sr.register does so\)"),
    ):
        topic.written(source.stream(), tmp_path)
    assert topic.ids() == []
    with settings({ADAPTIVE_STREAMS: "true", ADAPTIVE: "false"}):
        topic.written(source.stream(), tmp_path)
    assert topic.ids() == list(range(10))


def test_a_write_with_an_id_is_refused_where_it_could_have_other_tasks_the_next_time(
    topic: Topic, settings: Settings
) -> None:
    rows = some(topic.spark, 100)
    with pytest.raises(PySparkException, match=f"set {ADAPTIVE}=false"):
        topic.write(rows, writeId="one")
    assert topic.ids() == []
    topic.write(rows)
    with settings({ADAPTIVE: "false"}):
        topic.write(rows, writeId="one")
    assert len(topic.ids()) == 200
