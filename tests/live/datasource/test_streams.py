"""A topic as a stream: from where, how much at a time, until when; and again from where a checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_replication as sr
from spark_replication.client.asking.groups import GroupDescription
from spark_replication.errors import InvalidRequest
from tests.live.cluster.faults import kill
from tests.live.cluster.waiting import eventually
from tests.live.datasource.stories import SCHEMA, TIMEOUT_S, Topic, ended

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]


class Table:
    """A Delta table that streams write to, each time from the checkpoint of the time before."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._path, self._checkpoint = str(folder / "table"), str(folder / "checkpoint")

    def _writer(self, rows: DataFrame) -> Any:
        return rows.writeStream.format("delta").option("checkpointLocation", self._checkpoint)

    def take_what_is_there(self, rows: DataFrame) -> StreamingQuery:
        return ended(self._writer(rows).trigger(availableNow=True).start(self._path))

    def go_on_taking(self, rows: DataFrame) -> StreamingQuery:
        query: StreamingQuery = self._writer(rows).start(self._path)
        return query

    @property
    def rows(self) -> list[Row]:
        if not DeltaTable.isDeltaTable(self._spark, self._path):
            return []
        return self._spark.read.format("delta").load(self._path).collect()

    @property
    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    return Table(spark, tmp_path)


def ends(query: StreamingQuery) -> list[dict[str, int]]:
    """Of each micro-batch that read something, the offsets at its end."""
    progress = [json.loads(each.json) for each in query.recentProgress]
    return [each["sources"][0]["endOffset"]["offsets"] for each in progress if each["numInputRows"]]


def test_a_stream_goes_on_where_its_checkpoint_says_and_ends_with_what_was_there(topic: Topic, table: Table) -> None:
    topic.fill(0, 10, 20)
    table.take_what_is_there(topic.stream())
    assert table.ids == list(range(30))
    topic.fill(30, 40)
    query = table.take_what_is_there(topic.stream())
    assert table.ids == list(range(50))
    assert ends(query) == [{"0": 20, "1": 20, "2": 10}]
    assert ends(table.take_what_is_there(topic.stream())) == []


def group(topic: Topic, name: str) -> GroupDescription:
    (found,) = topic.cluster.admin.groups([f"spark:{name}"])
    return found


def test_a_query_is_seen_as_a_group_and_has_told_all_when_it_ends(topic: Topic, table: Table) -> None:
    topic.fill(0, 10, 20)
    table.take_what_is_there(topic.stream(queryName=topic.name))
    found = group(topic, topic.name)
    assert (found.state, found.members, found.lag) == ("spark_query", (), 0)
    assert [each.offset for each in found.partitions] == [10, 10, 10]
    topic.fill(30)
    assert group(topic, topic.name).lag == 10
    table.take_what_is_there(topic.stream(queryName=topic.name))
    assert group(topic, topic.name).lag == 0
    consumer = sr.Consumer(topic.cluster.bootstrap, [topic.name], group=f"spark:{topic.name}")
    with pytest.raises(InvalidRequest, match="is a Spark query, which shares nothing"):
        consumer.poll(TIMEOUT_S)
    consumer.close()


def test_a_query_without_a_name_is_the_same_group_after_each_start(topic: Topic, table: Table) -> None:
    topic.fill(0)
    query = table.take_what_is_there(topic.stream())
    (name,) = {json.loads(each.json)["sources"][0]["endOffset"]["query_id"] for each in query.recentProgress}
    assert group(topic, name).lag == 0
    going_on = table.go_on_taking(topic.stream())
    topic.fill(10, 20)
    eventually(lambda: [each.offset for each in group(topic, name).partitions] == [20, 10, 0], "what it has committed")
    going_on.stop()


def test_a_trigger_takes_no_more_rows_than_it_may_and_shows_what_it_leaves(topic: Topic, table: Table) -> None:
    topic.fill(*range(0, 90, 10))
    query = table.take_what_is_there(topic.stream(maxRecordsPerTrigger=40))
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [40, 40, 10]
    first = json.loads(query.recentProgress[0].json)["sources"][0]["latestOffset"]
    assert first["offsets"] == {"0": 30, "1": 30, "2": 30}
    assert sum(first["behind"].values()) == 50
    assert table.ids == list(range(90))


def test_a_trigger_takes_about_as_many_bytes_as_it_may(topic: Topic, table: Table) -> None:
    topic.fill(*range(0, 18_000, 1_000), rows=1_000)
    query = table.take_what_is_there(topic.stream(maxBytesPerTrigger=100_000, maxRecordsPerTrigger=17_000))
    taken = [each.numInputRows for each in query.recentProgress if each.numInputRows]
    assert sum(taken) == 18_000
    assert 3 < len(taken) <= 6, taken
    assert all(number % 1_000 == 0 for number in taken), "whole stored batches"
    assert table.ids == list(range(18_000))


def test_a_stream_begins_with_what_comes_unless_it_is_told_otherwise(topic: Topic, table: Table) -> None:
    topic.fill(0)
    query = table.go_on_taking(topic.stream(startingOffsets="latest"))
    eventually(lambda: query.lastProgress is not None, "the query has begun")
    topic.fill(10, 20)
    eventually(lambda: table.ids == list(range(10, 30)), "what came is in the table")
    query.stop()


def test_partitions_that_are_added_are_read_from_their_beginning(topic: Topic, table: Table) -> None:
    topic.fill(0)
    query = table.go_on_taking(topic.stream())
    eventually(lambda: bool(query.recentProgress), "the query has begun")
    topic.cluster.admin.add_partitions(topic.name, 5)
    topic.fill(10, 20, 30, 40, 50, partitions=5)
    eventually(lambda: table.ids == list(range(60)), "what is in new partitions is in the table")
    query.stop()


def test_a_partition_that_was_removed_is_an_error_or_is_left_behind(topic: Topic, table: Table) -> None:
    topic.fill(0, 10, 20)
    table.take_what_is_there(topic.stream())
    topic.cluster.admin.remove_partitions(topic.name, [2])
    topic.fill(30, 40, partitions=2)
    query = table.go_on_taking(topic.stream(deadlineMs=2_000))
    with pytest.raises(PySparkException, match="-2 was read up to offset 10, and there is no such partition"):
        query.awaitTermination(TIMEOUT_S)
    table.take_what_is_there(topic.stream(failOnDataLoss=False))
    assert table.ids == list(range(50))


def test_a_topic_that_was_made_again_is_not_taken_for_the_one_before(topic: Topic, table: Table) -> None:
    topic.fill(0)
    table.take_what_is_there(topic.stream())
    topic.cluster.admin.delete_topic(topic.name)
    topic.cluster.admin.create_topic(topic.name, SCHEMA, partitions=3)
    topic.fill(100)
    with pytest.raises(PySparkException, match="was deleted and made again"):
        table.take_what_is_there(topic.stream())
    assert table.ids == list(range(10))


def test_what_retention_has_removed_meanwhile_is_an_error_or_is_left_out(topic: Topic, table: Table) -> None:
    short = topic.another("short", partitions=1, config={"segment.bytes": 1_024, "retention.bytes": 1_024})
    short.fill(0, partitions=1)
    table.take_what_is_there(short.stream())
    short.fill(*range(10, 200, 10), partitions=1)
    eventually(lambda: short.log_start() > 20, "retention removes records")
    with pytest.raises(PySparkException, match="offset 10 was next, and the log begins at"):
        table.take_what_is_there(short.stream())
    table.take_what_is_there(short.stream(failOnDataLoss=False))
    found = table.ids
    assert found[:10] == list(range(10))
    assert found[10:] == list(range(found[10], 200))


def test_leaders_may_die_under_a_stream_and_each_row_is_there_once(topic: Topic, table: Table) -> None:
    query = table.go_on_taking(topic.stream(maxRecordsPerTrigger=2_000))
    first = 0
    for broker in (1, 2, 3):
        topic.fill(*range(first, first + 6_000, 500), rows=500)
        first += 6_000
        kill(topic.cluster.brokers[broker].pid)
        topic.cluster.wait_healthy()
    eventually(lambda: len(table.ids) >= first, "all of it is in the table")
    query.stop()
    assert table.ids == list(range(first))


def test_topics_that_a_pattern_matches_are_read_together_also_those_that_appear(topic: Topic, table: Table) -> None:
    topic.fill(0)
    pattern = {"topic": None, "subscribePattern": f"{topic.name}.*", "startingOffsets": "latest"}
    query = table.go_on_taking(topic.stream(**pattern))
    eventually(lambda: query.lastProgress is not None, "the query has begun")
    late = topic.another("late")
    late.fill(100, 110)
    topic.fill(10)
    eventually(lambda: table.ids == [*range(10, 20), *range(100, 120)], "what came, and all of the new topic")
    query.stop()
    late.fill(120)
    table.take_what_is_there(topic.stream(**pattern))
    assert table.ids == [*range(10, 20), *range(100, 130)]
    assert {row["id"]: row["_topic"] for row in table.rows}[125] == late.name


def test_a_stream_of_one_topic_goes_on_with_more_and_takes_so_many_offsets_at_a_time(
    topic: Topic, table: Table
) -> None:
    topic.fill(0)
    alone = topic.stream().selectExpr("*", "'' AS _topic")
    table.take_what_is_there(alone)
    more = topic.another("more")
    more.fill(*range(100, 160, 10))
    topic.fill(10)
    several = {"topic": None, "subscribe": f"{topic.name},{more.name}", "maxOffsetsPerTrigger": 40}
    query = table.take_what_is_there(topic.stream(**several))
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [40, 30]
    assert table.ids == [*range(20), *range(100, 160)]
