"""A stream tells coordinators how far it is, whatever becomes of that, without a JVM."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_replication.errors import GroupAuthorizationFailed
from spark_replication.spark.datasource import position_reports
from spark_replication.spark.datasource.stream_reader import StreamReader
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.told_groups import group, member, position
from tests.unit.spark.datasource.test_streams_of_a_log import COLUMNS, fill, options
from tests.waiting import eventually

EVERYTHING = ReadAllAvailable()
QUERY = "spark:etl"

Started = Callable[..., StreamReader]


@pytest.fixture
def started(cluster: FakeCluster) -> Iterator[Started]:
    readers: list[StreamReader] = []

    def start(**given: Any) -> StreamReader:
        readers.append(StreamReader(options(cluster, reports_group=True, **given), COLUMNS))
        return readers[-1]

    yield start
    for each in readers:
        each.stop()


def positions(cluster: FakeCluster, name: str = QUERY) -> dict[int, tuple[int, int]]:
    """The offset of each partition, and the epoch of the record before it."""
    known = cluster.groups.by_name.get(name)
    return {} if known is None else {each.partition: (each.offset, each.last_epoch) for each in known.positions}


def test_what_spark_asks_on_from_is_reported_with_its_epochs(cluster: FakeCluster, started: Started) -> None:
    fill(cluster, 0, rows=3)
    reader = started(query_name="etl")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    eventually(lambda: positions(cluster) == {0: (0, -1), 1: (0, -1), 2: (0, -1)}, "where it begins")
    reader.latestOffset(end, EVERYTHING)
    eventually(lambda: positions(cluster) == {0: (3, 0), 1: (0, -1), 2: (0, -1)}, "what is committed")
    earlier = started(query_name="etl")
    earlier.latestOffset(start, ReadMaxRows(1))
    eventually(lambda: positions(cluster)[0] == (0, -1), "the query went on from an older checkpoint")


def test_a_query_without_a_name_is_known_by_its_checkpoint(cluster: FakeCluster, started: Started) -> None:
    fill(cluster, 0, rows=3)
    reader = started()
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert reader.latestOffset(start, EVERYTHING)["query_id"] == end["query_id"] == start["query_id"]
    assert reader._reports is None, "it has no checkpoint yet"
    reader.latestOffset(end, EVERYTHING)
    eventually(lambda: 0 in positions(cluster, f"spark:{end['query_id']}"), "it has")
    fill(cluster, 1, rows=3)
    later = started()
    assert later.initialOffset()["query_id"] != end["query_id"], "this belongs to no checkpoint"
    assert later.latestOffset(end, EVERYTHING)["query_id"] == end["query_id"]
    assert [*cluster.groups.by_name] == [f"spark:{end['query_id']}"]


def test_a_checkpoint_of_an_earlier_release_gets_an_id_with_its_next_micro_batch(
    cluster: FakeCluster, started: Started
) -> None:
    fill(cluster, 0, rows=3)
    reader = started()
    before = {"topic_id": "id-orders", "offsets": {"0": 1}}
    end = reader.latestOffset(before, EVERYTHING)
    assert reader._reports is None
    assert len(end["query_id"]) == 32


def test_what_is_read_no_longer_has_no_position(cluster: FakeCluster, started: Started) -> None:
    cluster.groups.add(group(QUERY, positions=[position(0, 2), position(7, 2)]))
    started(query_name="etl").latestOffset({"topic_id": "id-orders", "offsets": {"0": 1, "7": 2}}, EVERYTHING)
    eventually(lambda: positions(cluster) == {0: (1, -1)}, "partition 7 is gone")


def test_nothing_is_reported_if_that_is_turned_off(cluster: FakeCluster, started: Started) -> None:
    reader = StreamReader(options(cluster, query_name="etl"), COLUMNS)
    reader.latestOffset(reader.initialOffset(), EVERYTHING)
    assert reader._reports is None
    reader.stop()


@pytest.mark.parametrize("is_last", [True, False])
def test_the_last_look_of_a_query_that_ends_waits_for_its_report(
    cluster: FakeCluster, started: Started, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    fill(cluster, 0, rows=3)
    reader = started(query_name="etl")
    if is_last:
        reader.prepareForTriggerAvailableNow()
    flushed: list[dict[int, tuple[int, int]]] = []
    flush = position_reports.PositionReports.flush

    def noted(reports: position_reports.PositionReports) -> None:
        flush(reports)
        flushed.append(positions(cluster))

    monkeypatch.setattr(position_reports.PositionReports, "flush", noted)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    assert not flushed
    reader.latestOffset(end, EVERYTHING)
    assert flushed == ([{0: (3, 0), 1: (0, -1), 2: (0, -1)}] if is_last else [])


def test_a_query_waits_for_no_coordinator(
    cluster: FakeCluster, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 0, rows=3)
    for number in range(16):
        cluster.groups.open()
        cluster.lead(None, "__groups", number)
    monkeypatch.setattr(position_reports, "FLUSH_S", 0.2)
    reader = started(query_name="etl")
    reader.prepareForTriggerAvailableNow()
    began_s = time.monotonic()
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    reader.latestOffset(end, EVERYTHING)
    assert 0.2 <= time.monotonic() - began_s < 5
    assert not positions(cluster)


def test_a_refusal_is_a_warning_and_no_error(
    cluster: FakeCluster, started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, position_reports.__name__)
    cluster.groups.add(group(QUERY, members=[member("one", 0)], positions=[position(0, 2)]))
    reader = started(query_name="etl")
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    eventually(lambda: len(caplog.records) == 1, "it is told")
    assert "group spark:etl has 1 members (one on host-one)" in caplog.text
    assert "reportGroup=false" in caplog.text
    began_s = time.monotonic()
    reader.latestOffset(end, EVERYTHING)
    reader.stop()
    assert time.monotonic() - began_s < position_reports.FLUSH_S, "nobody waits for what a person has to mend"

    def refuse(*_asked: object) -> None:
        raise GroupAuthorizationFailed("nobody lacks the right read on group spark:etl")

    monkeypatch.setattr(position_reports, "change_group", refuse)
    other = started(query_name="etl")
    other.latestOffset(other.initialOffset(), EVERYTHING)
    eventually(lambda: len(caplog.records) == 2, "so is this")
    assert "lacks the right read on group spark:etl" in caplog.text
    assert positions(cluster) == {0: (2, 0)}, "nothing was mixed"
