"""A cluster in this process, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_replication.admin.notebook.connected import ConnectedCluster, connect
from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture
def connected(cluster: FakeCluster) -> Iterator[ConnectedCluster]:
    with connect(cluster.bootstrap, deadline_ms=10_000) as opened:
        yield opened
