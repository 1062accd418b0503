"""How much of its past a log keeps: whole segments go, oldest first, once they are too old or there are too many bytes.

Rules:
- Nothing at or above the high watermark goes: it may not be on the followers yet. The last segment stays.
- The segment with the last committed record stays, too: a follower that is cut to the high watermark must still have a
  record whose epoch it can name. An empty log begins anew at its new leader's log start, so a member of the ELR would
  lose what is committed (a member of the ISR goes on where it ends).
- A segment that stays keeps every later one, however old: a log has no holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from spark_replication.config import TopicSettings
from spark_replication.model import Offset

KEPT_FOR_EVER = -1


class SegmentSize(msgspec.Struct, frozen=True, gc=False):  # there may be very many, and they hold numbers alone
    """What retention needs to know of a segment."""

    base: Offset
    end: Offset
    bytes: int
    #: The time of its latest batch.
    timestamp_max_ms: int


def retained_from(
    segments: Sequence[SegmentSize], settings: TopicSettings, *, high_watermark: Offset, now_ms: int
) -> Offset | None:
    """Where the log is to start; None if nothing goes. By bytes, a segment goes if what is left still reaches
    retention.bytes; by time, if its latest batch is older than retention.ms."""
    if len(segments) < 2:
        return None
    too_many = _excess_bytes(segments, settings.retention_bytes)
    start = None
    for segment, later in pairwise(segments):
        too_large = too_many >= segment.bytes
        too_old = settings.retention_ms != KEPT_FOR_EVER and now_ms - segment.timestamp_max_ms > settings.retention_ms
        if segment.end >= high_watermark or not (too_large or too_old):
            break
        start = later.base
        too_many -= segment.bytes
    return start


def _excess_bytes(segments: Sequence[SegmentSize], retention_bytes: int) -> int:
    """How many bytes are too many. Below 0, and so below any segment's size, if bytes are no reason."""
    if retention_bytes == KEPT_FOR_EVER:
        return -1
    return sum(segment.bytes for segment in segments) - retention_bytes
