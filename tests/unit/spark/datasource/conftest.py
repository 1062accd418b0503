"""A cluster in this process, of which planners and tasks ask as of any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_replication.spark.datasource import topic as topics
from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    started = FakeCluster()
    yield started
    for reader in topics._readers.values():
        reader.close()
    topics._readers.clear()
    started.close()
