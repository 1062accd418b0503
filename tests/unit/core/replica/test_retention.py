"""Which segments a leader deletes: too old or too many bytes, oldest first, and never above the high watermark."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.config import TopicSettings
from spark_replication.core.replica.retention import SegmentSize, retained_from

# Four of ten records and 100 bytes each; the last is still written.
SEGMENTS = [SegmentSize(base, base + 10, 100, 1_000 + base) for base in (0, 10, 20, 30)]


@pytest.mark.parametrize(
    ("settings", "high_watermark", "now_ms", "start"),
    [
        # by time: by the latest batch of a segment, and only past the limit
        ({"retention_ms": 5}, 40, 1_005, None),
        ({"retention_ms": 5}, 40, 1_006, 10),
        ({"retention_ms": 5}, 40, 1_016, 20),
        ({"retention_ms": 0}, 40, 9_000, 30),
        ({"retention_ms": -1}, 40, 1 << 50, None),
        # by bytes: what is left still reaches them
        ({"retention_ms": -1, "retention_bytes": 400}, 40, 0, None),
        ({"retention_ms": -1, "retention_bytes": 301}, 40, 0, None),
        ({"retention_ms": -1, "retention_bytes": 300}, 40, 0, 10),
        ({"retention_ms": -1, "retention_bytes": 0}, 40, 0, 30),
        # either
        ({"retention_ms": 5, "retention_bytes": 200}, 40, 1_006, 20),
        # nothing that is not committed
        ({"retention_bytes": 0}, 19, 0, 10),
        ({"retention_bytes": 0}, 9, 0, None),
        # nor all that is
        ({"retention_ms": 0}, 20, 9_000, 10),
        ({"retention_ms": 0}, 21, 9_000, 20),
    ],
)
def test_the_log_starts_where_the_first_segment_stays(
    settings: dict[str, Any], high_watermark: int, now_ms: int, start: int | None
) -> None:
    found = retained_from(SEGMENTS, TopicSettings(**settings), high_watermark=high_watermark, now_ms=now_ms)
    assert found == start


@pytest.mark.parametrize("count", [0, 1])
def test_the_last_segment_stays(count: int) -> None:
    settings = TopicSettings(retention_ms=0, retention_bytes=0)
    assert retained_from(SEGMENTS[:count], settings, high_watermark=99, now_ms=1 << 50) is None


def test_an_old_segment_behind_one_that_stays_stays() -> None:
    segments = [SegmentSize(0, 10, 100, 900), SegmentSize(10, 20, 100, 5), SegmentSize(20, 30, 100, 5)]
    assert retained_from(segments, TopicSettings(retention_ms=100), high_watermark=30, now_ms=1_000) is None
