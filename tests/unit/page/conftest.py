"""A page that is served here, of a cluster that is the test's to change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_replication.page.server import PageServer
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.security import NO_SECURITY, Security
from tests.unit.page.page_cluster import NO_READER, PageCluster
from tests.unit.page.viewer import Viewer, nobody_hears

SECRET = "a-long-secret"


@pytest.fixture
def cluster() -> PageCluster:
    return PageCluster()


@pytest.fixture
def viewer(cluster: PageCluster) -> Iterator[Viewer]:
    server = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=NO_SECURITY, say=nobody_hears)
    yield Viewer(server.url)
    server.stop()


@pytest.fixture
def stranger(cluster: PageCluster) -> Iterator[Viewer]:
    """Of a page that wants a token."""
    security = Security(mode="token", tokens=Tokens.of(Token(SECRET)))
    server = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=security, say=nobody_hears)
    yield Viewer(server.url)
    server.stop()
