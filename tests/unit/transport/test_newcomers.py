"""Who has proven nothing yet gives way to whoever comes later, takes no place of those who have, and fills no log."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from spark_replication.errors import InvalidRequest, Overloaded
from spark_replication.model import TopicPartition
from spark_replication.transport.frames import replication_server
from spark_replication.transport.meter import CONNECTION
from spark_replication.transport.sockets import newcomers
from spark_replication.transport.sockets.newcomers import Newcomers
from tests.unit.transport.replicas import TIMEOUT_S, Broker, Brokers
from tests.unit.transport.test_lane import Client, leads, put, stream
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "NEWCOMERS_MAX", 4)
    monkeypatch.setattr(newcomers, "NEWCOMERS_OF_A_HOST_MAX", 3)


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    found = [socket.socket() for _ in range(8)]
    yield found
    for each in found:
        each.close()


@pytest.mark.usefixtures("few")
def test_of_too_many_of_a_host_its_oldest_gives_way(sockets: list[socket.socket]) -> None:
    found = Newcomers()
    assert [found.came(each, "a") for each in sockets[:5]] == [None] * 3 + sockets[:2]
    assert found.came(sockets[5], "b") is None, "another host has room"
    assert [found.left(each) for each in sockets[:6]] == [False, False, True, True, True, True]
    assert len(found) == 0


@pytest.mark.usefixtures("few")
def test_of_too_many_of_all_the_host_that_has_most_gives_way(sockets: list[socket.socket]) -> None:
    found = Newcomers()
    assert [found.came(each, host) for each, host in zip(sockets, "aabccc", strict=False)] == [
        *[None] * 4,
        sockets[0],
        sockets[3],
    ]
    assert len(found) == 4


@pytest.mark.usefixtures("few")
def test_who_has_left_gives_way_to_nobody(sockets: list[socket.socket]) -> None:
    found = Newcomers()
    for each in sockets:
        assert found.came(each, "a") is None
        assert found.left(each)
        assert not found.left(each)


def silent(held: ExitStack, broker: Broker) -> socket.socket:
    address = ("127.0.0.1", broker.replication.port)
    return held.enter_context(socket.create_connection(address, timeout=TIMEOUT_S))


@pytest.mark.usefixtures("few")
def test_silent_connections_keep_nobody_out(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: 1,100 of them, and of a hundred new producers one got in."""
    monkeypatch.setattr(replication_server, "HELLO_TIMEOUT_S", 10 * TIMEOUT_S)
    monkeypatch.setattr(replication_server, "CONNECTIONS_MAX", 3)
    leader = leads(brokers, replicas=(1, 2))
    with ExitStack() as held:
        strangers = [silent(held, leader) for _ in range(10)]
        clients = [Client(leader) for _ in range(5)]
        brokers.start(2).command(ORDERS, 1, (1, 2))
        for number, client in enumerate(clients):
            client.say(stream(), put(number))
            assert client.is_told(number).error == "NONE", "its follower has connected, too"
        assert strangers[0].recv(1) == b"", "the oldest has given way"
        server = leader.replication._server
        assert len(server._newcomers) <= 3
        assert server.meter.refusals()[CONNECTION, Overloaded.code] >= 7
    eventually(lambda: not len(server._newcomers), "they are forgotten")


def test_followers_have_so_many_places(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_server, "CONNECTIONS_MAX", 1)
    leader = leads(brokers, replicas=(1, 2, 3))
    brokers.start(2).command(ORDERS, 1, (1, 2, 3))
    eventually(lambda: leader.replication._server.followers.of(2) is not None, "the first has connected")
    brokers.start(3).command(ORDERS, 1, (1, 2, 3))
    meter = leader.replication._server.meter
    eventually(lambda: meter.refusals().get((CONNECTION, Overloaded.code)), "the second is refused")
    (first,) = (each for each, thread in leader.replication._server._connections.items() if thread is None)
    first.shutdown(socket.SHUT_RDWR)

    def has_another() -> bool:
        return any(thread is None and each is not first for each, thread in connections.copy().items())

    connections = leader.replication._server._connections
    eventually(has_another, "its place is free")


def test_who_has_given_way_just_before_it_was_known_connects_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = leads(brokers)
    with monkeypatch.context() as patched:
        patched.setattr(Newcomers, "left", lambda *_: False)
        with pytest.raises(Overloaded, match="connect again") as refused:
            Client(leader)
        assert refused.value.retriable
    Client(leader)


FLOOD = 30


def test_a_flood_of_strangers_is_a_few_lines(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    """The attack: a line for each, with which the log was begun anew after a minute."""
    leader = leads(brokers)
    meter = leader.replication._server.meter
    caplog.set_level(logging.INFO)
    for _ in range(FLOOD):
        with ExitStack() as held:
            silent(held, leader)
            garbage = silent(held, leader)
            garbage.sendall(struct.pack("!II", 1 << 30, 0))
            while garbage.recv(1 << 16):
                pass
    eventually(lambda: meter.refusals() == {(CONNECTION, InvalidRequest.code): FLOOD}, "each is counted")
    eventually(lambda: not len(leader.replication._server._newcomers), "all are gone")
    told = [each for each in caplog.records if each.name.startswith("spark_replication.transport")]
    assert len(told) == 3, "why they were refused, how many, and that others broke"
    (counted,) = (each for each in told if getattr(each, "who", "") == "strangers")
    assert (counted.host, counted.action) == ("127.0.0.1: 1", "a connection")  # type: ignore[attr-defined]
