"""Where rows go that name no partition, by which key, and what may be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_replication.client.producing.placing import Rounds
from spark_replication.client.producing.producer import Producer
from spark_replication.client.producing.rows import Rows
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import InvalidRequest, NotEnoughReplicas, ReplicationError, SchemaMismatch
from spark_replication.mirror.tables.keys import key_bytes, places_of
from tests.unit.client.fake_cluster import PASSES_MS, FakeCluster
from tests.unit.client.test_producer import WAIT_S, failure, numbers

PAYMENTS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture
def producer(cluster: FakeCluster) -> Iterator[Producer]:
    cluster.create("payments", 3, PAYMENTS)
    with Producer(cluster.bootstrap, deadline_ms=15_000) as opened:
        yield opened


def rows_of(cluster: FakeCluster, topic: str = "payments") -> list[dict[str, Any]]:
    """In order of partition and offset."""
    logs = [log for partition, log in sorted(cluster.logs.items()) if partition.topic == topic]
    return [row for log in logs for stored in log.batches for row in stored.batch.to_pylist()]


# Sends that name nothing


def test_sends_that_wait_for_their_answer_go_to_one_partition_after_the_other(producer: Producer) -> None:
    found = [producer.send("orders", numbers(number)).result(WAIT_S).partition for number in range(9)]
    assert Counter(found) == {0: 3, 1: 3, 2: 3}
    assert [(after - before) % 3 for before, after in pairwise(found)] == 8 * [1]


def test_small_sends_that_wait_for_nothing_fill_a_batch_before_the_next_partition_has_its_turn(
    cluster: FakeCluster,
) -> None:
    with Producer(cluster.bootstrap, batch_bytes=50_000, deadline_ms=15_000) as producer:
        with cluster.silent():  # so that all of them are unanswered
            futures = [producer.send("orders", numbers(number)) for number in range(600)]
        found = [future.result(WAIT_S).partition for future in futures]
    turns = [here for before, here in zip([None, *found], found, strict=False) if here != before]
    assert turns == [(turns[0] + place) % 3 for place in range(len(turns))], "one after the other"
    assert 10 <= len(turns) <= 20, "some 40 sends of 1.2 KiB are a full batch"
    stored = sum(len(cluster.log(partition=number).batches) for number in range(3))
    assert stored < 60, "small sends are still stored together"


def test_many_producers_that_send_once_do_not_meet_at_one_partition(cluster: FakeCluster) -> None:
    found = set()
    for _ in range(30):
        with Producer(cluster.bootstrap) as producer:
            found.add(producer.send("orders", numbers(1)).result(WAIT_S).partition)
    assert len(found) > 1


def test_sends_that_name_a_partition_leave_the_turns_alone(producer: Producer) -> None:
    found = []
    for number in range(6):
        found.append(producer.send("orders", numbers(number)).result(WAIT_S).partition)
        producer.send("orders", numbers(number), 0).result(WAIT_S)
    assert Counter(found) == {0: 2, 1: 2, 2: 2}


def test_topics_have_turns_of_their_own(cluster: FakeCluster, producer: Producer) -> None:
    cluster.create("alone")
    for number in range(6):
        assert producer.send("alone", numbers(number)).result(WAIT_S).partition == 0
    assert Counter(producer.send("orders", numbers(0)).result(WAIT_S).partition for _ in range(6)) == {0: 2, 1: 2, 2: 2}


def test_an_identity_names_where_its_sends_go(cluster: FakeCluster) -> None:
    """They would go elsewhere the second time, and be stored twice."""
    with Producer(cluster.bootstrap, identity=Identity(producer=7)) as producer:
        with pytest.raises(InvalidRequest, match="give partition= or key="):
            producer.send("orders", numbers(1))
        assert producer.send("orders", numbers(1), 0).result(WAIT_S).base_offset == 0


class Takes:
    """Nothing that it takes is answered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_idle = False
        self.taken_bytes = 0


def test_a_turn_begins_with_what_the_partition_has_taken_before(cluster: FakeCluster) -> None:
    (orders,) = cluster.metadata(("orders",)).topics
    takers = [Takes(number) for number in range(3)]
    rounds = Rounds(lambda partition: takers[partition.partition], 100, first=2)
    found = []
    for _ in range(12):
        taker = rounds.taker(orders)
        found.append(taker.number)
        taker.taken_bytes += 50
    assert found == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]
    (narrower,) = cluster.metadata(("orders",), {"orders": (0, 1)}).topics
    assert [rounds.taker(narrower).number for _ in range(2)] == [1, 1], "the next that there is"


# Keys


def test_a_key_that_names_a_column_places_each_row(cluster: FakeCluster, producer: Producer) -> None:
    rows = [{"id": number, "customer": f"customer-{number % 7}"} for number in range(40)]
    acks = producer.send("payments", rows, key="customer").result(WAIT_S)
    assert [ack.partition for ack in acks] == sorted({ack.partition for ack in acks})
    assert sum(ack.last_offset - ack.base_offset + 1 for ack in acks) == 40
    found = rows_of(cluster)
    assert sorted(row["id"] for row in found) == list(range(40))
    for customer in (f"customer-{number}" for number in range(7)):
        by_key = producer.send("payments", {"id": [99], "customer": ["x"]}, key=customer.encode()).result(WAIT_S)
        log = cluster.log("payments", by_key.partition)
        ids = [row["id"] for stored in log.batches for row in stored.batch.to_pylist() if row["customer"] == customer]
        assert ids == [row["id"] for row in rows if row["customer"] == customer], "where its bytes go, in their order"


@pytest.mark.parametrize("key", [["customer", "id"], ("customer", "id")])
def test_several_columns_make_one_key(cluster: FakeCluster, producer: Producer, key: list[str]) -> None:
    rows = {"id": list(range(20)), "customer": [f"c{number}" for number in range(20)]}
    acks = producer.send("payments", rows, key=key).result(WAIT_S)
    both = pa.StructArray.from_arrays([pa.array(rows["customer"]), pa.array(rows["id"])], names=["customer", "id"])
    wanted = Counter(places_of(key_bytes(both), 3).to_pylist())
    assert {ack.partition: ack.last_offset - ack.base_offset + 1 for ack in acks} == wanted


def test_a_key_by_column_answers_alike_if_all_rows_go_to_one_partition(producer: Producer) -> None:
    (ack,) = producer.send("payments", {"id": [1], "customer": ["a"]}, key="customer").result(WAIT_S)
    assert ack.base_offset == ack.last_offset == 0


def test_parts_that_are_refused_say_which_others_are_stored(cluster: FakeCluster) -> None:
    cluster.create("payments", 3, PAYMENTS)
    cluster.refuse = lambda _batch, metadata: NotEnoughReplicas("wait") if metadata.partition == 1 else None
    rows = {"id": list(range(20)), "customer": [f"c{number}" for number in range(20)]}
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS) as producer:
        error = producer.send("payments", rows, key="customer").exception(WAIT_S)
    assert isinstance(error, NotEnoughReplicas)
    assert error.maybe_written
    assert "the rows for the partitions 0, 2 are stored" in error.message


@pytest.mark.parametrize(
    ("key", "why"),
    [("name", "key='name' is no column of payments: it has id, customer, at"), ("at", "cannot be a key")],
)
def test_a_key_that_is_no_column_of_the_topic_is_refused(producer: Producer, key: str, why: str) -> None:
    error = producer.send("payments", {"id": [1]}, key=key).exception(WAIT_S)
    assert isinstance(error, InvalidRequest)
    assert why in error.message


def test_rows_that_arrow_cannot_place_fail_in_their_future(cluster: FakeCluster, producer: Producer) -> None:
    """Arrow has no `take` for some types."""
    cluster.create("odd", 3, pa.schema([("id", pa.int64()), ("run", pa.run_end_encoded(pa.int32(), pa.string()))]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))
    batch = pa.record_batch({"id": pa.array([1, 2]), "run": runs})
    error = producer.send("odd", batch, key="id").exception(WAIT_S)
    assert isinstance(error, InvalidRequest)
    assert "rows of odd cannot be placed by id" in error.message


@pytest.mark.parametrize("key", [7, [], [b"a"], 1.5])
def test_a_key_is_bytes_or_names_columns(producer: Producer, key: Any) -> None:
    with pytest.raises(InvalidRequest, match="it is bytes, or the name of a column, or several"):
        producer.send("payments", {"id": [1]}, key=key)


# Rows

AT = pd.Timestamp("2026-11-28T12:00:00Z")
WANTED = [{"id": 1, "customer": "a", "at": AT.to_pydatetime()}, {"id": 2, "customer": None, "at": None}]
COLUMNS = {"id": [1, 2], "customer": ["a", None], "at": [AT.to_pydatetime(), None]}


class OneArray:
    """Another library's batch."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return pa.record_batch(COLUMNS, PAYMENTS).__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "rows",
    [
        lambda: pa.record_batch(COLUMNS, PAYMENTS),
        lambda: pa.table(COLUMNS, PAYMENTS),
        lambda: pa.RecordBatchReader.from_batches(PAYMENTS, [pa.record_batch(COLUMNS, PAYMENTS)]),
        OneArray,
        lambda: pl.DataFrame(COLUMNS),
        lambda: pd.DataFrame({"id": [1, 2], "customer": ["a", None], "at": [AT, pd.NaT]}, index=[7, 8]),
        lambda: COLUMNS,
        lambda: {"id": pa.array([1, 2], pa.int8()), "customer": ["a", None], "at": COLUMNS["at"]},
        lambda: [{"id": 1, "customer": "a", "at": AT}, {"id": 2}],
    ],
    ids=["batch", "table", "stream", "array", "polars", "pandas", "dict", "dict_of_arrow", "dicts"],
)
def test_whatever_has_columns_may_be_sent(cluster: FakeCluster, producer: Producer, rows: Callable[[], Rows]) -> None:
    ack = producer.send("payments", rows()).result(WAIT_S)
    assert ack.last_offset == 1, "as one batch"
    assert rows_of(cluster) == WANTED
    (stored,) = cluster.log("payments", ack.partition).batches
    assert stored.batch.schema == PAYMENTS


def test_columns_that_are_missing_are_null_where_they_may_be(cluster: FakeCluster, producer: Producer) -> None:
    producer.send("payments", {"id": [5]}).result(WAIT_S)
    assert rows_of(cluster) == [{"id": 5, "customer": None, "at": None}]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"id": [1], "name": ["a"]}, "column 'name' is not in payments, which has id, customer, at"),
        ({"customer": ["a"]}, "column 'id' of payments is missing, and holds no nulls"),
        ([{"id": 1}, {"customer": "b"}], "column 'id' of payments has 1 nulls, and holds none"),
        ({"id": ["one"]}, "column 'id' of payments cannot be sent: "),
        ({"id": [1, 1.5]}, "column 'id' of payments cannot be sent: "),
        ({"id": pa.array([1 << 63], pa.uint64())}, "column 'id' of payments cannot be sent: "),
        ({"id": [1], "customer": ["a", "b"]}, "the columns are not equally long: {'id': 1, 'customer': 2}"),
        ({"id": []}, "a batch without rows"),
        ([], "a batch without rows"),
        ({}, "a batch without rows"),
        ("payments", "str cannot be sent: give a pyarrow RecordBatch or Table, a DataFrame, a dict of columns or"),
        ([1, 2], "list cannot be sent: give"),
        (None, "NoneType cannot be sent: give"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_the_name_of_their_column(producer: Producer, rows: Rows, why: str) -> None:
    error = failure(producer.send("payments", rows))
    assert isinstance(error, InvalidRequest)
    assert why in error.message
    assert not error.maybe_written


def test_a_batch_of_another_schema_is_still_refused_as_it_is(producer: Producer) -> None:
    error = failure(producer.send("payments", pa.record_batch({"id": pa.array([1], pa.int32())})))
    assert isinstance(error, SchemaMismatch)


def test_the_future_of_several_parts_waits_for_the_last(cluster: FakeCluster, producer: Producer) -> None:
    called: list[Future[tuple[Ack, ...]]] = []
    rows = {"id": list(range(20)), "customer": [f"c{number}" for number in range(20)]}
    with cluster.silent():
        future = producer.send("payments", rows, key="customer")
        future.add_done_callback(called.append)
        assert not future.done()
        assert not future.cancel(), "it is on its way"
    assert len(future.result(WAIT_S)) == 3
    assert called == [future]
    assert not isinstance(future.exception(), ReplicationError)
