"""The appends of a task: how its rows are cut, and the numbers that any attempt of the task gives them. Without Spark.

A producer's batches have numbers for each partition, from 0 on. A broker remembers the last of these
(core.replica.producers.REMEMBERED), and only what it remembers can it compare with what is sent again. So a producer
makes APPENDS_MAX appends to a partition at most, and the task's next producer goes on from there. Each attempt of a
task can so begin at its first row, however many rows it has.

A write with a name and a number (writeId, writeBatch) has producers of this name, whose epoch is the number: the next
write goes on with the same producers, and fences the one before. So there are as many as the largest write has tasks,
and brokers need not forget them. Any other write has producers of its own, which brokers forget after a while.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.repeating import Append
from spark_replication.messages.records import KEPT_PRODUCER, PRODUCER_ID_BITS

APPENDS_MAX = 200  # of a producer to a partition
APPEND_BYTES = 1 << 20  # a batch's task sends what it has for a partition once that would exceed this


@dataclass(frozen=True)
class WriteName:
    """What all attempts of all tasks of a write have in common."""

    write_id: str
    #: The number of a write of which others have the same id; None if the id is this write's alone.
    number: int | None
    topic: str

    def identity(self, task: int, producer: int) -> Identity:
        """The numbers of the producer of a task that Append names."""
        named = producer_id(self.write_id, self.topic, task, producer)
        if self.number is None:
            return Identity(producer=named, any_order=True)
        return Identity(producer=named | KEPT_PRODUCER, epoch=self.number, any_order=True)


def stream_identity(query: str, micro_batch: int, task: int) -> Identity:
    """The numbers of the task's producer. It makes one append to each partition."""
    return Identity(producer=producer_id(query, task) | KEPT_PRODUCER, epoch=micro_batch, any_order=True)


def producer_id(*named: object) -> int:
    digest = hashlib.blake2b("\x1f".join(map(str, named)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - PRODUCER_ID_BITS)


def appends(placed: Iterable[tuple[int, pa.RecordBatch]], bytes_max: int = APPEND_BYTES) -> Iterator[Append]:
    """The appends of rows that were placed, in their order in each partition. None is larger than `bytes_max` as Arrow
    IPC, except for a single row that is."""
    waiting: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    sizes: dict[int, int] = defaultdict(int)
    numbers: dict[int, int] = defaultdict(int)

    def those(target: int) -> Iterator[Append]:
        sizes[target] = 0
        # Joined, they may take more than each by itself: one without nulls has no bits that say so.
        for batch in halved(pa.concat_batches(waiting.pop(target)), bytes_max):
            yield Append(target, numbers[target] // APPENDS_MAX, batch)
            numbers[target] += 1

    for target, rows in placed:
        size = pa.ipc.get_record_batch_size(rows)
        if waiting[target] and sizes[target] + size > bytes_max:
            yield from those(target)
        waiting[target].append(rows)
        sizes[target] += size
    for target in sorted(waiting):
        yield from those(target)


def whole(placed: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[Append]:
    """One append to each partition, with all rows that were placed there."""
    parts: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for target, rows in placed:
        parts[target].append(rows)
    return (Append(target, 0, pa.concat_batches(found)) for target, found in parts.items())


def halved(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch, halved until no part is larger than `bytes_max` or has several rows: a few of its rows may take most
    of it."""
    if batch.num_rows <= 1 or pa.ipc.get_record_batch_size(batch) <= bytes_max:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from halved(batch.slice(0, middle), bytes_max)
    yield from halved(batch.slice(middle), bytes_max)
