"""A topic as a table: what each way to take it gives, what is asked for, and what is an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.client.reading import topic_rows
from spark_replication.client.reading.log_batch import METADATA
from spark_replication.client.reading.reader import Reader
from spark_replication.client.reading.selection import Condition
from spark_replication.client.reading.topic_rows import TopicRows, topic
from spark_replication.errors import InvalidRequest, LogTruncated, OffsetOutOfRange, UnknownTopicOrPartition
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from tests.unit.client.fake_cluster import SCHEMA, FakeCluster, FakeLog
from tests.waiting import eventually

NUMBERS = "number"


def rows_of(cluster: FakeCluster, **given: Any) -> TopicRows:
    return topic("orders", cluster.bootstrap, deadline_ms=2_000, **given)


def fill(cluster: FakeCluster, partition: int, *batches: Sequence[int], at_ms: int = 7) -> FakeLog:
    with cluster.changed:
        log = cluster.logs[TopicPartition("orders", partition)]
        log.now_ms = at_ms
        for numbers in batches:
            batch = pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)
            log.append(batch, BatchMetadata(producer=99, sequence=len(log.batches)))
        cluster.changed.notify_all()
    return log


@pytest.fixture
def filled(cluster: FakeCluster) -> FakeCluster:
    """Numbers 0 to 5 in partition 0, as of the times 1,000 and 2,000; and 10 to 12 in partition 2, as of 1,500."""
    fill(cluster, 0, [0, 1, 2], at_ms=1_000)
    fill(cluster, 0, [3, 4, 5], at_ms=2_000)
    fill(cluster, 2, [10, 11, 12], at_ms=1_500)
    return cluster


def test_each_way_gives_all_rows_that_are_committed(filled: FakeCluster) -> None:
    import duckdb  # here and below: every worker would load it as it collects
    import polars as pl

    every = [0, 1, 2, 3, 4, 5, 10, 11, 12]
    with rows_of(filled) as found:
        assert found.schema == SCHEMA
        assert found.to_arrow().to_pydict() == {NUMBERS: every}
        assert pa.table(found).to_pydict() == {NUMBERS: every}
        assert found.to_pandas()[NUMBERS].to_list() == every
        assert found.to_polars()[NUMBERS].to_list() == every
        assert pl.DataFrame(found)[NUMBERS].to_list() == every
        assert found.lazy().select(NUMBERS).collect()[NUMBERS].to_list() == every
        assert found.to_duckdb().sum(NUMBERS).fetchall() == [(48,)]
        assert duckdb.connect().from_arrow(found.to_reader()).count("*").fetchall() == [(9,)]
        fill(filled, 1, [20])
        assert found.to_arrow()[NUMBERS].to_pylist() == [0, 1, 2, 3, 4, 5, 20, 10, 11, 12], "each use reads anew"


def test_a_topic_without_rows_is_a_table_with_its_columns(cluster: FakeCluster) -> None:
    found = rows_of(cluster)
    assert (found.to_arrow().schema, len(found.head()), len(found.tail())) == (SCHEMA, 0, 0)


def test_columns_say_where_a_row_lies(filled: FakeCluster) -> None:
    asked = ("_partition", "_offset", NUMBERS, "_timestamp", "_leader_epoch", "_topic")
    (last,) = rows_of(filled, columns=asked).tail(1).to_pylist()
    assert list(last) == list(asked)
    assert last == {
        "_partition": 0,
        "_offset": 5,
        NUMBERS: 5,
        "_timestamp": datetime.fromtimestamp(2, UTC),
        "_leader_epoch": 0,
        "_topic": "orders",
    }
    assert rows_of(filled, columns=["_offset"]).to_arrow()["_offset"].to_pylist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ([(NUMBERS, ">", 3)], [4, 5, 10, 11, 12]),
        ([(NUMBERS, "!=", 3), (NUMBERS, "<=", 4)], [0, 1, 2, 4]),
        ([(NUMBERS, "in", [1, 11]), ("_partition", "=", 2)], [11]),
        ([(NUMBERS, "not in", [0, 1, 2, 3, 10])], [4, 5, 11, 12]),
        ([("_partition", "in", [1, 2])], [10, 11, 12]),
        ([("_partition", ">", 0)], [10, 11, 12]),
        ([("_offset", ">=", 1), ("_offset", "<", 4)], [1, 2, 3, 11, 12]),
        ([("_offset", "==", 2)], [2, 12]),
        ([("_offset", "in", [0, 2])], [0, 2, 10, 12]),
        ([("_timestamp", ">=", datetime.fromtimestamp(1.5, UTC))], [3, 4, 5, 10, 11, 12]),
        ([("_timestamp", "<", datetime.fromtimestamp(1.5, UTC))], [0, 1, 2]),
        ([("_timestamp", "!=", datetime.fromtimestamp(1.5, UTC))], [0, 1, 2, 3, 4, 5]),
        ([("_offset", "<", 0)], []),
    ],
)
def test_conditions_hold_for_all_rows_and_only_for_them(
    filled: FakeCluster, where: list[Condition], numbers: list[int]
) -> None:
    found = rows_of(filled, where=where)
    assert found.to_arrow()[NUMBERS].to_pylist() == numbers
    assert found.head(2)[NUMBERS].to_pylist() == numbers[:2]
    assert len(found.tail(2)) == min(2, len(numbers))


def test_what_conditions_look_at_need_not_be_given(filled: FakeCluster) -> None:
    found = rows_of(filled, columns=["_offset"], where=[(NUMBERS, ">", 4), ("_timestamp", "!=", datetime.now(UTC))])
    assert found.to_arrow().to_pydict() == {"_offset": [5, 0, 1, 2]}


def test_since_a_time(filled: FakeCluster) -> None:
    assert rows_of(filled, since=1_500).to_arrow()[NUMBERS].to_pylist() == [3, 4, 5, 10, 11, 12]
    assert rows_of(filled, since=datetime.fromtimestamp(2, UTC)).to_arrow()[NUMBERS].to_pylist() == [3, 4, 5]
    with pytest.raises(InvalidRequest, match="has no time zone"):
        rows_of(filled, since=datetime(2026, 1, 1))


def test_head_and_tail(filled: FakeCluster) -> None:
    found = rows_of(filled)
    assert [found.head(count)[NUMBERS].to_pylist() for count in (0, 2, 7)] == [[], [0, 1], [0, 1, 2, 3, 4, 5, 10]]
    assert [found.tail(count)[NUMBERS].to_pylist() for count in (0, 2, 4)] == [[], [4, 5], [12, 3, 4, 5]]


class Asked:
    """What readers are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[tuple[int, int, int | None, tuple[str, ...]]] = []
        read = Reader.read

        def noted(
            reader: Reader, name: str, partition: int, start: int, stop: int, *, columns: tuple[str, ...], **given: Any
        ) -> Iterator[Any]:
            self.reads.append((partition, start, stop, columns))
            return read(reader, name, partition, start, stop, columns=columns, **given)

        monkeypatch.setattr(Reader, "read", noted)


def test_nothing_is_read_that_nobody_asks_for(filled: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import polars as pl

    asked = Asked(monkeypatch)
    rows_of(filled, where=[("_offset", ">", 3), ("_partition", "=", 0)]).to_arrow()
    assert asked.reads == [(0, 4, 6, (NUMBERS,))]
    asked.reads.clear()
    rows_of(filled).tail(2)
    assert asked.reads == [(0, 4, 6, (NUMBERS,)), (2, 1, 3, (NUMBERS,))]
    asked.reads.clear()
    rows_of(filled).head(2)
    assert asked.reads == [(0, 0, 6, (NUMBERS,))]
    asked.reads.clear()
    assert rows_of(filled).lazy().select("_offset").filter(pl.col("_offset") > 4).collect().height == 1
    assert asked.reads == [(0, 5, 6, (NUMBERS,))], "one column says how many rows there are"


def test_a_frame_that_is_lazy_takes_its_conditions_and_its_limit(filled: FakeCluster) -> None:
    import polars as pl

    lazy = rows_of(filled).lazy()
    assert lazy.filter(pl.col(NUMBERS) > 3).select(NUMBERS).collect()[NUMBERS].to_list() == [4, 5, 10, 11, 12]
    assert lazy.head(4).select(NUMBERS).collect()[NUMBERS].to_list() == [0, 1, 2, 3]
    assert lazy.select("_partition").unique().sort("_partition").collect()["_partition"].to_list() == [0, 2]
    assert lazy.group_by("_partition").len().sort("_partition").collect()["len"].to_list() == [6, 3]


def test_a_column_of_the_topics_own_is_there_once_whatever_its_name(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_rows, "SHOWN", (NUMBERS, *METADATA.names))
    assert rows_of(filled).lazy().collect().columns == [NUMBERS, *METADATA.names]
    assert rows_of(filled).tail(1)[NUMBERS].to_pylist() == [5]


def test_what_was_committed_and_is_gone_is_an_error_and_never_fewer_rows(filled: FakeCluster) -> None:
    reading = rows_of(filled).to_reader()
    filled.logs[TopicPartition("orders", 2)].leads_up_to = 1
    with pytest.raises(LogTruncated, match="orders-2: all below offset 3 was committed"):
        reading.read_all()


def test_a_table_of_which_one_partition_fails_ends_its_other_reads(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, given = Reader.read, list[int]()

    def endless(reader: Reader, name: str, partition: int, *asked: Any, **given_: Any) -> Iterator[Any]:
        if partition == 2:
            eventually(lambda: given, "another is being read")
            raise OffsetOutOfRange("gone")
        while True:
            for found in read(reader, name, 0, 0, 6, **given_):
                given.append(partition)
                yield found

    monkeypatch.setattr(Reader, "read", endless)
    with pytest.raises(OffsetOutOfRange, match="gone"):
        rows_of(filled).to_arrow()


def test_after_an_error_no_other_partition_is_begun(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create("orders", partitions=300)
    for partition in range(300):
        fill(cluster, partition, [partition])
    read, begun = Reader.read, list[int]()

    def fails(reader: Reader, name: str, partition: int, *asked: Any, **given: Any) -> Iterator[Any]:
        begun.append(partition)
        if partition == 0:
            raise OffsetOutOfRange("gone")
        return read(reader, name, partition, *asked, **given)

    monkeypatch.setattr(Reader, "read", fails)
    with pytest.raises(OffsetOutOfRange, match="gone"):
        rows_of(cluster).to_arrow()
    assert len(begun) < 300


def test_a_table_has_its_partitions_in_their_order_whichever_is_read_first(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, ended = Reader.read, threading.Event()

    def late(reader: Reader, name: str, partition: int, *asked: Any, **given: Any) -> Iterator[Any]:
        assert partition == 2 or ended.wait(10)
        yield from read(reader, name, partition, *asked, **given)
        ended.set()

    monkeypatch.setattr(Reader, "read", late)
    assert rows_of(filled).to_arrow()[NUMBERS].to_pylist() == [0, 1, 2, 3, 4, 5, 10, 11, 12]


def test_a_topic_that_is_made_again_meanwhile_is_an_error(filled: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are others, at the same offsets."""
    ranges = Reader.ranges
    monkeypatch.setattr(
        Reader,
        "ranges",
        lambda reader, wanted: {
            name: replace(each, topic_id="another") for name, each in ranges(reader, wanted).items()
        },
    )
    with pytest.raises(UnknownTopicOrPartition, match="orders has just been made again: read it anew"):
        rows_of(filled).to_arrow()


def test_what_retention_removes_before_it_is_read_is_an_error(filled: FakeCluster) -> None:
    found = rows_of(filled)
    plan = found._planned()
    del filled.logs[TopicPartition("orders", 0)].batches[0]
    with pytest.raises(OffsetOutOfRange, match="read it anew"):
        found._given(plan).read_all()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"columns": ["amount"]}, "orders has no column 'amount', it has number, _topic"),
        ({"where": [("amount", ">", 1)]}, "orders has no column 'amount'"),
        ({"where": [(NUMBERS, ">", "many")]}, "number is int64, and 'many' is none"),
        ({"where": [(NUMBERS, "like", "1%")]}, "is no condition"),
        ({"where": ["number > 3"]}, "is no condition"),
        ({"where": [("_partition", "in", 3)]}, "names no values to be in"),
        ({"where": [(NUMBERS, "not in", "12")]}, "names no values to be not in"),
        ({"where": [("_timestamp", ">", 1_500)]}, "_timestamp is a time, and 1500 is none: give a datetime with a"),
        ({"where": [("_timestamp", "!=", datetime(2026, 1, 1))]}, "give a datetime with a time zone"),
        ({"where": [("_timestamp", "in", [1_500])]}, "give a datetime with a time zone"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_a_sentence(filled: FakeCluster, given: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        rows_of(filled, **given).to_arrow()
