"""What a server says of itself."""

from __future__ import annotations

import pytest

from spark_replication.zookeeper_server.srvr import clients_in, mode_in

SAID = b"Zookeeper version: 3.9\nReceived: 2\nConnections: %d\nMode: standalone\nNode count: 5\n"


@pytest.mark.parametrize(("said", "mode", "clients"), [(SAID % 1, "standalone", 0), (SAID % 3, "standalone", 2)])
def test_its_mode_and_its_clients_but_who_asks(said: bytes, mode: str, clients: int) -> None:
    assert (mode_in(said), clients_in(said)) == (mode, clients)


@pytest.mark.parametrize("said", [b"", b"This ZooKeeper instance is not currently serving requests\n"])
def test_one_that_serves_nobody_has_neither(said: bytes) -> None:
    assert (mode_in(said), clients_in(said)) == (None, 0)
