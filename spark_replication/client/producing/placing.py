"""Which partition a row goes to: by its key, or by its column _partition. Else all rows of one turn go to the same, or
sends go to the partitions by rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing
import pyarrow as pa

from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.mirror.tables.keys import crc32_of, key_bytes
from spark_replication.model import TopicPartition

PARTITION = "_partition"  # the column in which a row names its partition

# Arrow takes no rows of the first: they are taken as the second.
_TAKEN_AS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class Placing:
    """Places rows on the `partitions` of a topic: by the key columns `by`. Without those, by the column _partition, or
    by `turn`, which is the number of a query's task or of a batch."""

    def __init__(self, topic: str, partitions: Sequence[int], by: Sequence[str], turn: int) -> None:
        self._topic = topic
        self._partitions = np.array(sorted(partitions))
        self._by = list(by)
        self._of_turn = int(self._partitions[turn % len(self._partitions)])

    def parts(self, batch: pa.RecordBatch, stored: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in their order. `stored` has the rows of `batch` as they go into the log."""
        if not batch.num_rows:
            return
        targets = self._targets(batch)
        if targets is None:
            yield self._of_turn, stored
            return
        order = np.argsort(targets, kind="stable")
        columns = [_taken(column, pa.array(order)) for column in stored.columns]
        sorted_rows = pa.RecordBatch.from_arrays(columns, schema=stored.schema)
        found, firsts = np.unique(targets[order], return_index=True)
        for target, first, end in zip(found.tolist(), firsts.tolist(), [*firsts.tolist()[1:], len(order)], strict=True):
            yield target, sorted_rows.slice(first, end - first)

    def _targets(self, batch: pa.RecordBatch) -> numpy.typing.NDArray[np.int64] | None:
        if self._by:
            columns = [batch.column(name) for name in self._by]
            key = columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names=self._by)
            return np.take(self._partitions, crc32_of(key_bytes(key)) % len(self._partitions))
        if PARTITION not in batch.schema.names:
            return None
        named = batch.column(PARTITION)
        if named.null_count:
            raise InvalidRequest(f"{named.null_count} rows have no {PARTITION}: give each the number of a partition")
        targets: numpy.typing.NDArray[np.int64] = named.to_numpy(zero_copy_only=False).astype(np.int64)
        others = np.setdiff1d(targets, self._partitions)
        if len(others):
            raise InvalidRequest(
                f"{PARTITION} is {others[:5].tolist()} in some rows, and {self._topic} has the partitions "
                f"{self._partitions.tolist()}: name these"
            )
        return targets


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
