"""A stream's offsets and tasks, without a JVM: what is planned again is the same, and what is gone is told of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from spark_replication.client.finding.ranges import Found
from spark_replication.client.reading.bounds import Bounds
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import Reader
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.errors import (
    InvalidRequest,
    LogTruncated,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from spark_replication.messages.ranges import WantedRange
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.spark.datasource import topic
from spark_replication.spark.datasource.batch_reader import BatchReader
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.stream_reader import StreamReader
from spark_replication.spark.datasource.tasks import Task
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeCluster
from tests.waiting import eventually

COLUMNS = StructType([StructField("number", LongType())])
ROWS = 10_000  # of a batch: more than tasks read together
WAIT_S = 20.0
EVERYTHING = ReadAllAvailable()


def fill(cluster: FakeCluster, partition: int, batches: int = 1, rows: int = ROWS) -> None:
    with cluster.changed:
        log = cluster.logs[TopicPartition("orders", partition)]
        for _ in range(batches):
            batch = pa.record_batch([pa.array(range(log.end, log.end + rows), pa.int64())], schema=SCHEMA)
            log.append(batch, BatchMetadata(producer=99, sequence=len(log.batches)))
        cluster.changed.notify_all()


def options(cluster: FakeCluster, **given: Any) -> LogOptions:
    given = {"deadline_ms": PASSES_MS, "local_reads": False, "reports_group": False, **given}
    return LogOptions(topic="orders", bootstrap=cluster.bootstrap, security={}, **given)


def stream(cluster: FakeCluster, **given: Any) -> StreamReader:
    return StreamReader(options(cluster, **given), COLUMNS)


def ranges(tasks: list[Any]) -> list[list[tuple[int, int, int]]]:
    return [[(each.partition, each.start.offset, each.end.offset) for each in task.ranges] for task in tasks]


def rows(reader: StreamReader | BatchReader, tasks: list[Any]) -> list[int]:
    return [row for task in tasks for batch in reader.read(task) for row in batch.column(0).to_pylist()]


def test_an_offset_has_the_epoch_of_the_record_before_it(cluster: FakeCluster) -> None:
    fill(cluster, 0, rows=3)
    cluster.logs[TopicPartition("orders", 0)].leader_epoch = 4
    fill(cluster, 0, rows=3)
    reader = stream(cluster)
    start = reader.initialOffset()
    assert (start["offsets"], start["epochs"]) == ({"0": 0, "1": 0, "2": 0}, {})
    end = reader.latestOffset(start, EVERYTHING)
    assert (end["offsets"], end["epochs"]) == ({"0": 6, "1": 0, "2": 0}, {"0": 4})
    within = reader.latestOffset(start, ReadMaxRows(2))
    assert (within["offsets"], within["epochs"]) == ({"0": 2, "1": 0, "2": 0}, {"0": 0})
    assert reader.latestOffset(end, EVERYTHING) == end


def test_a_checkpoint_without_epochs_is_read(cluster: FakeCluster) -> None:
    fill(cluster, 0, rows=6)
    reader = stream(cluster)
    old = {"topic_id": "id-orders", "offsets": {"0": 2, "1": 0, "2": 0}}
    end = reader.latestOffset(old, EVERYTHING)
    assert rows(reader, reader.partitions(old, end)) == [2, 3, 4, 5]


def test_a_micro_batch_is_planned_again_as_before_or_not_at_all(cluster: FakeCluster) -> None:
    """Its tasks are known to the sink by their numbers: were a leader that knows less to leave out a range, the others
    would move up."""
    for number in range(3):
        fill(cluster, number)
    reader = stream(cluster)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    planned = ranges(reader.partitions(start, end))
    assert planned == [[(0, 0, ROWS)], [(1, 0, ROWS)], [(2, 0, ROWS)]]
    log = cluster.logs[TopicPartition("orders", 0)]
    with cluster.changed:
        log.knows_the_end, log.leads_up_to = False, 0
    again = stream(cluster, deadline_ms=20_000)
    with pytest.raises(OffsetNotAvailable):
        reader.partitions(start, end)
    with ThreadPoolExecutor(1) as thread:
        told = log.refused_ends
        planning = thread.submit(again.partitions, start, end)
        eventually(lambda: log.refused_ends > told + 1, "it asks again")
        with cluster.changed:
            log.knows_the_end, log.leads_up_to = True, None
        assert ranges(planning.result(WAIT_S)) == planned


def test_a_leader_that_knows_less_has_nothing_new_for_a_stream(cluster: FakeCluster) -> None:
    fill(cluster, 0, batches=2, rows=3)
    reader = stream(cluster)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    log = cluster.logs[TopicPartition("orders", 0)]
    log.knows_the_end, log.leads_up_to = False, 3
    fill(cluster, 1, rows=3)
    eventually(lambda: reader.latestOffset(end, EVERYTHING)["offsets"]["1"] == 3, "of others there is")
    assert reader.latestOffset(end, EVERYTHING)["offsets"]["0"] == 6


@pytest.mark.parametrize("grows_by", [0, 1, 3, 9])
def test_a_log_that_was_cut_below_a_checkpoint_is_an_error(cluster: FakeCluster, grows_by: int) -> None:
    """However far it has grown since: what has these offsets now was never read."""
    fill(cluster, 0, batches=4, rows=3)
    reader = stream(cluster)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    with cluster.changed:
        cluster.logs[TopicPartition("orders", 0)].cut(2, leader_epoch=1)
        fill(cluster, 0, batches=grows_by, rows=2)
    again = stream(cluster)
    with pytest.raises(LogTruncated, match="orders-0 was read or planned up to offset 12, and its log was cut since"):
        again.latestOffset(end, EVERYTHING)
    with pytest.raises(OffsetOutOfRange):
        again.partitions(start, end)


@pytest.mark.parametrize("grows_by", [1, 3, 9])
def test_without_what_is_lost_a_stream_goes_on_where_the_log_was_cut(cluster: FakeCluster, grows_by: int) -> None:
    fill(cluster, 0, batches=4, rows=3)
    end = stream(cluster).latestOffset(stream(cluster).initialOffset(), EVERYTHING)
    with cluster.changed:
        cluster.logs[TopicPartition("orders", 0)].cut(2, leader_epoch=1)
        fill(cluster, 0, batches=grows_by, rows=2)
    reader = stream(cluster, fail_on_data_loss=False)
    newest = reader.latestOffset(end, EVERYTHING)
    assert newest != end
    assert rows(reader, reader.partitions(end, newest)) == [*range(6, 6 + 2 * grows_by)]
    assert reader.latestOffset(newest, EVERYTHING) == newest


@pytest.mark.parametrize(("batches", "kept"), [(4, 2), (1, 0)])
def test_what_is_replaced_between_planning_and_reading_fails_the_task(
    cluster: FakeCluster, batches: int, kept: int
) -> None:
    """Whether it lies below the start of a range, or within."""
    fill(cluster, 0, batches=batches, rows=3)
    reader = stream(cluster)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, EVERYTHING))
    with cluster.changed:
        cluster.logs[TopicPartition("orders", 0)].cut(kept, leader_epoch=1)
        fill(cluster, 0, batches=batches - kept + 1, rows=3)
    with pytest.raises(LogTruncated):
        rows(reader, planned)


def test_a_batch_waits_for_the_end_that_its_leader_does_not_know(cluster: FakeCluster) -> None:
    fill(cluster, 0, rows=3)
    log = cluster.logs[TopicPartition("orders", 0)]
    log.knows_the_end, log.leads_up_to = False, 0
    reader = BatchReader(options(cluster, deadline_ms=20_000), COLUMNS)
    with ThreadPoolExecutor(1) as thread:
        planning = thread.submit(reader.partitions)
        eventually(lambda: log.refused_ends > 1, "it asks again")
        with cluster.changed:
            log.knows_the_end, log.leads_up_to = True, None
        tasks = planning.result(WAIT_S)
    assert rows(reader, tasks) == [0, 1, 2]
    (task,) = tasks
    assert isinstance(task, Task)
    assert [(each.start, each.end) for each in task.ranges] == [(ReadPlace(0), ReadPlace(3, 0))]


def test_a_batch_asks_once_what_there_is_and_its_tasks_for_nothing_but_rows(cluster: FakeCluster) -> None:
    for number in range(3):
        fill(cluster, number)
    asked = cluster.asked_metadata
    reader = BatchReader(options(cluster), COLUMNS)
    tasks = reader.partitions()
    assert ranges(tasks) == [[(0, 0, ROWS)], [(1, 0, ROWS)], [(2, 0, ROWS)]]
    assert rows(reader, tasks) == [*range(ROWS)] * 3
    assert [log.asked_ranges for log in cluster.logs.values()] == [1, 1, 1]
    assert cluster.asked_metadata == asked + 1


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, {0: (3, 12), 1: (0, 6)}),
        ({"starting": {0: 7}}, {0: (7, 12), 1: (0, 6)}),
        ({"starting": {0: 0}, "fail_on_data_loss": False}, {0: (3, 12), 1: (0, 6)}),
        ({"ending": {0: 8, 1: 2}}, {0: (3, 8), 1: (0, 2)}),
        ({"starting": {1: 2}, "ending": {1: 2}}, {0: (3, 12)}),
        ({"starting": "latest"}, {}),
        ({"min_partitions": 1}, {0: (3, 12), 1: (0, 6)}),
    ],
)
def test_a_batch_has_just_what_lies_between_its_ends(
    cluster: FakeCluster, given: dict[str, Any], read: dict[int, tuple[int, int]]
) -> None:
    fill(cluster, 0, batches=4, rows=3)
    fill(cluster, 1, batches=2, rows=3)
    del cluster.logs[TopicPartition("orders", 0)].batches[0]
    reader = BatchReader(options(cluster, **given), COLUMNS)
    tasks = reader.partitions()
    assert sorted(rows(reader, tasks)) == sorted(row for start, end in read.values() for row in range(start, end))
    found: dict[int, list[int]] = {}
    for partition, start, end in (each for task in ranges(tasks) for each in task):
        found.setdefault(partition, []).extend(range(start, end))
    assert found == {partition: [*range(*each)] for partition, each in read.items()}


def test_a_batch_of_so_many_tasks_asks_for_no_pieces_before_their_size_is_known(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic of any size, a leader would cut pieces of one byte."""
    fill(cluster, 0, batches=4)
    asked: list[set[int]] = []
    ranges_of = Reader.ranges

    def counted(reader: Reader, wanted: Sequence[WantedRange]) -> Found:
        asked.append({each.piece_bytes for each in wanted})
        return ranges_of(reader, wanted)

    monkeypatch.setattr(Reader, "ranges", counted)
    BatchReader(options(cluster, min_partitions=4), COLUMNS).partitions()
    assert asked == [{0}, {0}, {ROWS * 8}]


def test_a_batch_has_just_the_offsets_that_spark_asks_for(cluster: FakeCluster) -> None:
    fill(cluster, 0, batches=4, rows=3)
    reader = BatchReader(options(cluster), COLUMNS)
    reader._pushed = Bounds(offset_start=5, offset_end=8)
    assert rows(reader, reader.partitions()) == [5, 6, 7]


@pytest.mark.parametrize("fails", [True, False])
def test_what_retention_removes_between_planning_and_reading_is_told(cluster: FakeCluster, fails: bool) -> None:
    fill(cluster, 0, batches=4, rows=3)
    reader = BatchReader(options(cluster, fail_on_data_loss=fails), COLUMNS)
    tasks = reader.partitions()
    del cluster.logs[TopicPartition("orders", 0)].batches[:2]
    if fails:
        with pytest.raises(OffsetOutOfRange, match="retention has removed 6 records"):
            rows(reader, tasks)
    else:
        assert rows(reader, tasks) == [*range(6, 12)]


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_task_whose_topic_is_not_known_asks_what_has_become_of_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    """A broker may not have heard of a topic yet; or another has its name by now."""
    fill(cluster, 0, rows=3)
    reader = BatchReader(options(cluster), COLUMNS)
    tasks = reader.partitions()
    read, tries = Reader.read, iter([True])

    def unknown_at_first(reader: Reader, *asked: Any, **given: Any) -> Iterator[LogBatch]:
        if next(tries, False):
            raise UnknownTopicOrPartition("orders-0 is of topic_id another here, not id-orders")
        yield from read(reader, *asked, **given)

    monkeypatch.setattr(Reader, "read", unknown_at_first)
    if is_made_again:
        monkeypatch.setattr(topic, "HEARD_BY_ALL_MS", 0)
        ranges_of = Reader.ranges
        monkeypatch.setattr(
            Reader,
            "ranges",
            lambda reader, wanted: {
                name: replace(each, topic_id="another") for name, each in ranges_of(reader, wanted).items()
            },
        )
        with pytest.raises(InvalidRequest, match="orders was deleted and made again"):
            rows(reader, tasks)
    else:
        assert rows(reader, tasks) == [0, 1, 2]


def test_a_leader_that_has_less_than_was_planned_is_asked_again(cluster: FakeCluster) -> None:
    """It may have been deposed, and not know it."""
    fill(cluster, 0, rows=3)
    reader = stream(cluster, deadline_ms=20_000)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    planned = ranges(reader.partitions(start, end))
    log = cluster.logs[TopicPartition("orders", 0)]
    log.leads_up_to = 1
    with pytest.raises(LogTruncated, match="planned up to offset 3, and its log was cut since, at 1 or above"):
        stream(cluster).partitions(start, end)
    left_out = stream(cluster, fail_on_data_loss=False)
    assert ranges(left_out.partitions(start, end)) == [[(0, 0, 1)]]
    with ThreadPoolExecutor(1) as thread:
        asked = log.asked_ranges
        planning = thread.submit(reader.partitions, start, end)
        eventually(lambda: log.asked_ranges > asked + 1, "it asks again")
        log.leads_up_to = None
        assert ranges(planning.result(WAIT_S)) == planned
