"""A partition whose state nobody can read counts for all that go by how many partitions a topic has: they are told to
retry, and neither miss its rows nor place others' rows by a smaller number."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_replication.client.producing.producer import Producer
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import LeaderNotAvailable
from spark_replication.messages.records import BatchMetadata
from spark_replication.mirror.tables.keys import key_bytes, places_of
from spark_replication.model import TopicPartition
from spark_replication.spark.datasource.data_source import ReplicatedLog
from spark_replication.spark.datasource.options import parse
from spark_replication.spark.datasource.sink_schema import SinkSchema
from spark_replication.spark.datasource.topic import Topic
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeCluster

WAIT_S = 20.0
HIDDEN = TopicPartition("orders", 1)
COLUMNS = StructType().add("number", "long")


@pytest.fixture
def hiding(cluster: FakeCluster) -> FakeCluster:
    for partition in range(3):
        batch = pa.record_batch([pa.array([partition], pa.int64())], schema=SCHEMA)
        cluster.log("orders", partition).append(batch, BatchMetadata(producer=99, sequence=0))
    cluster.hidden = {HIDDEN}
    return cluster


def told(cluster: FakeCluster) -> dict[str, str]:
    return {"bootstrap": cluster.bootstrap, "topic": "orders", "deadlineMs": str(PASSES_MS), "localReads": "false"}


def test_who_reads_all_of_a_topic_is_not_done_without_it(hiding: FakeCluster) -> None:
    found: list[int] = []
    with Reader(hiding.bootstrap, deadline_ms=PASSES_MS) as reader, pytest.raises(LeaderNotAvailable, match="orders-1"):
        found.extend(number for each in reader.read("orders") for number in each.batch.column(0).to_pylist())
    assert found == [0]


def test_keys_stay_where_they_were(hiding: FakeCluster) -> None:
    keys = pa.array(range(30), pa.int64())
    with Producer(hiding.bootstrap, deadline_ms=PASSES_MS) as producer:
        rows = pa.record_batch([keys], schema=SCHEMA)
        assert producer.send("orders", rows, key="number").exception(WAIT_S) is not None
    places = places_of(key_bytes(keys), 3).to_pylist()
    for partition in (0, 2):
        stored = [row["number"] for each in hiding.log("orders", partition).batches for row in each.batch.to_pylist()]
        assert stored[1:] == [key for key, place in zip(keys.to_pylist(), places, strict=True) if place == partition]


def test_a_sink_places_rows_by_all_partitions(hiding: FakeCluster) -> None:
    (topic,) = hiding.metadata(("orders",)).topics
    assert SinkSchema.of(topic, COLUMNS, ()).partitions == (0, 1, 2)


def test_a_task_that_writes_again_does_not_go_on_without_its_answer(hiding: FakeCluster) -> None:
    with pytest.raises(LeaderNotAvailable, match="orders-1"):
        Topic(parse(told(hiding), {}, is_stream=False)).known(7)


def test_a_query_does_not_read_fewer_partitions(hiding: FakeCluster) -> None:
    reader = ReplicatedLog({"startingOffsets": "earliest", **told(hiding)}).reader(COLUMNS)
    with pytest.raises(LeaderNotAvailable, match="orders-1"):
        reader.partitions()
