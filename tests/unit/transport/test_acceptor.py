"""A listener whose process runs out of descriptors, or of threads: it waits, says so now and then, and goes on."""

from __future__ import annotations

import logging.handlers
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_replication.model import TopicPartition
from spark_replication.transport.sockets.acceptor import LOG_S, PAUSE_S, Acceptor
from spark_replication.transport.sockets.frames import hang_up
from tests.unit.transport.replicas import TIMEOUT_S, Brokers
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process may open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(found.name) for found in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Accepting:
    """A thread that takes what comes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.acceptor = Acceptor(self.listener)
        self.accepted: list[socket.socket] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while (connection := self.acceptor.next()) is not None:
            self.accepted.append(connection)

    def close(self) -> None:
        self.acceptor.close()
        hang_up(self.listener)
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()
        for each in (self.listener, *self.accepted):
            each.close()


def test_without_descriptors_who_comes_is_hung_up_on_and_little_is_logged() -> None:
    story = "from tests.unit.transport.test_acceptor import without_descriptors; without_descriptors()"
    ran = subprocess.run([sys.executable, "-c", story], check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def without_descriptors() -> None:
    """In a process of its own: its other threads would take the spare one as soon as it is given."""
    logged = logging.handlers.BufferingHandler(capacity=1_000)
    logging.getLogger().addHandler(logged)
    accepting = Accepting()
    clients = [socket.socket() for _ in range(4)]
    begun_s = time.monotonic()
    with no_descriptors():
        accepting.thread.start()
        for client in clients[:3]:
            client.connect(accepting.listener.getsockname())
            client.settimeout(TIMEOUT_S)
        for client in clients[:3]:
            assert client.recv(1) == b"", "hung up on, not left waiting"
        assert accepting.accepted == []
        assert time.monotonic() - begun_s >= 2 * PAUSE_S, "it waits between two"
        assert 1 <= len(logged.buffer) <= 1 + (time.monotonic() - begun_s) // LOG_S
        assert "could not be accepted" in logged.buffer[0].getMessage()
    clients[3].connect(accepting.listener.getsockname())
    eventually(lambda: len(accepting.accepted) == 1, "it accepts again")
    for client in clients:
        client.close()
    accepting.close()


def test_a_server_without_threads_hangs_up_and_serves_later(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    before = threading.stack_size(1 << 46)  # of which nobody can give one
    try:
        with socket.create_connection(("127.0.0.1", leader.replication.port), TIMEOUT_S) as refused:
            assert refused.recv(1) == b""
    finally:
        threading.stack_size(before)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    answers = leader.produce(ORDERS, 3)
    eventually(lambda: len(answers) == 3, "its followers are served")
