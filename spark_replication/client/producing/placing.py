"""Which partition a row goes to: by its key, or by its column _partition. Else all rows of one turn go to the same, or
sends go to the partitions by rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.records import PARTITION
from spark_replication.mirror.tables.keys import key_bytes, places_of
from spark_replication.model import TopicPartition

# Arrow takes no rows of the first: they are taken as the second.
_TAKEN_AS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class Placing:
    """Places rows on the `partitions` of a topic: by the key columns `by`. Without those, by the column _partition, or
    by `turn`, which is the number of a query's task or of a batch."""

    def __init__(self, topic: str, partitions: Sequence[int], by: Sequence[str], turn: int) -> None:
        self._topic = topic
        self._partitions = sorted(partitions)
        self._by = list(by)
        self._of_turn = self._partitions[turn % len(self._partitions)]

    def parts(self, batch: pa.RecordBatch, stored: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in their order. `stored` has the rows of `batch` as they go into the log."""
        if not batch.num_rows:
            return
        if self._by:
            columns = [batch.column(name) for name in self._by]
            key = columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names=self._by)
            for place, rows in _runs(places_of(key_bytes(key), len(self._partitions)), stored):
                yield self._partitions[place], rows
        elif PARTITION in batch.schema.names:
            yield from _runs(self._named(batch.column(PARTITION)), stored)
        else:
            yield self._of_turn, stored

    def _named(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            raise InvalidRequest(f"{column.null_count} rows have no {PARTITION}: give each the number of a partition")
        others = sorted(set(pc.unique(column).to_pylist()) - set(self._partitions))
        if others:
            raise InvalidRequest(
                f"{PARTITION} is {others[:5]} in some rows, and {self._topic} has the partitions {self._partitions}: "
                "name these"
            )
        return column


def _runs(of_rows: pa.Array, stored: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each of these values, in their order."""
    order = pc.array_sort_indices(of_rows)  # of equal ones, the first comes first
    columns = [_taken(column, order) for column in stored.columns]
    rows = pa.RecordBatch.from_arrays(columns, schema=stored.schema)
    runs = pc.run_end_encode(of_rows.take(order))
    between = pairwise([0, *runs.run_ends.to_pylist()])
    for value, (first, end) in zip(runs.values.to_pylist(), between, strict=True):
        yield value, rows.slice(first, end - first)


def _taken(column: pa.Array, order: pa.Array) -> pa.Array:
    taken_as = _TAKEN_AS.get(column.type)
    return column.take(order) if taken_as is None else column.cast(taken_as).take(order).cast(column.type)


class Taker(Protocol):
    """Takes the sends to one partition."""

    taken_bytes: int  # of all that it has ever taken

    @property
    def is_idle(self) -> bool:
        """Whether all of them are answered."""


AnyTaker = TypeVar("AnyTaker", bound=Taker)


class Rounds(Generic[AnyTaker]):
    """Spreads sends without a key over the partitions of their topic, one after the other. A partition keeps its turn
    until it has got as much as a full batch, or all that it got is answered. So a fast producer fills its batches as if
    there were one partition, and each send of a slow one goes to the next. Thread-safe.

    A producer begins at any of the partitions: many that send once do not meet at the same one.
    """

    def __init__(self, taker_of: Callable[[TopicPartition], AnyTaker], turn_bytes: int, first: int) -> None:
        self._taker_of = taker_of
        self._turn_bytes = turn_bytes
        self._first = first
        self._lock = threading.Lock()
        self._turns: dict[str, _Turn[AnyTaker]] = {}

    def taker(self, topic: TopicMetadata) -> AnyTaker:
        """Who takes the next send."""
        with self._lock:
            turn = self._turns.get(topic.name)
            if turn is None or turn.topic is not topic:
                number = self._first if turn is None else turn.number
                turn = self._turns[topic.name] = self._turn(topic, number + 1)
            elif turn.taker.is_idle or turn.taker.taken_bytes >= turn.until_bytes:
                turn = self._turns[topic.name] = self._turn(topic, turn.number + 1)
            return turn.taker

    def _turn(self, topic: TopicMetadata, number: int) -> _Turn[AnyTaker]:
        numbers = sorted(command.partition for command in topic.partitions)
        if not numbers:
            raise UnknownTopicOrPartition(f"topic {topic.name} has no partitions yet: retry")
        taker = self._taker_of(TopicPartition(topic.name, numbers[number % len(numbers)]))
        return _Turn(topic, number, taker, taker.taken_bytes + self._turn_bytes)


class _Turn(NamedTuple, Generic[AnyTaker]):
    topic: TopicMetadata
    #: Of the turns of this topic.
    number: int
    taker: AnyTaker
    #: What the taker has taken when the turn is over.
    until_bytes: int
