"""The appends of a task: how rows are cut, and that brokers know each append again, whichever attempt makes it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pytest

from spark_replication.core.replica.producers import REMEMBERED, OffsetSpan, Producers
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.repeating import Append
from spark_replication.errors import InvalidProducerEpoch
from spark_replication.messages.records import KEPT_PRODUCER, PRODUCER_ID_BITS
from spark_replication.spark.datasource.appends import (
    APPENDS_MAX,
    WriteName,
    appends,
    halved,
    producer_id,
    stream_identity,
)
from spark_replication.storage.format.row_digest import row_digest

BYTES_MAX = 4_096


def rows(*sizes: int, first: int = 0) -> pa.RecordBatch:
    """A row for each size, with a text of so many bytes."""
    ids = pa.array(range(first, first + len(sizes)), pa.int64())
    return pa.record_batch({"id": ids, "text": pa.array(["x" * size for size in sizes])})


def cut(*placed: tuple[int, pa.RecordBatch]) -> list[Append]:
    return list(appends(iter(placed), BYTES_MAX))


def size_of(batch: pa.RecordBatch) -> int:
    return int(pa.ipc.get_record_batch_size(batch))


def ids(found: Iterable[Append], target: int) -> list[int]:
    return [each for append in found if append.target == target for each in append.batch.column("id").to_pylist()]


# How rows are cut


def test_rows_that_fit_into_one_append_are_one() -> None:
    found = cut((1, rows(10, 10)), (0, rows(10, first=9)), (1, rows(10, first=2)))
    assert [(each.target, each.producer, each.batch.num_rows) for each in found] == [(0, 0, 1), (1, 0, 3)]
    assert ids(found, 1) == [0, 1, 2]


def test_rows_keep_their_order_in_appends_that_are_full() -> None:
    parts = [(number % 2, rows(*[300] * 3, first=3 * number)) for number in range(40)]
    found = cut(*parts)
    for target in (0, 1):
        assert ids(found, target) == [id_ for id_ in range(120) if id_ // 3 % 2 == target]
        sizes = [size_of(each.batch) for each in found if each.target == target]
        assert max(sizes) <= BYTES_MAX
        assert all(one + other > BYTES_MAX for one, other in pairwise(sizes)), "none could have been left out"


def test_an_append_is_sent_before_the_task_has_all_its_rows() -> None:
    taken: list[int] = []

    def placed() -> Iterator[tuple[int, pa.RecordBatch]]:
        for number in range(100):
            taken.append(number)
            yield 0, rows(1_000, first=number)

    next(appends(placed(), BYTES_MAX))
    assert len(taken) == 4


@pytest.mark.parametrize("large", [0, 7, 50, 99])
def test_neighbours_that_are_much_larger_than_the_mean_row_are_cut_as_well(large: int) -> None:
    sizes = [1] * 100 + [2_000] * 10
    found = cut((0, rows(*sizes[large:], *sizes[:large])))
    assert max(size_of(each.batch) for each in found) <= BYTES_MAX
    assert ids(found, 0) == list(range(110))


def test_a_row_that_is_larger_than_an_append_is_one_of_its_own() -> None:
    found = [each.num_rows for each in halved(rows(1, 9_000, 1, 1), BYTES_MAX)]
    assert found == [1, 1, 2]


def test_parts_that_take_more_once_they_are_joined_are_cut_again() -> None:
    """Only a column with nulls has bits that say where they are."""
    bare = pa.schema([pa.field(f"c{place}", pa.int8()) for place in range(20)])
    full = pa.record_batch([pa.array([1] * 150, pa.int8())] * 20, schema=bare)
    empty = pa.record_batch([pa.nulls(1, pa.int8())] * 20, schema=bare)
    limit = size_of(full) + size_of(empty)
    found = list(appends([(0, full), (0, empty)], limit))
    assert sum(each.batch.num_rows for each in found) == 151
    assert max(size_of(each.batch) for each in found) <= limit


# Under which numbers


def test_names_that_read_alike_once_they_are_joined_are_not_one() -> None:
    assert producer_id("query", 12) != producer_id("query1", 2)
    assert producer_id("a", "b") != producer_id("ab", "")


def test_each_task_write_and_topic_has_producers_of_its_own() -> None:
    found = [
        WriteName(write_id, None, topic).identity(task, producer).producer
        for write_id in ("one", "two")
        for topic in ("orders", "payments")
        for task in range(3)
        for producer in range(3)
    ]
    assert len(set(found)) == 36
    assert all(0 <= each < 1 << PRODUCER_ID_BITS for each in found), "brokers forget them"


def test_writes_with_a_number_share_producers_that_brokers_keep() -> None:
    first, second = (WriteName("copy", number, "orders").identity(1, 0) for number in (4, 5))
    assert first.producer == second.producer
    assert first.producer & KEPT_PRODUCER
    assert (first.epoch, second.epoch) == (4, 5)


def test_a_stream_has_a_producer_for_each_task_whose_epoch_is_the_micro_batch() -> None:
    found = stream_identity("query", 7, 2)
    assert found == Identity(producer=producer_id("query", 2) | KEPT_PRODUCER, epoch=7, any_order=True)
    assert stream_identity("query", 8, 2).producer == found.producer != stream_identity("query", 7, 3).producer


# What brokers make of it


class Logs:
    """The partitions of a topic, as far as producers are concerned."""

    def __init__(self) -> None:
        self._producers: dict[int, Producers] = defaultdict(Producers)
        self.ids: dict[int, list[int]] = defaultdict(list)

    def take(self, name: WriteName, task: int, those: Sequence[Append]) -> None:
        """An attempt of a task."""
        numbers: Counter[tuple[int, int]] = Counter()
        for append in those:
            identity, log = name.identity(task, append.producer), self._producers[append.target]
            sequence = numbers[append.target, append.producer]
            numbers[append.target, append.producer] += 1
            numbered = identity.producer, identity.epoch, sequence
            told = {"crc": id(append), "digest": row_digest(append.batch)}
            if log.check(*numbered, rows=append.batch.num_rows, **told) is None:
                stored = self.ids[append.target]
                place = OffsetSpan(len(stored), len(stored) + append.batch.num_rows - 1)
                stored += append.batch.column("id").to_pylist()
                log.wrote(*numbered, place, **told)


NAMES = [WriteName("load", None, "orders"), WriteName("load", 3, "orders")]
MANY = 2 * REMEMBERED + 10


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("died_after", [1, REMEMBERED + 1, MANY])
def test_a_task_of_any_size_is_there_once_wherever_an_attempt_ended(name: WriteName, died_after: int) -> None:
    logs = Logs()
    those = cut(*((0, rows(BYTES_MAX - 1_000, first=number)) for number in range(MANY)))
    assert len(those) == MANY
    logs.take(name, 0, those[:died_after])
    for _ in range(2):
        logs.take(name, 0, those)
    assert logs.ids == {0: list(range(MANY))}


def test_a_producer_makes_no_more_appends_than_are_remembered_to_a_partition() -> None:
    those = cut(*((number % 2, rows(BYTES_MAX - 1_000, first=number)) for number in range(2 * APPENDS_MAX + 2)))
    found = Counter((each.target, each.producer) for each in those)
    assert found == {(0, 0): APPENDS_MAX, (0, 1): 1, (1, 0): APPENDS_MAX, (1, 1): 1}
    assert APPENDS_MAX <= REMEMBERED


@pytest.mark.parametrize("name", NAMES)
def test_a_second_attempt_may_have_its_rows_in_another_order_if_one_append_is_enough(name: WriteName) -> None:
    logs = Logs()
    logs.take(name, 0, cut((0, rows(1, 2, 3))))
    logs.take(name, 0, cut((0, rows(1, 2, 3).take([2, 0, 1]))))
    assert logs.ids == {0: [0, 1, 2]}


@pytest.mark.parametrize("name", NAMES)
def test_other_rows_under_the_same_numbers_are_refused_though_they_are_as_many(name: WriteName) -> None:
    logs = Logs()
    logs.take(name, 0, cut((0, rows(1, 2, 3))))
    with pytest.raises(InvalidProducerEpoch, match="another batch 0"):
        logs.take(name, 0, cut((0, rows(1, 2, 3, first=100))))
    assert logs.ids == {0: [0, 1, 2]}


def test_a_write_with_an_earlier_number_is_refused() -> None:
    logs = Logs()
    for number in (3, 4):
        logs.take(WriteName("load", number, "orders"), 0, cut((0, rows(1, first=number))))
    with pytest.raises(InvalidProducerEpoch, match="fenced"):
        logs.take(WriteName("load", 3, "orders"), 0, cut((0, rows(1, first=3))))
    assert logs.ids == {0: [3, 4]}
