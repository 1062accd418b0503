"""A dead broker's address that another cluster's broker has got: nobody who remembers it is served there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.finding.bootstrap import parse_bootstrap
from spark_replication.errors import BrokerNotAvailable
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

BROKERS = 2
CONFIG = {"min.insync.replicas": 1, "zookeeper.session.ms": 6_000}
WAIT_S = 60.0


@contextmanager
def leads_to(port: int, other: int) -> Iterator[None]:
    """Whoever connects to `port` reaches `other`, as if its server had got that port."""
    listeners: list[socket.socket] = []

    def listens() -> bool:
        with suppress(OSError):
            listeners.append(socket.create_server(("127.0.0.1", port)))
        return bool(listeners)

    eventually(listens, f"port {port} is free")
    (listener,) = listeners
    open_connections: list[socket.socket] = [listener]

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", other))
                open_connections.extend((client, server))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=forward, args=(source, sink), daemon=True).start()

    def forward(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        for each in open_connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def rows(cluster: sr.LocalCluster, topic: str) -> list[int]:
    with sr.Reader(cluster.zookeeper) as reader:
        return [number for batch in reader.read(topic) for number in batch.batch.column(0).to_pylist()]


def test_clients_find_their_own_cluster_again(cluster: sr.LocalCluster, name: str) -> None:
    with sr.LocalCluster.start(brokers=1, config=CONFIG) as others:
        for each in (cluster, others):
            each.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=len(each.brokers))
            each.wait_healthy()
        (theirs,) = (broker.port for broker in others.brokers.values())
        with sr.Producer(cluster.zookeeper) as producer, sr.Reader(cluster.zookeeper) as reader:
            for number in range(3):
                leader = cluster.admin.describe_topics([name])[0].partitions[0].leader
                assert leader is not None
                producer.send(name, batch(2 * number), 0).result(WAIT_S)
                read = [each for found in reader.read(name) for each in found.batch.column(0).to_pylist()]
                assert read == list(range(2 * number + 1))
                port, pid = cluster.brokers[leader].port, cluster.brokers[leader].pid
                kill(pid)
                with leads_to(port, theirs):
                    producer.send(name, batch(2 * number + 1), 0).result(WAIT_S)
                    read = [each for found in reader.read(name) for each in found.batch.column(0).to_pylist()]
                    assert read == list(range(2 * number + 2))
                    cluster.wait_healthy()
        assert rows(others, name) == []


def test_who_began_elsewhere_and_finds_nobody_is_told_whose_servers_those_are(
    cluster: sr.LocalCluster, name: str
) -> None:
    with sr.LocalCluster.start(brokers=1, config=CONFIG) as others:
        (theirs,) = others.brokers.values()
        others.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=1)
        admin = sr.Admin(f"{theirs.host}:{theirs.port}")
        assert [found.name for found in admin.describe_topics()] == [name]
        kill(theirs.pid)
        (ours, *_) = cluster.brokers.values()
        with leads_to(theirs.port, ours.port):
            assert [found.name for found in admin.describe_topics([name])] == [name], "their controller still tells"
            kill(others.controller_pid)
            with pytest.raises(BrokerNotAvailable, match="MISROUTED_CALL: this"):
                admin.describe_topics([name])
        admin.close()


def test_zookeeper_says_which_cluster_it_is(cluster: sr.LocalCluster) -> None:
    named = parse_bootstrap(cluster.zookeeper).cluster(5_000)
    assert named.cluster_id == cluster.admin.describe_cluster().cluster_id
    assert set(named.brokers) == {f"{broker.host}:{broker.port}" for broker in cluster.brokers.values()}


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([number], SCHEMA.field(0).type)], SCHEMA)
