"""How far followers are behind."""

from __future__ import annotations

from spark_replication.core.replica.lag import CAUGHT_UP, lags
from spark_replication.core.replica.replica import UNKNOWN_END, Follower, Leading
from spark_replication.messages.descriptions import FollowerLag
from tests.unit.core.stories import state

LEADING = Leading(
    me=1,
    broker_epoch=0,
    replicas=(1, 2, 3, 4, 5),
    state=state(1, [1, 2, 3]),
    partition_epoch=0,
    epoch_start=0,
    end_at_start=0,
    high_watermark=10,
    followers={
        2: Follower(100, 0, caught_up_ms=0),
        3: Follower(70, 0, caught_up_ms=4_000),
        4: Follower(UNKNOWN_END, 0, caught_up_ms=1_000),
        5: Follower(20, 0, caught_up_ms=9_000),
    },
)


def test_one_at_the_log_end_has_no_lag_and_of_one_that_says_nothing_it_is_unknown() -> None:
    found = lags(LEADING, log_start=40, log_end=100, now_ms=5_000)
    assert found == {
        2: CAUGHT_UP,
        3: FollowerLag(records=30, ms=1_000),
        4: FollowerLag(records=None, ms=4_000),
        5: FollowerLag(records=60, ms=0),
    }
