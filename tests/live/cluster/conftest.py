"""A module's stories share a cluster, of its CONFIG (BROKERS, SERVERS); each may have a topic of its own name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import spark_replication as sr
from spark_replication.process.processes import last_lines
from spark_replication.zk.session import Session
from tests.live.cluster.history import SCHEMA

WORDS = 250  # lines of a log that tell why a test has failed: with the stacks of a broker's threads
STACKS_S = 1.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failure goes what each process said last: its files go with the cluster."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.when == "call" and report.failed and isinstance(cluster, sr.LocalCluster):
        report.sections += list(last_words(cluster))
    return report


def last_words(cluster: sr.LocalCluster) -> Iterator[tuple[str, str]]:
    for broker in cluster.brokers.values():
        with suppress(ProcessLookupError):
            os.kill(broker.pid, signal.SIGUSR2)
    time.sleep(STACKS_S)
    logs = [Path(broker.log_dir) / "broker.log" for broker in cluster.brokers.values()]
    for path in (cluster.directory / "controller" / "log", *logs):
        with suppress(OSError):
            yield str(path), last_lines(path, WORDS, 64 << 10)


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
