"""What the terminal's status shows: the values of a page's watch, as they are."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from spark_replication.admin.jobs import traffic
from spark_replication.admin.jobs.traffic import Traffic, TrafficWatch, watching
from spark_replication.errors import StorageFailed
from spark_replication.messages.descriptions import FollowerLag
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.model import TopicPartition
from tests.unit.page.page_cluster import PageCluster, size
from tests.waiting import POLL_S

FOO, BAR, NONE = TopicPartition("foo", 0), TopicPartition("bar", 0), TopicPartition("none", 0)
WAIT_S = 20.0


def eventually(found: TrafficWatch, is_true: Callable[[Traffic], bool]) -> Traffic:
    deadline_s = time.monotonic() + WAIT_S
    while not is_true(seen := found.now((FOO, BAR, NONE))):
        assert time.monotonic() < deadline_s, seen
        time.sleep(POLL_S)
    return seen


@pytest.fixture
def cluster() -> PageCluster:
    cluster = PageCluster()
    leader = replace(size("foo", 0, 70, leads=True), lags={2: FollowerLag(records=5, ms=9)})
    cluster.sizes = {"127.0.0.1:1": (leader,), "127.0.0.1:2": (size("foo", 0, 60),)}
    cluster.told_events = [ToldEvent(number=1, at_ms=5, kind="gone", broker=3, because="broker 3 gone", cause="7.1")]
    return cluster


def test_it_is_what_a_page_would_show(cluster: PageCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "EVENTS_S", 0.05)
    with watching(cluster) as found:  # type: ignore[arg-type]  # it is asked as an Admin is
        seen = eventually(found, lambda seen: bool(seen.lag and seen.events.events))
        assert (seen.sizes[FOO].lag, seen.sizes[BAR].bytes, NONE in seen.sizes) == (5, None, False)
        assert (seen.lag, seen.rows_per_s, seen.bytes_per_s) == (5, None, None)
        assert [each.because for each in seen.events.events] == ["broker 3 gone"]
        cluster.told_events = StorageFailed("the table cannot be read")
        seen = eventually(found, lambda seen: bool(seen.events.age.error))
        assert len(seen.events.events) == 1, "the last that was told"
