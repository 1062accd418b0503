"""A module's stories share a cluster, of its CONFIG (BROKERS, SERVERS); each may have a topic of its own name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import spark_replication as sr
from spark_replication.zk.session import Session
from tests.live.cluster.history import SCHEMA


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[sr.LocalCluster]:
    told = request.module
    with sr.LocalCluster.start(
        brokers=getattr(told, "BROKERS", 3), zookeepers=getattr(told, "SERVERS", 1), config=told.CONFIG
    ) as cluster:
        yield cluster
        # The controller commands again after an error that nobody expected: no story may hide one.
        assert "nobody expected" not in (cluster.directory / "controller" / "log").read_text()


@pytest.fixture
def name(cluster: sr.LocalCluster, request: pytest.FixtureRequest) -> str:
    cluster.wait_healthy()
    return str(request.node.name)


@pytest.fixture
def topic(cluster: sr.LocalCluster, name: str, request: pytest.FixtureRequest) -> str:
    cluster.admin.create_topic(name, SCHEMA, partitions=request.module.PARTITIONS)
    return name


@pytest.fixture
def truth(cluster: sr.LocalCluster) -> Iterator[Session]:
    """What ZooKeeper has: while there is no controller, nobody tells brokers."""
    address, slash, chroot = cluster.zookeeper.removeprefix("zk://").partition("/")
    session = Session.connect(address, slash + chroot, session_timeout_ms=60_000, request_timeout_ms=20_000)
    yield session
    session.close()
