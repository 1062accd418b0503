"""Which offsets there are: each leader is asked once, and again where it does not lead any more."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_replication.client.producing.producer import Producer
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import ReplicationError, UnknownTopicOrPartition
from spark_replication.messages.ranges import WantedRange
from spark_replication.model import TopicPartition
from tests.unit.client.fake_cluster import SCHEMA, FakeCluster

ALL = [WantedRange(topic="orders", partition=number) for number in range(3)]


@pytest.fixture
def rows(cluster: FakeCluster) -> FakeCluster:
    """Of partition n there are n rows. Broker 2 leads partition 2."""
    cluster.lead(2, partition=2)
    with Producer(cluster.bootstrap) as producer:
        for number in (1, 2):
            batch = pa.record_batch([pa.array(range(number), pa.int64())], schema=SCHEMA)
            producer.send("orders", batch, partition=number).result()
    return cluster


def test_every_leader_tells_of_its_own(rows: FakeCluster) -> None:
    with Reader(rows.bootstrap) as reader:
        found = reader.ranges(ALL)
        assert {name.partition: (each.start, each.end) for name, each in found.items()} == {
            0: (0, 0),
            1: (0, 1),
            2: (0, 2),
        }
        latest = [WantedRange(topic="orders", partition=2, start="latest")]
        assert reader.ranges(latest)[TopicPartition("orders", 2)].start == 2


def test_who_leads_no_more_is_asked_no_more(rows: FakeCluster) -> None:
    with Reader(rows.bootstrap) as reader:
        reader.ranges(ALL)
        rows.lead(2, partition=1)
        assert reader.ranges(ALL)[TopicPartition("orders", 1)].end == 1


def test_what_nobody_can_tell_is_an_error_once_time_is_over(rows: FakeCluster) -> None:
    rows.lead(None, partition=1)
    with (
        Reader(rows.bootstrap, deadline_ms=500) as reader,
        pytest.raises(ReplicationError, match="LEADER_NOT_AVAILABLE"),
    ):
        reader.ranges(ALL)


def test_a_partition_that_is_not_there_is_an_error(rows: FakeCluster) -> None:
    with Reader(rows.bootstrap, deadline_ms=500) as reader, pytest.raises(UnknownTopicOrPartition):
        reader.ranges([WantedRange(topic="orders", partition=9)])
