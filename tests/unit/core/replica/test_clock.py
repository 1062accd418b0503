"""When a broker's clock is believed, and what goes by time if it is not."""

from __future__ import annotations

import pytest

from spark_replication.config import Settings
from spark_replication.core.replica.clock import DIFFERENCE_MS_MAX, ahead_ms, believing, doubted, is_believed

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("stamped_ms", "ahead", "believed"),
    [
        # asked at 1,000 h by its own clock, and answered one minute later
        (1_000 * HOUR_MS, 0, True),
        (1_000 * HOUR_MS + 60_000, 0, True),
        (1_000 * HOUR_MS - 1, 1, True),
        (1_000 * HOUR_MS + 60_001, -1, True),
        (1_000 * HOUR_MS - DIFFERENCE_MS_MAX, DIFFERENCE_MS_MAX, True),
        (1_000 * HOUR_MS - DIFFERENCE_MS_MAX - 1, DIFFERENCE_MS_MAX + 1, False),
        (1_000 * HOUR_MS + 60_000 + DIFFERENCE_MS_MAX, -DIFFERENCE_MS_MAX, True),
        (1_000 * HOUR_MS + 60_000 + DIFFERENCE_MS_MAX + 1, -DIFFERENCE_MS_MAX - 1, False),
        (975 * HOUR_MS, 25 * HOUR_MS, False),
    ],
)
def test_a_clock_that_differs_from_zookeepers_by_minutes_is_not_believed(
    stamped_ms: int, ahead: int, *, believed: bool
) -> None:
    asked_ms, answered_ms = 1_000 * HOUR_MS, 1_000 * HOUR_MS + 60_000
    found = ahead_ms(asked_ms=asked_ms, answered_ms=answered_ms, stamped_ms=stamped_ms)
    assert (found, is_believed(found), doubted(found)) == (ahead, believed, 0 if believed else ahead)


def test_by_a_clock_that_is_not_believed_nothing_goes() -> None:
    settings = Settings(retention_ms=5, retention_bytes=9)
    assert believing(settings, DIFFERENCE_MS_MAX) is settings
    for ahead in (DIFFERENCE_MS_MAX + 1, -DIFFERENCE_MS_MAX - 1):
        found = believing(settings, ahead)
        assert (found.retention_ms, found.retention_bytes) == (-1, 9)
        assert found.producer_id_expiration_ms > 1_000 * 365 * 24 * HOUR_MS
