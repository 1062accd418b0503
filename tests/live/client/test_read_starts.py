"""Reads that start at a named place or a time, of real brokers whose log has several segments."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.engine.client.reading import Preference
from spark_replication.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("row", pa.int64())])
TOPIC = "rows"
BATCHES = 4  # of ten rows, each in a segment of its own
DEADLINE_S = 60.0


def rows(first: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + 10), pa.int64())], schema=SCHEMA)


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3, config={"log.retention.check.interval.ms": 100}) as cluster:
        cluster.wait_healthy()
        cluster.admin.create_topic(TOPIC, SCHEMA, partitions=1, config={"segment.bytes": 1})
        yield cluster


@pytest.fixture(scope="module")
def stored(cluster: sr.LocalCluster) -> list[LogBatch]:
    """As the whole log is read, each batch appended at another millisecond than the one before."""
    with sr.Producer(cluster.bootstrap) as producer, sr.Reader(cluster.bootstrap) as reader:
        for number in range(BATCHES):
            producer.send(TOPIC, rows(10 * number), 0).result()
            *_, last = reader.read(TOPIC, 0)
            while time.time_ns() // 1_000_000 <= last.timestamp:
                os.sched_yield()
        found = list(reader.read(TOPIC, 0))
    assert [(each.base_offset, each.batch) for each in found] == [(10 * n, rows(10 * n)) for n in range(BATCHES)]
    return found


def offsets(reader: sr.Reader, **asked: Any) -> list[int]:
    return [each.base_offset for each in reader.read(TOPIC, 0, **asked)]


@pytest.mark.parametrize("prefer", ["leader", "follower", "near"])
def test_a_read_starts_at_a_time(cluster: sr.LocalCluster, stored: list[LogBatch], prefer: Preference) -> None:
    everything = [each.base_offset for each in stored]
    with sr.Reader(cluster.bootstrap, prefer=prefer) as reader:
        for place, each in enumerate(stored):
            at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=each.timestamp)
            assert offsets(reader, start_time=each.timestamp) == offsets(reader, start_time=at) == everything[place:]
            assert offsets(reader, start_time=each.timestamp + 1) == everything[place + 1 :]
        assert offsets(reader, start_time=0) == offsets(reader, start="earliest") == everything
        assert offsets(reader, start="latest") == []
        assert offsets(reader, start_time=stored[1].timestamp, stop=15) == [10]


def test_any_flight_client_may_name_a_time(cluster: sr.LocalCluster, stored: list[LogBatch]) -> None:
    address = cluster.bootstrap.split(",")[0]
    with flight.connect(f"grpc://{address}") as any_broker:
        info = any_broker.get_flight_info(flight.FlightDescriptor.for_path(TOPIC, "0"))
    partition = {"topic": TOPIC, "partition": 0}
    with flight.connect(info.endpoints[0].locations[0]) as leader:
        ticket = msgspec.json.encode(partition | {"from_time": stored[2].timestamp})
        beginning, *chunks = leader.do_get(flight.Ticket(ticket))
        assert beginning.data.num_rows == 0
        assert msgspec.json.decode(beginning.app_metadata) == {
            "base_offset": 20,
            "leader_epoch": -1,
            "timestamp": -1,
            "high_watermark": 40,
        }
        assert [chunk.data for chunk in chunks] == [rows(20), rows(30)]
        assert [msgspec.json.decode(chunk.app_metadata)["base_offset"] for chunk in chunks] == [20, 30]
        for begins in ({"from": "earliest"}, {"from_time": stored[0].timestamp}, {}):
            ticket = msgspec.json.encode(partition | begins)
            assert leader.do_get(flight.Ticket(ticket)).read_all()["row"].to_pylist() == list(range(40))
        ticket = msgspec.json.encode(partition | {"from": "latest"})
        assert leader.do_get(flight.Ticket(ticket)).read_all().num_rows == 0
        ticket = msgspec.json.encode(partition | {"from": 3, "from_time": 7})
        with pytest.raises((flight.FlightError, pa.ArrowException), match=r"INVALID_REQUEST: .* name one of the two"):
            leader.do_get(flight.Ticket(ticket)).read_all()


def test_every_brokers_files_give_the_same(cluster: sr.LocalCluster, stored: list[LogBatch]) -> None:
    (described,) = cluster.admin.describe_topics([TOPIC])
    for broker in cluster.brokers.values():
        reader = sr.LocalReader(Path(broker.log_dir) / f"{TOPIC}-0.{described.topic_id}")
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found := list(reader.read(verify=True))) < BATCHES:  # until there is a checkpoint
            assert time.monotonic() < deadline_s
            os.sched_yield()
        assert found == stored
        assert list(reader.read(start_time=stored[2].timestamp)) == stored[2:]
        assert [each.batch for each in reader.read(start=15, stop=22)] == [rows(15).slice(0, 5), rows(20).slice(0, 2)]


def test_who_is_near_is_read_from_its_files_and_needs_no_stream(
    cluster: sr.LocalCluster, stored: list[LogBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sr.Reader, "_records", _no_stream)
    with sr.Reader(cluster.bootstrap, prefer="near", deadline_ms=5_000) as reader:
        assert list(reader.read(TOPIC, 0, stop=40)) == stored
        assert [each.batch for each in reader.read(TOPIC, 0, start=15, stop=22)] == [
            rows(15).slice(0, 5),
            rows(20).slice(0, 2),
        ]
    with sr.Reader(cluster.bootstrap, deadline_ms=5_000) as reader, pytest.raises(AssertionError):
        list(reader.read(TOPIC, 0, stop=40))


def _no_stream(*_asked: object) -> Iterator[LogBatch]:
    raise AssertionError("over the network")


@pytest.mark.parametrize("prefer", ["leader", "near"])
def test_what_does_not_belong_to_the_topic_that_is_meant_is_not_read(
    cluster: sr.LocalCluster, stored: list[LogBatch], prefer: Preference
) -> None:
    (described,) = cluster.admin.describe_topics([TOPIC])
    with sr.Reader(cluster.bootstrap, prefer=prefer, deadline_ms=1_000) as reader:
        assert list(reader.read(TOPIC, 0, stop=40, topic_id=described.topic_id)) == stored
        with pytest.raises(UnknownTopicOrPartition, match="not another"):
            list(reader.read(TOPIC, 0, stop=40, topic_id="another"))


def test_a_column_that_there_is_not_is_refused_whoever_is_asked(
    cluster: sr.LocalCluster, stored: list[LogBatch]
) -> None:
    with sr.Reader(cluster.bootstrap, prefer="near") as reader, pytest.raises(InvalidRequest, match="column 'none'"):
        list(reader.read(TOPIC, 0, stop=40, columns=["none"]))


def test_from_the_latest_on_only_what_comes_is_read(cluster: sr.LocalCluster) -> None:
    cluster.admin.create_topic("coming", SCHEMA, partitions=1)
    with sr.Producer(cluster.bootstrap) as producer, sr.Reader(cluster.bootstrap) as reader:
        producer.send("coming", rows(0), 0).result()
        with ThreadPoolExecutor(1) as threads:
            following = threads.submit(next, reader.read("coming", start="latest", follow=True))
            sent = 10
            deadline_s = time.monotonic() + DEADLINE_S
            while not following.done():
                assert time.monotonic() < deadline_s
                producer.send("coming", rows(sent), 0).result()
                sent += 10
    assert 0 < following.result().base_offset < sent


def test_the_earliest_is_what_retention_has_left(cluster: sr.LocalCluster) -> None:
    cluster.admin.create_topic("kept", SCHEMA, partitions=1, config={"segment.bytes": 1, "retention.bytes": 1})
    with sr.Producer(cluster.bootstrap) as producer, sr.Reader(cluster.bootstrap) as reader:
        for number in range(3):
            producer.send("kept", rows(10 * number), 0).result()
        deadline_s = time.monotonic() + DEADLINE_S
        while (first := next(reader.read("kept", 0, start="earliest")).base_offset) == 0:
            assert time.monotonic() < deadline_s
            os.sched_yield()
        assert first in (10, 20)
        assert next(reader.read("kept", 0, start_time=0)).base_offset >= first
        with pytest.raises(OffsetOutOfRange):
            next(reader.read("kept", 0, start=0))
