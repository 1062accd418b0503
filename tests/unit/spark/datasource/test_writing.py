"""What a task says of a write that failed."""

from __future__ import annotations

from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from spark_replication.client.sender import Ack, Identity
from spark_replication.errors import InvalidProducerEpoch, InvalidRequest, ReplicationError
from spark_replication.messages.records import KEPT_PRODUCER
from spark_replication.spark.datasource import writing
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import APPEND_BYTES, SinkSchema

SCHEMA = pa.schema([("text", pa.string())])
TEXT = "x" * (APPEND_BYTES // 2 + 1)  # two are more than one append


class Task:
    """Spark's, of a batch."""

    def partitionId(self) -> int:  # noqa: N802 (Spark's name)
        return 0


class Refusing:
    """A producer under fixed numbers: its first batch fails, and what comes behind it is refused at once."""

    def __init__(self, failed: ReplicationError) -> None:
        self._failed = failed
        self._over = False

    def __enter__(self) -> Refusing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def send(self, _topic: str, _batch: pa.RecordBatch, **_told: Any) -> Future[Ack]:
        if self._over:
            raise InvalidRequest("a batch for orders-0 has failed, and this one would have its number: begin anew")
        self._over = True
        future: Future[Ack] = Future()
        future.set_exception(self._failed)
        return future


def test_the_batch_that_failed_says_why_and_not_the_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(_options: LogOptions, _identity: Identity) -> Refusing:
        return Refusing(InvalidProducerEpoch("another batch 0 than the one that is stored"))

    monkeypatch.setattr(writing, "_producer", refusing)
    monkeypatch.setattr(writing, "_task", Task)
    options = LogOptions(topic="orders", bootstrap="127.0.0.1:1", security={})
    sink = SinkSchema("orders", SCHEMA, (0,))
    batches = [pa.record_batch([[TEXT]], schema=SCHEMA) for _ in range(4)]
    with pytest.raises(InvalidProducerEpoch, match=r"another batch 0 .+ another write had this writeId"):
        writing.BatchWriter(options, sink, "one").write(iter(batches))


# Which appends a task makes, and under which numbers


def texts(*sizes: int) -> pa.RecordBatch:
    return pa.record_batch([["x" * size for size in sizes]], schema=SCHEMA)


def made(*placed: tuple[int, pa.RecordBatch], bytes_max: int = 1_000) -> list[tuple[int, list[int], bool]]:
    """Of each append its partition, the sizes of its texts, and whether these may be in another order."""
    appends = writing.appends_of(placed, bytes_max)
    return [
        (each.partition, [len(text) for part in each.parts for text in part.column(0).to_pylist()], each.any_order)
        for each in appends
    ]


def test_one_append_may_come_in_any_order_and_several_may_not() -> None:
    assert made((1, texts(10)), (0, texts(20)), (1, texts(30))) == [(0, [20], True), (1, [10, 30], True)]
    large = made((0, texts(500)), (1, texts(10)), (0, texts(400)), (0, texts(300)))
    assert large == [(0, [500], False), (0, [400], False), (0, [300], False), (1, [10], True)]


def test_what_an_append_has_room_for_begins_anew_with_each() -> None:
    """The size of an append that was made does not count for the next one of its partition."""
    assert [sizes for _, sizes, _ in made(*[(0, texts(100))] * 8, bytes_max=1_500)] == [[100] * 5, [100] * 3]


def test_skewed_rows_are_cut_by_their_own_sizes() -> None:
    """One of the many small rows is large: by their mean size, all of them would fit one append."""
    appends = made((0, texts(*[1] * 100, 3_000, *[1] * 100)), bytes_max=2_000)
    assert [size for _, sizes, _ in appends for size in sizes] == [*[1] * 100, 3_000, *[1] * 100]
    assert [sizes for _, sizes, _ in appends if 3_000 in sizes] == [[3_000]], "a row that is too large goes alone"


@given(some.lists(some.tuples(some.integers(0, 2), some.lists(some.integers(0, 900), min_size=1)), max_size=8))
def test_no_row_is_lost_and_no_append_is_too_large(parts: list[tuple[int, list[int]]]) -> None:
    placed = [(partition, texts(*sizes)) for partition, sizes in parts]
    bytes_max = pa.ipc.get_record_batch_size(texts(900))
    appends = [*writing.appends_of(placed, bytes_max)]
    for partition in range(3):
        wanted = [size for each, sizes in parts if each == partition for size in sizes]
        there = [each for each in appends if each.partition == partition]
        assert [len(text) for each in there for part in each.parts for text in part.column(0).to_pylist()] == wanted
        assert [each.any_order for each in there] == ([True] if len(there) == 1 else [False] * len(there))
    for each in appends:
        assert pa.ipc.get_record_batch_size(pa.concat_batches(each.parts)) <= bytes_max


def options(**given: Any) -> LogOptions:
    return LogOptions(topic=given.pop("topic", "orders"), bootstrap="127.0.0.1:1", security={}, **given)


def test_the_micro_batch_is_the_epoch_of_a_producer_that_is_kept() -> None:
    identity = writing.stream_identity("query", 7, 3)
    assert (identity.epoch, identity.any_order) == (7, True)
    assert identity.producer & KEPT_PRODUCER
    others = {writing.stream_identity(query, 7, task).producer for query in ("query", "other") for task in (3, 4)}
    assert len(others) == 4
    assert writing.stream_identity("query", 8, 3).producer == identity.producer


def test_names_do_not_run_into_each_other() -> None:
    assert writing.producer_id("a", 11) != writing.producer_id("a1", 1)
    assert 0 <= writing.producer_id("a", 1) < KEPT_PRODUCER


def test_a_write_is_named_by_topic_and_id_and_kept_if_it_has_a_version() -> None:
    plain = writing.batch_identity(options(), "w", 0, any_order=False)
    assert (plain.producer & KEPT_PRODUCER, plain.epoch, plain.any_order) == (0, 0, False)
    assert writing.batch_identity(options(), "w", 0, any_order=True).producer == plain.producer
    others = {
        writing.batch_identity(options(topic=topic), name, task, any_order=False).producer
        for topic in ("orders", "bills")
        for name in ("w", "v")
        for task in (0, 1)
    }
    assert len(others) == 8
    kept = [
        writing.batch_identity(options(write_version=version), "w", 0, any_order=False).producer for version in (4, 5)
    ]
    assert kept == [plain.producer | KEPT_PRODUCER] * 2
    assert writing.batch_identity(options(write_version=5), "w", 0, any_order=True).epoch == 5
