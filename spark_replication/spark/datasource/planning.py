"""Which offsets are read, and by which tasks. Pure, and the same for the same range: a repeated micro-batch has the
same tasks with the same rows, which a sink needs to write them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.messages.ranges import FoundRange, Piece
from spark_replication.model import Offset, TopicPartition

PIECE_BYTES = 128 << 20  # of one task, as Spark's default for files
TOGETHER_BYTES = 64 << 10  # one task reads partitions that have less than this together

Key = TypeVar("Key", int, TopicPartition)  # of a partition


class Range(msgspec.Struct, frozen=True):
    """[start, end) of a partition. Invariant: it was committed when it was planned."""

    partition: int
    start: ReadPlace
    end: ReadPlace
    bytes: int


def piece_bytes(total_bytes: int, min_partitions: int | None) -> int:
    if min_partitions is None:
        return PIECE_BYTES
    return max(1, min(PIECE_BYTES, -(-total_bytes // min_partitions)))


def pieces_of(partition: int, start: ReadPlace, pieces: Sequence[Piece]) -> list[Range]:
    """The ranges of a partition from `start` on, a piece each."""
    found = []
    for piece in pieces:
        end = ReadPlace(piece.end, piece.last_epoch)
        found.append(Range(partition, start, end, piece.bytes))
        start = end
    return found


def in_tasks(ranges: Iterable[Range], *, together_bytes: int = TOGETHER_BYTES) -> list[tuple[Range, ...]]:
    """The ranges of each task. Small ones share a task while they are small together: a task costs more than they
    do."""
    tasks: list[tuple[Range, ...]] = []
    small: list[Range] = []
    for each in ranges:
        if each.bytes > together_bytes:
            tasks.append((each,))
            continue
        if sum(one.bytes for one in small) + each.bytes > together_bytes:
            tasks.append(tuple(small))
            small = []
        small.append(each)
    return [*tasks, tuple(small)] if small else tasks


def limited(starts: Mapping[Key, Offset], ends: Mapping[Key, Offset], rows_max: int) -> dict[Key, Offset]:
    """The ends within which at most `rows_max` rows are read: of each partition its share of what there is, and of each
    that has any at least one row, as long as rows are left to give."""
    behind = {partition: max(0, ends[partition] - starts[partition]) for partition in ends}
    total = sum(behind.values())
    if total <= rows_max:
        return dict(ends)
    shares = {partition: rows * rows_max // total for partition, rows in behind.items()}
    left = rows_max - sum(shares.values())
    # The rows left by rounding go first to the partitions with the smallest shares: else one with a single row might
    # wait for ever.
    for partition in sorted(behind, key=lambda each: (shares[each], each)):
        if left and shares[partition] < behind[partition]:
            shares[partition] += 1
            left -= 1
    return {partition: starts[partition] + shares[partition] for partition in ends}


def limited_by_bytes(found: Mapping[Key, FoundRange], bytes_max: int) -> dict[Key, int]:
    """How many of these bytes each partition may have: its share of what there is. Empty if everything is within
    them."""
    total = sum(each.bytes for each in found.values())
    if total <= bytes_max:
        return {}
    return {partition: max(1, each.bytes * bytes_max // total) for partition, each in found.items() if each.bytes}
