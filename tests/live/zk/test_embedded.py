"""The embedded ZooKeeper: started, adopted, killed, restarted, stopped."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import pytest

from spark_replication.errors import StartFailed
from spark_replication.process.loopback import free_ports
from spark_replication.process.processes import wait_ended
from spark_replication.zk.operations import Create
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server import layout
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, stop_directory
from tests.live.cluster.faults import hang
from tests.waiting import eventually

pytestmark = pytest.mark.live


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "zookeeper"
    stop_directory(tmp_path / "zookeeper")


def session(server: EmbeddedZooKeeper) -> Session:
    return Session.connect(server.address, "/x", session_timeout_ms=2_000, request_timeout_ms=10_000)


def port_of(server: EmbeddedZooKeeper) -> int:
    return server.servers[0].place.client


def kill(pid: int | None) -> None:
    assert pid is not None
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(process, 10)
    os.close(process)


def test_a_second_start_adopts_and_stop_leaves_no_process(directory: Path) -> None:
    first = EmbeddedZooKeeper.start(directory, timeout_s=60)
    second = EmbeddedZooKeeper.start(directory, timeout_s=60)
    (pid,) = first.pids
    assert (second.pids, second.address) == ([pid], first.address)
    assert os.getsid(pid) == pid, "in a session of its own"
    second.stop()
    assert not first.alive()
    assert first.pids == []
    eventually(
        lambda: not Path(f"/proc/{pid}").exists(), "this process, its parent, reaps it on a thread of its own", 10
    )
    first.stop()


def test_starts_at_once_make_one_server(directory: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        servers = list(pool.map(lambda _: EmbeddedZooKeeper.start(directory, timeout_s=60), range(3)))
    assert len({tuple(server.pids) for server in servers}) == 1
    assert len({server.address for server in servers}) == 1


def test_a_killed_server_comes_back_on_its_port_with_its_data_and_sessions(directory: Path) -> None:
    server = EmbeddedZooKeeper.start(directory, timeout_s=60)
    client = Session.connect(server.address, "/x", session_timeout_ms=20_000, request_timeout_ms=20_000)
    client.commit_now((Create("/kept", b"data"), Create("/mine", b"", ephemeral=True)))
    kill(server.servers[0].pid)
    assert not server.alive()
    restarted = EmbeddedZooKeeper.start(directory, timeout_s=60)
    assert restarted.address == server.address
    node, mine = client.read_many(["/kept", "/mine"])
    assert node is not None
    assert node.data == b"data"
    assert mine is not None
    assert mine.owner == client.id
    assert not client.lost
    client.close()


def test_a_server_that_ends_while_it_is_adopted_is_started(directory: Path) -> None:
    server = EmbeddedZooKeeper.start(directory, timeout_s=60)
    (pid,) = server.pids
    hang(pid)  # it lives, and does not answer
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(EmbeddedZooKeeper.start, directory, 60)
        with pytest.raises(FutureTimeoutError):
            starting.result(timeout=0.5)
        kill(pid)
        assert starting.result(timeout=60).pids not in ([], [pid])
    session(server).close()


def test_a_port_taken_at_the_first_start_is_left_to_who_has_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = iter([[taken]])
        monkeypatch.setattr(layout, "free_ports", lambda count: next(ports, None) or free_ports(count))
        server = EmbeddedZooKeeper.start(directory, timeout_s=60)
        assert port_of(server) != taken
        session(server).close()


def test_a_restart_does_not_move_to_another_port(directory: Path) -> None:
    server = EmbeddedZooKeeper.start(directory, timeout_s=60)
    server.stop()
    with (
        socket.create_server(("127.0.0.1", port_of(server))),
        pytest.raises(StartFailed, match=f"port {port_of(server)} .* is taken"),
    ):
        EmbeddedZooKeeper.start(directory, timeout_s=0.5)
    assert EmbeddedZooKeeper.start(directory, timeout_s=60).address == server.address


def test_without_java_it_says_what_to_install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(directory))
    with pytest.raises(StartFailed, match="apt-get install openjdk-17-jre-headless"):
        EmbeddedZooKeeper.start(directory, timeout_s=5)


def test_a_reused_pid_is_not_taken_for_the_server(directory: Path) -> None:
    server = EmbeddedZooKeeper.start(directory, timeout_s=60)
    (pid,) = server.pids
    (directory / "pid").write_text(str(os.getpid()))
    assert server.alive()
    assert server.pids == []
    (directory / "pid").write_text(str(pid))
    server.stop()
    (directory / "pid").write_text(str(os.getpid()))
    assert not server.alive()
    assert server.pids == []
    server.stop()
