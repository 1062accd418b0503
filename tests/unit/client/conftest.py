"""A fake cluster of two brokers, with the topic orders of three partitions led by broker 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    started = FakeCluster()
    yield started
    started.close()
