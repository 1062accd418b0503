"""Several topics read together, some of a topic's partitions, and how much at a time, without a JVM."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.records import BatchMetadata
from spark_replication.spark.datasource.batch_reader import BatchReader
from spark_replication.spark.datasource.data_source import ReplicatedLog
from spark_replication.spark.datasource.stream_reader import StreamReader
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeCluster
from tests.waiting import eventually

COLUMNS = StructType().add("number", "long").add("_topic", "string", nullable=False)
EVERYTHING = ReadAllAvailable()
DAY_S = 86_401
BOTH = {"subscribe": "orders,payments"}


def fill(cluster: FakeCluster, topic: str, *numbers: int, partition: int = 0) -> None:
    with cluster.changed:
        log = cluster.log(topic, partition)
        log.append(
            pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA),
            BatchMetadata(producer=99, sequence=len(log.batches)),
        )
        cluster.changed.notify_all()


def source(cluster: FakeCluster, given: Mapping[str, str]) -> ReplicatedLog:
    told = {"bootstrap": cluster.bootstrap, "deadlineMs": str(PASSES_MS), "localReads": "false", "reportGroup": "false"}
    return ReplicatedLog({"startingOffsets": "earliest", **told, **given})


def stream(cluster: FakeCluster, given: Mapping[str, str] = BOTH, columns: StructType = COLUMNS) -> StreamReader:
    reader = source(cluster, given).streamReader(columns)
    assert isinstance(reader, StreamReader)
    return reader


def rows(reader: StreamReader | BatchReader, tasks: list[Any]) -> list[tuple[Any, ...]]:
    found = (batch.to_pylist() for task in tasks for batch in reader.read(task))
    return [tuple(row.values()) for batch in found for row in batch]


def read(reader: StreamReader, start: dict[str, Any], limit: ReadLimit = EVERYTHING) -> tuple[Any, list[Any]]:
    """A micro-batch: its end, and its rows."""
    end = reader.latestOffset(start, limit)
    return end, rows(reader, reader.partitions(start, end))


def offsets(told: dict[str, Any]) -> dict[str, list[int]]:
    return {topic: list(each["offsets"].values()) for topic, each in told["topics"].items()}


def test_rows_of_several_topics_have_the_name_of_their_own(cluster: FakeCluster) -> None:
    cluster.create("payments", partitions=1)
    fill(cluster, "orders", 1, 2, partition=2)
    fill(cluster, "payments", 7)
    for given in (BOTH, {"subscribePattern": "(ord|pay).*"}, {"assign": '{"payments": [0], "orders": [2]}'}):
        both = source(cluster, given)
        assert both.schema() == COLUMNS
        reader = both.reader(COLUMNS)
        assert isinstance(reader, BatchReader)
        assert rows(reader, list(reader.partitions())) == [(1, "orders"), (2, "orders"), (7, "payments")]
    alone = source(cluster, {"subscribe": "orders"})
    assert alone.schema().fieldNames() == ["number"]
    every = source(cluster, {**BOTH, "includeMetadata": "true"}).schema().fieldNames()
    assert every == ["number", "_topic", "_partition", "_offset", "_timestamp", "_leader_epoch"]


def test_a_pattern_is_of_the_whole_name(cluster: FakeCluster) -> None:
    cluster.create("orders-old")
    fill(cluster, "orders-old", 5)
    reader = source(cluster, {"subscribePattern": "orders"}).reader(COLUMNS)
    assert rows(reader, list(reader.partitions())) == []  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"no topic that subscribePattern='order' matches.*create one"):
        source(cluster, {"subscribePattern": "order"}).schema()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (pa.schema([("number", pa.int32())]), "'number' is bigint in orders, and int in payments"),
        (pa.schema([("amount", pa.int64())]), "'number' is in orders alone"),
        (pa.schema([("number", pa.int64()), ("amount", pa.int64())]), "'amount' is in payments alone"),
    ],
)
def test_topics_of_other_columns_are_refused_with_the_first_difference(
    cluster: FakeCluster, other: pa.Schema, said: str
) -> None:
    cluster.create("payments", schema=other)
    with pytest.raises(InvalidRequest, match=f"orders and payments cannot be read together: column {said}"):
        source(cluster, BOTH).schema()


def test_the_columns_that_topics_share_can_be_read(cluster: FakeCluster) -> None:
    """A column may hold nulls if it may in any of the topics, whichever comes first."""
    never_null = pa.field("number", pa.int64(), nullable=False)
    for topic in ("cash", "payments"):
        cluster.create(topic, schema=pa.schema([("amount", pa.int64()), never_null]))
    for topics, nullable in (("orders,cash", True), ("orders,payments", True), ("cash,payments", False)):
        told = source(cluster, {"subscribe": topics, "columns": "number"}).schema()
        assert told["number"].nullable == nullable, topics


def test_offsets_are_told_by_topic(cluster: FakeCluster) -> None:
    cluster.create("payments", partitions=2)
    for partition in (0, 1):
        fill(cluster, "payments", 1, 2, 3, partition=partition)
    start = stream(cluster, {**BOTH, "startingOffsets": '{"payments": {"0": 2, "1": -1}}'}).initialOffset()
    assert offsets(start) == {"orders": [0, 0, 0], "payments": [2, 3]}
    for told, said in (
        ('{"0": 2}', 'partitions, and topics are read together: name each, as {"orders": {"0": 17}, "payments"'),
        ('{"other": {"0": 2}}', "there are offsets of other, and what is read is orders, payments"),
        ('{"payments": {"7": 2}}', r"partitions \[7\], and what is read of payments has \[0, 1\]"),
    ):
        for planned in (
            stream(cluster, {**BOTH, "startingOffsets": told}).initialOffset,
            source(cluster, {**BOTH, "startingOffsets": told}).reader(COLUMNS).partitions,
        ):
            with pytest.raises(InvalidRequest, match=said):
                planned()


def test_a_stream_goes_on_where_each_topic_was(cluster: FakeCluster) -> None:
    cluster.create("payments")
    fill(cluster, "orders", 1, 2)
    fill(cluster, "payments", 7)
    reader = stream(cluster)
    end, found = read(reader, reader.initialOffset())
    assert found == [(1, "orders"), (2, "orders"), (7, "payments")]
    fill(cluster, "payments", 8)
    again = stream(cluster)
    newest, found = read(again, end)
    assert found == [(8, "payments")]
    assert again.latestOffset(newest, EVERYTHING) == newest
    assert again.partitions(newest, newest) == []


def test_limits_are_shared_by_all_topics_and_what_they_leave_is_told(cluster: FakeCluster) -> None:
    cluster.create("payments")
    fill(cluster, "orders", *range(10))
    fill(cluster, "payments", *range(30))
    reader = stream(cluster, {**BOTH, "maxOffsetsPerTrigger": "20"})
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    end = reader.latestOffset(start, ReadMaxRows(20))
    assert offsets(end) == {"orders": [5, 0, 0], "payments": [15]}
    told = reader.reportLatestOffset()
    assert told is not None
    assert offsets(told) == {"orders": [10, 0, 0], "payments": [30]}
    assert told["behind"] == {"orders": {"0": 5, "1": 0, "2": 0}, "payments": {"0": 15}}


def test_bytes_are_shared_by_all_topics(cluster: FakeCluster) -> None:
    cluster.create("payments")
    for number in range(4):
        fill(cluster, "orders", number)
        fill(cluster, "payments", number)
    reader = stream(cluster, {**BOTH, "maxBytesPerTrigger": "1"})
    end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1))
    assert offsets(end) == {"orders": [1, 0, 0], "payments": [1]}, "a batch at least of each"


def test_a_topic_that_appears_is_read_from_its_beginning_which_the_checkpoint_has_first(cluster: FakeCluster) -> None:
    fill(cluster, "orders", 1)
    given = {"subscribePattern": ".*", "startingOffsets": "latest"}
    reader = stream(cluster, given)
    start = reader.initialOffset()
    assert offsets(start) == {"orders": [1, 0, 0]}
    cluster.create("payments")
    fill(cluster, "payments", 7)
    fill(cluster, "payments", 8)
    del cluster.log("payments").batches[0]  # retention has removed it
    eventually(lambda: reader.latestOffset(start, EVERYTHING) != start, "it appears")
    begun, found = read(reader, start)
    assert (offsets(begun), found) == ({"orders": [1, 0, 0], "payments": [1]}, [])
    assert read(stream(cluster, given), begun)[1] == [(8, "payments")]


def test_all_that_is_there_at_the_start_is_what_a_last_run_reads(cluster: FakeCluster) -> None:
    fill(cluster, "orders", 1)
    reader = stream(cluster, {"subscribePattern": ".*"})
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    cluster.create("payments")
    fill(cluster, "payments", 7)
    fill(cluster, "orders", 2)
    end, found = read(reader, start)
    assert found == [(1, "orders")]
    assert reader.latestOffset(end, EVERYTHING) == end


def test_a_topic_of_the_pattern_that_is_gone_is_an_error_or_is_left_behind(cluster: FakeCluster) -> None:
    cluster.create("payments")
    fill(cluster, "payments", 7)
    fill(cluster, "orders", 1)
    reader = stream(cluster, {"subscribePattern": ".*"})
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    with cluster.changed:
        del cluster.topics["payments"]
    with pytest.raises(UnknownTopicOrPartition, match="payments"):
        stream(cluster, {"subscribePattern": ".*"}).latestOffset(end, EVERYTHING)
    fill(cluster, "orders", 2)
    left = stream(cluster, {"subscribePattern": ".*", "failOnDataLoss": "false"})
    newest, found = read(left, end)
    assert (found, newest["topics"]["payments"]) == ([(2, "orders")], end["topics"]["payments"])


def test_a_checkpoint_of_one_topic_is_gone_on_from_with_more(cluster: FakeCluster) -> None:
    """Also one without epochs, as earlier releases wrote it."""
    cluster.create("payments")
    fill(cluster, "orders", 1, 2)
    fill(cluster, "payments", 7)
    old = {"topic_id": "id-orders", "offsets": {"0": 1, "1": 0, "2": 0}}
    reader = stream(cluster)
    begun, nothing = read(reader, old)
    end, found = read(reader, begun)
    assert (nothing, found) == ([], [(2, "orders"), (7, "payments")])
    with pytest.raises(
        InvalidRequest, match="id id-other, and none of orders, payments has that: read that topic, too"
    ):
        reader.latestOffset({**old, "topic_id": "id-other"}, EVERYTHING)
    alone = stream(cluster, {"subscribe": "orders"}, StructType().add("number", "long"))
    fill(cluster, "orders", 3)
    newest, found = read(alone, end)
    assert found == [(3,)]
    assert newest["topics"]["payments"] == end["topics"]["payments"], "it keeps its place"
    fill(cluster, "payments", 8)
    assert read(stream(cluster), newest)[1] == [(8, "payments")]


def test_some_partitions_of_a_topic_are_read_and_the_others_keep_their_place(cluster: FakeCluster) -> None:
    for partition in range(3):
        fill(cluster, "orders", partition, partition=partition)
    columns = StructType().add("number", "long")
    some = {"assign": '{"orders": [0, 2]}'}
    reader = source(cluster, some).reader(columns)
    assert rows(reader, list(reader.partitions())) == [(0,), (2,)]  # type: ignore[arg-type]
    whole = stream(cluster, {"topic": "orders"}, columns)
    end, _ = read(whole, whole.initialOffset())
    for partition in range(3):
        fill(cluster, "orders", partition + 10, partition=partition)
    parts = stream(cluster, some, columns)
    assert list(parts.initialOffset()["offsets"]) == ["0", "2"]
    newest, found = read(parts, end)
    assert (found, newest["offsets"]) == ([(10,), (12,)], {"0": 2, "1": 1, "2": 2})
    assert read(stream(cluster, {"topic": "orders"}, columns), newest)[1] == [(11,)]


def test_what_becomes_of_a_partition_that_is_not_assigned_is_no_error(cluster: FakeCluster) -> None:
    columns, begun = StructType().add("number", "long"), time.monotonic()
    fill(cluster, "orders", 1, partition=1)
    whole = stream(cluster, {"topic": "orders"}, columns)
    end, _ = read(whole, whole.initialOffset())
    cluster.log("orders", 1).cut(0, leader_epoch=1)
    parts = stream(cluster, {"assign": '{"orders": [0]}'}, columns)

    def stays() -> bool:
        """Until a partition that is read would be told of."""
        assert parts.latestOffset(end, EVERYTHING) == end
        return time.monotonic() - begun > PASSES_MS / 1_000 + 1

    eventually(stays, "the deadline has passed")


def test_partitions_that_are_not_there_cannot_be_assigned(cluster: FakeCluster) -> None:
    given = {"assign": '{"orders": [1, 3]}'}
    columns = StructType().add("number", "long")
    for planned in (stream(cluster, given).initialOffset, source(cluster, given).reader(columns).partitions):
        with pytest.raises(InvalidRequest, match=r"assign names partitions \[3\] of orders, which has \[0, 1, 2\]"):
            planned()


def test_a_micro_batch_waits_for_as_many_records_as_it_is_to_have(cluster: FakeCluster) -> None:
    cluster.create("payments")
    fill(cluster, "orders", *range(4))
    reader = stream(cluster, {**BOTH, "minOffsetsPerTrigger": "6"})
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(6)
    start = reader.initialOffset()
    assert reader.latestOffset(start, limit) == start
    taken = reader.latestOffset(start, EVERYTHING)
    assert offsets(taken)["orders"] == [4, 0, 0], "Trigger.Once takes what there is"
    fill(cluster, "payments", 1, 2)
    eventually(lambda: reader.latestOffset(start, limit) != start, "there are enough")
    within = reader.latestOffset(start, ReadMaxRows(3))
    assert sum(map(sum, offsets(within).values())) == 3, "of two limits, Spark tells of one"


def test_a_micro_batch_waits_no_longer_than_it_may(cluster: FakeCluster) -> None:
    fill(cluster, "orders", *range(4))
    given = {"subscribePattern": ".*", "minOffsetsPerTrigger": "6", "maxTriggerDelay": "1d"}
    reader = stream(cluster, given)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMinRows(6)) == start
    reader._planned_s -= DAY_S
    end = reader.latestOffset(start, ReadMinRows(6))
    assert offsets(end) == {"orders": [4, 0, 0]}
    fill(cluster, "orders", 4)
    eventually(lambda: reader.latestOffset(end, EVERYTHING) != end, "there is more")
    assert reader.latestOffset(end, ReadMinRows(6)) == end, "the time begins anew"
    last = stream(cluster, given)
    assert last.latestOffset(start, ReadMinRows(6)) == start
    last.prepareForTriggerAvailableNow()
    assert last.latestOffset(start, ReadMinRows(6)) != start, "what is there is all that comes"


@pytest.mark.parametrize("given", [BOTH, {"subscribePattern": "orders"}, {"assign": '{"orders": [0]}'}])
def test_a_write_goes_to_one_topic(cluster: FakeCluster, given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="a write goes to one topic"):
        source(cluster, given).writer(StructType().add("number", "long"), overwrite=False)
    source(cluster, {"subscribe": "orders"}).writer(StructType().add("number", "long"), overwrite=False)
