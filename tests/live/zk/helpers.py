"""What the stories of this folder share: values, and waiting for an answer with a deadline."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol.serialization import Close, Connect

from spark_replication.core.law.writes import Group, GroupAnswer, PartitionWrite, TopicWrite
from spark_replication.model import ABSENT, BrokerEpoch, PartitionState, Registration, TopicPartition, TopicState
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.controller.store import ZooKeeperControllerStore
from spark_replication.zk.session import Session, SessionState

DEADLINE_S = 20.0
EXPIRE_ATTEMPTS_MAX = 20


class Heard:
    """Collects what a callback is told; `take` waits for the next."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, *told: Any) -> None:
        self._told.put(told[0] if told else None)

    def take(self, timeout_s: float = DEADLINE_S) -> Any:
        return self._told.get(timeout=timeout_s)

    def take_until(self, wanted: Callable[[Any], bool]) -> Any:
        while not wanted(told := self.take()):
            pass
        return told

    @property
    def count(self) -> int:
        return self._told.qsize()


def commit(store: ZooKeeperControllerStore, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
    """On the thread that the store's answers come on."""
    store._post(lambda: store.commit(groups, then))


def committed(
    store: ZooKeeperControllerStore, groups: Sequence[Group], timeout_s: float = DEADLINE_S
) -> list[GroupAnswer]:
    heard = Heard()
    commit(store, groups, heard)
    answers: list[GroupAnswer] = heard.take(timeout_s)
    return answers


def changed(store: BrokerStore, write: Any) -> Any:
    heard = Heard()
    store.change_isr(write, heard)
    return heard.take()


def state(leader: int | None = 1, leader_epoch: int = 0, isr: Sequence[int] = (1,)) -> PartitionState:
    return PartitionState(
        leader=leader,
        leader_epoch=leader_epoch,
        isr=frozenset(isr),
        min_isr=1,
        epochs=dict.fromkeys(isr, 0),
    )


def topic_write(name: str, partitions: int = 1, topic_id: str | None = None) -> TopicWrite:
    assigned: dict[int, tuple[int, ...]] = dict.fromkeys(range(partitions), (1, 2, 3))
    return TopicWrite(topic=name, state=TopicState(topic_id=topic_id or f"id-{name}", partitions=assigned))


def partition_write(
    topic: str,
    number: int,
    version: int = ABSENT,
    of: PartitionState | None = None,
    relies_on: dict[int, int] | None = None,
) -> PartitionWrite:
    return PartitionWrite(
        partition=TopicPartition(topic, number), state=of or state(), version=version, relies_on=relies_on or {}
    )


def register(
    store: BrokerStore,
    broker: int,
    *,
    continues: int | None = None,
    incarnation: str = "first",
    boot_id: str = "boot",
    directory_mark: str = "mark",
) -> tuple[Registration, BrokerEpoch]:
    return store.register(
        broker,
        host="127.0.0.1",
        port=9000 + broker,
        replication_port=9100 + broker,
        incarnation=incarnation,
        rack=None,
        boot_id=boot_id,
        directory_mark=directory_mark,
        files_uid=7,
        continues=continues,
    )


def expire(session: Session) -> None:
    """As ZooKeeper does it when it has heard nothing: another client takes the session, and closes it.

    The owner reconnects at once, and may take the session back between the two requests: then again.
    """
    lost = threading.Event()
    session.listen(lambda state: lost.set() if state is SessionState.LOST else None)
    identity, password = session._client.client_id
    connect = Connect(0, 0, 6_000, identity, password, False).serialize()
    close = struct.pack("!ii", 1, Close.type)
    host, port = session.address.split(",")[0].split(":")
    for _ in range(EXPIRE_ATTEMPTS_MAX):
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as thief, contextlib.suppress(OSError):
            thief.sendall(b"".join(struct.pack("!i", len(request)) + request for request in (connect, close)))
            while thief.recv(1 << 10):
                pass
        if lost.wait(1):
            return
    raise AssertionError(f"the session lives after {EXPIRE_ATTEMPTS_MAX} attempts")


class Proxy:
    """A TCP proxy before ZooKeeper. `swallow()` lets requests through and drops what the server says, until `cut()`."""

    def __init__(self, upstream: str) -> None:
        host, port = upstream.split(":")
        self._upstream = (host, int(port))
        self._swallowing = threading.Event()
        self._swallowed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        self._swallowing.set()

    def wait_swallowed(self) -> None:
        assert self._swallowed.wait(DEADLINE_S), "the server has said nothing"

    def cut(self) -> None:
        """Every connection breaks; new ones are whole."""
        sockets, self._sockets = self._sockets, []
        self._swallowing.clear()
        self._swallowed.clear()
        for end in sockets:
            _shut_down(end)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            self._sockets += [client, server]
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        dropping = False  # for good: a TCP stream has no holes
        try:
            while data := source.recv(1 << 16):
                dropping |= answers and self._swallowing.is_set()
                if dropping:
                    self._swallowed.set()
                else:
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                _shut_down(end)


def _shut_down(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was first
        end.shutdown(socket.SHUT_RDWR)
