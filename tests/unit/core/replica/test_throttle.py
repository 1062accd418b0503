"""A3: how fast replicas are copied that a reassignment adds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.replica.throttle import NO_LIMIT, Bucket, granted, limited, refilled, returned

TEN = Bucket(bytes_per_second=1_000, balance=0.0, at_ms=5_000)


@pytest.mark.parametrize(
    ("bucket", "now_ms", "balance"),
    [
        (TEN, 5_000, 0.0),
        (TEN, 5_001, 1.0),
        (TEN, 5_500, 500.0),
        (TEN, 6_000, 1_000.0),
        (TEN, 60_000, 1_000.0),  # not more than a second's worth
        (TEN, 4_000, 0.0),  # the clock was set back
        (Bucket(1_000, -3_000.0, 5_000), 7_000, -1_000.0),
        (Bucket(1, 0.0, 0), 100, 0.1),  # small limits lose nothing to rounding
    ],
)
def test_a_bucket_fills_with_time(bucket: Bucket, now_ms: int, balance: float) -> None:
    assert refilled(bucket, now_ms) == Bucket(bucket.bytes_per_second, balance, now_ms)


@pytest.mark.parametrize(
    ("bytes_per_second", "balance", "may_send"),
    [(1_000, 99.0, False), (1_000, 100.0, True), (1, 0.9, False), (1, 1.0, True), (1_000, -1.0, False)],
)
def test_nothing_is_sent_for_less_than_a_tenth_of_a_second(
    bytes_per_second: int, balance: float, may_send: bool
) -> None:
    assert Bucket(bytes_per_second, balance).may_send is may_send


def test_a_grant_is_all_there_is_and_what_was_not_sent_comes_back() -> None:
    left, allowed = granted(Bucket(1_000, 250.5, 0))
    assert (left, allowed) == (Bucket(1_000, 0.5, 0), 250)
    assert returned(left, allowed, 50) == Bucket(1_000, 200.5, 0)
    assert returned(left, allowed, 250) == left
    assert returned(left, allowed, 5_000) == Bucket(1_000, -4_749.5, 0)
    assert returned(Bucket(1_000, 900.0, 0), 250, 0) == Bucket(1_000, 1_000.0, 0)


@pytest.mark.parametrize(("bytes_per_second", "balance"), [(100, 100.0), (5_000, 250.0), (NO_LIMIT, 0.0)])
def test_another_limit_holds_from_now_on(bytes_per_second: int, balance: float) -> None:
    assert limited(Bucket(1_000, 250.0, 7), bytes_per_second) == Bucket(bytes_per_second, balance, 7)
    assert limited(Bucket(1_000, -9.0, 7), bytes_per_second).balance == -9.0


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(1, 700), st.integers(1, 5_000)), min_size=1))
def test_however_large_batches_are_no_more_is_sent_than_allowed_and_one_batch_and_always_some(
    bytes_per_second: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now_ms, sent = refilled(limited(Bucket(), bytes_per_second), 1_000), 1_000, 0
    for wait_ms, batch in steps:
        now_ms += wait_ms
        bucket = refilled(bucket, now_ms)
        if bucket.may_send:
            bucket, allowed = granted(bucket)
            bucket = returned(bucket, allowed, batch)
            sent += batch
    assert sent <= bytes_per_second * (1 + (now_ms - 1_000) / 1000) + max(batch for _, batch in steps)
    owed_ms = -bucket.balance * 1000 / bytes_per_second
    assert refilled(bucket, now_ms + int(owed_ms) + 1_001).may_send
