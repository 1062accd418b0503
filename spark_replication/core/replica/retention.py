"""How much of its past a log keeps: whole segments go, oldest first, once they are too old or there are too many bytes.

Rules:
- Nothing at or above the high watermark goes: it may not be on the followers yet. The last segment stays.
- The segment with the last committed record stays, too: a follower that is cut to the high watermark must still have a
  record whose epoch it can name. An empty log begins anew at its new leader's log start, so a member of the ELR would
  lose what is committed (a member of the ISR goes on where it ends).
- A segment that stays keeps every later one, however old: a log has no holes.
- Of a topic that is a table, only what the table has goes (TB4). A leader that nobody has told of the table's end keeps
  everything; it is told again after each election. `table.blocks.retention=false` gives up rows that no table has.
- What such a topic's log keeps is up to `local.retention.*`: the table has what is older.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from spark_replication.config import TopicSettings
from spark_replication.model import Offset

KEPT_FOR_EVER = -1
AS_RETENTION = -2


class SegmentSize(msgspec.Struct, frozen=True, gc=False):  # there may be very many, and they hold numbers alone
    """What retention needs to know of a segment."""

    base: Offset
    end: Offset
    bytes: int
    #: The time of its latest batch.
    timestamp_max_ms: int


def retained_from(
    segments: Sequence[SegmentSize],
    settings: TopicSettings,
    *,
    high_watermark: Offset,
    now_ms: int,
    table_end: Offset | None,
) -> Offset | None:
    """Where the log is to start; None if nothing goes. By bytes, a segment goes if what is left still reaches
    retention.bytes; by time, if its latest batch is older than retention.ms.

    table_end: below it, the topic's table is known to have every row; None if that is not known.
    """
    if len(segments) < 2:
        return None
    retention_ms, retention_bytes = _limits(settings)
    beyond = high_watermark if not _waits_for_table(settings) else min(high_watermark, (table_end or 0) + 1)
    too_many = _excess_bytes(segments, retention_bytes)
    start = None
    for segment, later in pairwise(segments):
        too_large = too_many >= segment.bytes
        too_old = retention_ms != KEPT_FOR_EVER and now_ms - segment.timestamp_max_ms > retention_ms
        if segment.end >= beyond or not (too_large or too_old):
            break
        start = later.base
        too_many -= segment.bytes
    return start


def _limits(settings: TopicSettings) -> tuple[int, int]:
    """What the log keeps, by time and by bytes."""
    local_ms, local_bytes = settings.local_retention_ms, settings.local_retention_bytes
    return (
        settings.retention_ms if local_ms == AS_RETENTION or not settings.table else local_ms,
        settings.retention_bytes if local_bytes == AS_RETENTION or not settings.table else local_bytes,
    )


def _waits_for_table(settings: TopicSettings) -> bool:
    return settings.table and settings.table_blocks_retention


def held_back_bytes(
    segments: Sequence[SegmentSize],
    settings: TopicSettings,
    *,
    high_watermark: Offset,
    now_ms: int,
    table_end: Offset | None,
) -> int:
    """How many bytes are kept for nothing but that the table does not have them yet."""

    def start(of: TopicSettings) -> Offset:
        found = retained_from(segments, of, high_watermark=high_watermark, now_ms=now_ms, table_end=table_end)
        return -1 if found is None else found

    if not _waits_for_table(settings):
        return 0
    kept, would_be = start(settings), start(replace(settings, table_blocks_retention=False))
    return sum(segment.bytes for segment in segments if kept <= segment.base < would_be)


def _excess_bytes(segments: Sequence[SegmentSize], retention_bytes: int) -> int:
    """How many bytes are too many. Below 0, and so below any segment's size, if bytes are no reason."""
    if retention_bytes == KEPT_FOR_EVER:
        return -1
    return sum(segment.bytes for segment in segments) - retention_bytes
