"""Who watches an embedded ZooKeeper for somebody who needs it is nobody who uses it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_replication.process.processes import LockedProcess
from spark_replication.zookeeper_server.layout import PORT_FILE
from spark_replication.zookeeper_server.locks import Use, unused
from spark_replication.zookeeper_server.watchdog import UNUSED_FILE, WATCHDOG_DIRECTORY, Watchdog, watch

LOOKS = 2
TIMEOUT_S = 20.0


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[socket.socket]:
    """Where a server of this directory listens, and answers nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server, LockedProcess(tmp_path).locked():
        server.settimeout(TIMEOUT_S)
        (tmp_path / PORT_FILE).write_text(str(server.getsockname()[1]))
        yield server


@contextmanager
def watching(directory: Path) -> Iterator[None]:
    stopping = threading.Event()
    thread = threading.Thread(target=watch, args=(directory, stopping))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(TIMEOUT_S)


def test_the_last_user_is_alone_while_a_server_is_asked_who_is_connected(tmp_path: Path, silent: socket.socket) -> None:
    with watching(tmp_path):
        for _ in range(LOOKS):
            asking, _ = silent.accept()
            with asking, unused(tmp_path) as is_unused:
                assert is_unused


def test_whoever_uses_it_as_its_time_is_over_is_left_alone(
    tmp_path: Path, silent: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """Since the watchdog has looked, somebody has begun to use it."""
    Watchdog(tmp_path, 0.0).begin()
    (tmp_path / WATCHDOG_DIRECTORY / UNUSED_FILE).write_text("0.001")
    with watching(tmp_path):
        asking, _ = silent.accept()
        use = Use(tmp_path)
        use.begin(0)
        asking.close()
    use.end()
    assert "nobody has needed" not in caplog.text


@pytest.mark.parametrize("said", [None, "soon"])
def test_without_a_time_that_can_be_read_it_ends_nothing(
    tmp_path: Path, silent: socket.socket, caplog: pytest.LogCaptureFixture, said: str | None
) -> None:
    if said is not None:
        Watchdog(tmp_path, 0.0).begin()
        (tmp_path / WATCHDOG_DIRECTORY / UNUSED_FILE).write_text(said)
    with watching(tmp_path):
        for _ in range(LOOKS):
            silent.accept()[0].close()
    assert "nobody has needed" not in caplog.text
