"""How many calls of our own a row costs that is sent alone: each is a share of how long it waits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import pytest

from spark_replication.messages.envelope import NONE
from spark_replication.model import TopicPartition
from tests.unit.transport.replicas import Broker, Brokers
from tests.unit.transport.test_lane import Client, put, stream

ORDERS = TopicPartition("orders", 0)
ROWS = 50
#: In one process, on the broker's loop. There are 410 and 131, and a few more on a machine that has other work.
LEADER_MAX, FOLLOWER_MAX = 440, 145


@pytest.fixture
def calls() -> Iterator[Counter[int]]:
    """Of Python, by thread, of threads that begin from here on."""
    found: Counter[int] = Counter()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found[threading.get_ident()] += 1

    threading.setprofile(count)
    yield found
    threading.setprofile(None)


def test_a_row_that_is_sent_alone_costs_few_calls(calls: Counter[int], brokers: Brokers) -> None:
    found = [brokers.start(number) for number in (1, 2, 3)]
    for broker in found:
        broker.command(ORDERS, 1, (1, 2, 3))
    client = Client(found[0])
    client.say(stream())

    def send(first: int) -> None:
        for number in range(first, first + ROWS):
            client.say(put(number))
            assert client.is_told(number).error == NONE

    send(0)
    before = calls.copy()
    send(ROWS)
    leader, *followers = [_of(broker, calls - before) for broker in found]
    assert ROWS < leader <= LEADER_MAX * ROWS
    assert all(ROWS < follower <= FOLLOWER_MAX * ROWS for follower in followers)


def _of(broker: Broker, calls: Counter[int]) -> int:
    ident = broker.sockets._thread.ident
    assert ident is not None, "it runs"
    return calls[ident]
