"""What Kafka's producer and consumer print, as it came from version 4.3.1."""

from __future__ import annotations

import pytest

from spark_replication.admin.bench.kafka.performance import consumed_mb_per_s, produced_mb_per_s
from spark_replication.errors import StartFailed

PRINTED = """\
Warmup first 20000 records. Steady state results will print after the complete test summary.
In steady state.
32886 records sent, 6490.2 records/sec (6.34 MB/sec), 5328.4 ms avg latency, 5980.0 ms max latency.
60000 records sent, 5050.079960 records/sec (4.93 MB/sec), 4417.40 ms avg latency, 5980.00 ms max latency, 4833 ms 50th.
40000 steady state records sent, 3727.518405 records/sec (3.64 MB/sec), 5240.10 ms avg latency, 5980.00 ms max latency.
"""


def test_the_rate_is_that_after_the_warm_up() -> None:
    assert produced_mb_per_s(PRINTED, 1_024) == pytest.approx(3.817, abs=0.001)


def test_without_a_rate_it_says_what_was_printed_instead() -> None:
    with pytest.raises(StartFailed, match="TimeoutException: Topic t not present"):
        produced_mb_per_s("org.apache.kafka.common.errors.TimeoutException: Topic t not present", 1_024)


REPORTS = """\
time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms
2026-11-25 21:39:15:751, 0, 0.0010, 0.0004, 1, 0.4342, 1737, 566
2026-11-25 21:39:17:000, 0, 72.3330, 49.6345, 100000, 50825.6881, 0, 218
2026-11-25 21:39:17:200, 0, 82.6807, 45.3845, 120000, 46473.6842, 0, 228
2026-11-25 21:39:18:000, 0, 248.6396, 287.1094, 300000, 294000.0000, 0, 201
"""


def test_a_consumers_rate_begins_with_the_first_report_after_the_warm_up() -> None:
    assert consumed_mb_per_s(REPORTS, 1_000, 100_000) == pytest.approx(200.0)
    assert consumed_mb_per_s(REPORTS, 1_000, 110_000) == pytest.approx(225.0)


def test_a_consumer_that_ends_with_its_warm_up_has_no_rate() -> None:
    with pytest.raises(StartFailed, match="294000"):
        consumed_mb_per_s(REPORTS, 1_000, 200_000)
