from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper
from tests.live.broker.brokers import Cluster

_chroots = itertools.count()

StartCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper.start(tmp_path_factory.mktemp("zookeeper"), timeout_s=60)
    yield server
    server.stop()


@pytest.fixture
def start_cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[StartCluster]:
    """`start_cluster(brokers=3, settings={…})`: processes on the one ZooKeeper, in a chroot of their own."""
    clusters: list[Cluster] = []

    def start(*, brokers: int, settings: dict[str, object] | None = None) -> Cluster:
        chroot = f"/brokers_{next(_chroots)}"
        clusters.append(Cluster(zookeeper.address, chroot, tmp_path / chroot[1:], settings or {}))
        for broker in range(1, brokers + 1):
            clusters[-1].start(broker)
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.close()
