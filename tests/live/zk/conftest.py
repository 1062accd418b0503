from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_replication.config import Settings
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.controller.store import ZooKeeperControllerStore
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper

_chroots = itertools.count()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper.start(tmp_path_factory.mktemp("zookeeper"), timeout_s=60)
    yield server
    server.stop()


class Cluster:
    """A chroot of its own on the one server; closes at its end what was opened on it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.chroot = f"/test_{next(_chroots)}"
        self._answers = ThreadPoolExecutor(1)
        self._closing: list[Callable[[], None]] = [self._answers.shutdown]

    def session(self, address: str | None = None, session_timeout_ms: int = 6_000) -> Session:
        session = Session.connect(
            address or self.address,
            self.chroot,
            session_timeout_ms=session_timeout_ms,
            request_timeout_ms=20_000,
        )
        self._closing.append(session.close)
        return session

    def controller(
        self, on_deposed: Callable[[str], None] = lambda reason: None, session: Session | None = None
    ) -> ZooKeeperControllerStore:
        store = ZooKeeperControllerStore(session or self.session(), Settings(), self._answers.submit, on_deposed)
        self._closing.append(store.resign)
        return store

    def broker(self, address: str | None = None) -> BrokerStore:
        store = BrokerStore(lambda: self.session(address))
        self._closing.append(store.close)
        return store

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    cluster = Cluster(zookeeper.address)
    yield cluster
    cluster.close()
