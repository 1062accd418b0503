"""Which rows a writer adds to a topic's table next, and whether it may commit them (TB1, TB2, TB3).

A writer reads from wherever it likes, and asks the leader twice: before, how far the log is committed; and after, with
the leader epoch of the last row that it has read, whether the log is the same up to there. A log that has a row of one
epoch at one offset has the same rows as every other log that has it, from where both begin (F1): so the second answer
vouches for all rows that were read, and its leader epoch goes into the commit.

What a leader says of a partition, beside what the table has:

| the leader's epoch    | its log begins        | it is committed up to | then                                         |
| --------------------- | --------------------- | --------------------- | -------------------------------------------- |
| below the table's     |                       |                       | it leads no longer (TB5): `STALE`            |
| the table's, or above | above the table's end |                       | rows are missing in between: `GAP`           |
|                       |                       | below the table's end | it does not know of `start_at` yet: `BEHIND` |
|                       |                       | the table's end       | there is nothing to add                      |
|                       |                       | above it              | the rows in between are added                |

A partition of which the table has nothing begins wherever its log does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

import msgspec

from spark_replication.core.tables.table import NO_EPOCH, RowRange, TableVersion
from spark_replication.model import Count, Epoch, Offset, PartitionNumber, TimeMs

#: A partition that its own writer has not flushed for so long after it was due is anybody's.
TAKEN_OVER_MS = 5_000


class Trouble(Enum):
    """Why rows of a partition are not added."""

    STALE = "whoever answers leads no longer"
    GAP = "its log begins above the table's end: rows were deleted that the table does not have"
    BEHIND = "its leader has less than the table: it has yet to hear where its log begins"


class FlushRules(msgspec.Struct, frozen=True, kw_only=True):
    #: Rows are added once the first of them is so old.
    flush_ms: int
    #: Or once there are so many bytes, as the log has them: about as many are added with one commit.
    file_bytes: int


class LogTold(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader says of one partition. Bytes, time and pieces are of what the table does not have."""

    leader_epoch: Epoch
    log_start: Offset
    high_watermark: Offset
    bytes: Count = 0
    #: When the first row was appended that the table does not have; None if there is none.
    first_ms: TimeMs | None = None
    #: Where about file_bytes each end, and how many bytes each has.
    pieces: tuple[tuple[Offset, Count], ...] = ()
    #: The leader epoch of the row before the offset that it was asked about; NO_EPOCH if its log has none there that is
    #: committed.
    epoch_before: int = NO_EPOCH


class PlannedRange(msgspec.Struct, frozen=True, kw_only=True):
    """The rows [start, end) of a partition are to be read."""

    partition: PartitionNumber
    start: Offset
    end: Offset
    bytes: Count


class FlushPlan(msgspec.Struct, frozen=True, kw_only=True):
    #: What is to be read now, and committed together; nothing if nothing is due.
    ranges: tuple[PlannedRange, ...] = ()
    troubles: Mapping[PartitionNumber, Trouble] = {}
    #: When to look again, at the latest, if nothing is due now.
    due_ms: TimeMs | None = None


def trouble_of(version: TableVersion, partition: PartitionNumber, told: LogTold) -> Trouble | None:
    end = version.end_of(partition)
    if told.leader_epoch < version.epoch_of(partition):
        return Trouble.STALE
    if end is not None and told.log_start > end:
        return Trouble.GAP
    if end is not None and told.high_watermark < end:
        return Trouble.BEHIND
    return None


def plan_flush(
    version: TableVersion,
    told: Mapping[PartitionNumber, LogTold],
    rules: FlushRules,
    *,
    mine: Collection[PartitionNumber],
    now_ms: TimeMs,
) -> FlushPlan:
    """mine: the partitions that this writer flushes as soon as they are due. Others are left to their own writers for
    TAKEN_OVER_MS: two that flush one partition do twice the work, and no harm."""
    troubles = {each: found for each, known in told.items() if (found := trouble_of(version, each, known)) is not None}
    adds = {
        partition: known
        for partition, known in sorted(told.items())
        if partition not in troubles and known.high_watermark > _start(version, partition, known)
    }
    due_at = {partition: _due_ms(known, rules, own=partition in mine) for partition, known in adds.items()}
    due = sorted((at_ms, partition) for partition, at_ms in due_at.items() if at_ms <= now_ms)
    own = [partition for partition in adds if partition in mine]
    if not due and sum(adds[each].bytes for each in own) < rules.file_bytes:
        return FlushPlan(troubles=troubles, due_ms=min(due_at.values(), default=None))
    together = dict.fromkeys((*(partition for _, partition in due), *own))
    return FlushPlan(ranges=_within(version, adds, together, rules.file_bytes), troubles=troubles)


def _start(version: TableVersion, partition: PartitionNumber, told: LogTold) -> Offset:
    end = version.end_of(partition)
    return told.log_start if end is None else end


def _due_ms(told: LogTold, rules: FlushRules, *, own: bool) -> TimeMs:
    if own and told.bytes >= rules.file_bytes:
        return 0
    return (told.first_ms or 0) + rules.flush_ms + (0 if own else TAKEN_OVER_MS)


def _within(
    version: TableVersion,
    adds: Mapping[PartitionNumber, LogTold],
    together: Collection[PartitionNumber],
    bytes_max: int,
) -> tuple[PlannedRange, ...]:
    """At least one piece, and as many more as fit: what is left comes with the next commit."""
    found: list[PlannedRange] = []
    left = bytes_max
    for partition in together:
        told = adds[partition]
        end = start = _start(version, partition, told)
        taken = 0
        for piece_end, piece_bytes in told.pieces or ((told.high_watermark, told.bytes),):
            if piece_end > told.high_watermark or (piece_bytes > left and (found or taken)):
                break
            end, taken, left = piece_end, taken + piece_bytes, left - piece_bytes
        if end > start:
            found.append(PlannedRange(partition=partition, start=start, end=end, bytes=taken))
        if left <= 0:
            break
    return tuple(found)


def confirmed(version: TableVersion, read: PlannedRange, last_epoch: Epoch, told: LogTold) -> RowRange | None:
    """The rows that were read, as they may be committed on this version. None if the leader does not vouch for them:
    then they are dropped.

    told: the leader's answer about the offset `read.end`, where the row before is of `last_epoch`.
    """
    is_same = told.epoch_before == last_epoch and told.log_start <= read.start
    if not is_same or told.leader_epoch < max(version.epoch_of(read.partition), last_epoch):
        return None
    return RowRange(
        partition=read.partition,
        start=read.start,
        end=read.end,
        last_epoch=last_epoch,
        confirmed_epoch=told.leader_epoch,
    )
