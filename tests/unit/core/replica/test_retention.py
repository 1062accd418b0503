"""Which segments a leader deletes: too old or too many bytes, oldest first, and never above the high watermark."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.config import TopicSettings
from spark_replication.core.replica.retention import SegmentSize, held_back_bytes, retained_from

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
    found = retained_from(
        SEGMENTS, TopicSettings(**settings), high_watermark=high_watermark, now_ms=now_ms, table_end=None
    )
    assert found == start


@pytest.mark.parametrize("count", [0, 1])
def test_the_last_segment_stays(count: int) -> None:
    settings = TopicSettings(retention_ms=0, retention_bytes=0)
    assert retained_from(SEGMENTS[:count], settings, high_watermark=99, now_ms=1 << 50, table_end=None) is None


def test_an_old_segment_behind_one_that_stays_stays() -> None:
    segments = [SegmentSize(0, 10, 100, 900), SegmentSize(10, 20, 100, 5), SegmentSize(20, 30, 100, 5)]
    assert (
        retained_from(segments, TopicSettings(retention_ms=100), high_watermark=30, now_ms=1_000, table_end=None)
        is None
    )


@pytest.mark.parametrize(
    ("settings", "table_end", "start"),
    [
        # nothing that the table has not, or that nobody has told of
        ({"table": True}, None, None),
        ({"table": True}, 9, None),
        ({"table": True}, 10, 10),
        ({"table": True}, 25, 20),
        ({"table": True}, 99, 30),
        # unless a person has said that rows may go
        ({"table": True, "table_blocks_retention": False}, None, 30),
        # a topic without a table waits for none
        ({"table": False}, 0, 30),
        # the log's own limits
        ({"table": True, "local_retention_bytes": 300}, 99, 10),
        ({"table": True, "local_retention_bytes": -1}, 99, None),
        ({"table": True, "local_retention_bytes": -1, "local_retention_ms": 5}, 99, 10),
        ({"table": False, "local_retention_bytes": 300}, None, 30),
    ],
)
def test_what_is_a_table_too_waits_for_that(settings: dict[str, Any], table_end: int | None, start: int | None) -> None:
    found = retained_from(
        SEGMENTS,
        TopicSettings(retention_ms=-1, retention_bytes=0, **settings),
        high_watermark=40,
        now_ms=1_006,
        table_end=table_end,
    )
    assert found == start


@pytest.mark.parametrize(
    ("table", "table_end", "held"), [(True, None, 300), (True, 10, 200), (True, 99, 0), (False, None, 0)]
)
def test_what_only_the_table_holds_back_is_counted(table: bool, table_end: int | None, held: int) -> None:
    settings = TopicSettings(retention_ms=-1, retention_bytes=0, table=table)
    found = held_back_bytes(SEGMENTS, settings, high_watermark=40, now_ms=0, table_end=table_end)
    assert found == held
