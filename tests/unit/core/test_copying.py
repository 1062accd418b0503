"""A3: bytes left, and time left."""

from __future__ import annotations

import pytest

from spark_replication.core.copying import Pace, observed, time_left_ms

BEGUN = Pace(bytes_left=10_000, since_ms=1_000)


@pytest.mark.parametrize(
    ("pace", "bytes_left", "now_ms", "after"),
    [
        (None, 10_000, 1_000, BEGUN),
        (BEGUN, 9_000, 5_999, BEGUN),
        (BEGUN, 5_000, 6_000, Pace(5_000, 6_000, 1_000)),
        (BEGUN, 5_000, 11_000, Pace(5_000, 11_000, 500)),
        # More was appended than copied.
        (BEGUN, 20_000, 6_000, Pace(20_000, 6_000, -2_000)),
        # The clock was set back: what was known stays known.
        (Pace(5_000, 6_000, 1_000), 4_000, 5_000, Pace(4_000, 5_000, 1_000)),
    ],
)
def test_the_pace_is_what_the_last_observation_found(
    pace: Pace | None, bytes_left: int, now_ms: int, after: Pace
) -> None:
    assert observed(pace, bytes_left, now_ms) == after


@pytest.mark.parametrize(
    ("bytes_left", "bytes_per_second", "left_ms"),
    [(0, None, 0), (0, -5, 0), (500, 1_000, 500), (500, None, None), (500, 0, None), (500, -5, None)],
)
def test_the_time_that_is_left_is_unknown_where_it_would_never_end(
    bytes_left: int, bytes_per_second: int | None, left_ms: int | None
) -> None:
    assert time_left_ms(bytes_left, bytes_per_second) == left_ms
