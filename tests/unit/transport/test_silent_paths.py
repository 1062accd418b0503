"""A path between a client and a broker that takes packets and brings none: neither side is told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.transport.flight.actions import error_of_flight
from spark_replication.transport.security import security
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.transport.sockets.frames import (
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES_MAX,
    UNCONFIRMED_MS_MAX,
    tune,
)
from tests.unit.client.tcp_proxy import TcpProxy
from tests.unit.transport.flight_broker import FlightBroker, get, written

SCHEMA = pa.schema([("text", pa.string())])
BATCH = pa.record_batch([pa.array(["a"])], schema=SCHEMA)
LONG_MS = 20_000


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    """Before a broker that takes a long wait; clients ask after 0.2 s of silence."""
    monkeypatch.setattr(security, "KEEPALIVE_MS", 200)
    monkeypatch.setattr(security, "KEEPALIVE_TIMEOUT_MS", 1_000)  # a busy machine may take long to answer
    broker = FlightBroker(tmp_path, SCHEMA)
    proxy = TcpProxy(broker.server.port)
    yield proxy
    proxy.down()
    broker.close()


def tried(client: flight.FlightClient) -> bytes:
    try:
        return written(client, BATCH)
    except flight.FlightError as error:
        raise error_of_flight(error) from error


def test_a_call_over_a_path_that_brings_nothing_ends_and_the_next_one_goes_another_way(proxy: TcpProxy) -> None:
    client = NO_SECURITY.client(f"127.0.0.1:{proxy.port}")
    assert b"base_offset" in written(client, BATCH)
    waiting = get(client, from_offset=1, max_wait_ms=LONG_MS)
    proxy.swallow()
    with pytest.raises(flight.FlightUnavailableError):
        waiting.read_all()
    # gRPC may still be closing the path, and then ends what begins on it, too: as retriable, which clients do.
    assert b"base_offset" in persistently(lambda: tried(client), Deadline(LONG_MS))


def test_a_call_that_waits_for_long_is_not_hung_up_for_asking_too_often(proxy: TcpProxy) -> None:
    client = NO_SECURITY.client(f"127.0.0.1:{proxy.port}")
    writer, reader = client.do_put(flight.FlightDescriptor.for_path("orders", "0"), SCHEMA)
    for number in range(3):
        writer.write_batch(BATCH)
        assert b"base_offset" in bytes(reader.read())
        assert len(get(client, from_offset=number + 1, max_wait_ms=1_000).read_all()) == 0
    writer.close()


def test_replication_connections_notice_a_peer_that_is_gone_within_seconds() -> None:
    with socket.socket() as connection:
        tune(connection)
        options = ("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        found = [connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
        assert found == [1, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES_MAX, UNCONFIRMED_MS_MAX]
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES_MAX <= 15
