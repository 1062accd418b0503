"""Three embedded servers: one may be killed; a start brings back what is dead, and adopts what lives."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from spark_replication.errors import StartFailed
from spark_replication.process.loopback import free_ports
from spark_replication.process.processes import wait_ended
from spark_replication.zk.operations import Create, SetData
from spark_replication.zk.session import ConnectionLost, Session
from spark_replication.zookeeper_server import layout
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, stop_directory
from spark_replication.zookeeper_server.server import ServerProcess
from tests.live.cluster.faults import stopped
from tests.waiting import eventually

pytestmark = pytest.mark.live

SERVERS = 3
WHOLE = ["follower", "follower", "leader"]
LISTEN = "0A"  # in /proc/net/tcp*
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "zookeeper"
    stop_directory(tmp_path / "zookeeper")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    found = EmbeddedZooKeeper.start(tmp_path_factory.mktemp("ensemble"), 60, SERVERS)
    yield found
    found.stop()
    assert found.pids == []


@pytest.fixture
def ensemble(made: EmbeddedZooKeeper) -> EmbeddedZooKeeper:
    """Whole again, whatever the test before has left of it."""
    EmbeddedZooKeeper.start(made.directory, 60, SERVERS)
    eventually(lambda: sorted(str(server.mode()) for server in made.servers) == WHOLE, "one leads, and two follow")
    return made


def session(address: str) -> Session:
    return Session.connect(address, "/x", session_timeout_ms=10_000, request_timeout_ms=20_000)


def leader_of(ensemble: EmbeddedZooKeeper) -> ServerProcess:
    (leader,) = [server for server in ensemble.servers if server.mode() == "leader"]
    return leader


def kill(server: ServerProcess) -> None:
    pid = server.pid
    assert pid is not None
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(process, 10)
    os.close(process)


def is_written(client: Session, path: str, data: bytes) -> bool:
    """Write it if it is not there: whether a write came about that was under way as the connection went is read."""
    node = client.read_now(path)
    assert node is not None
    if node.data != data:
        with suppress(ConnectionLost):
            client.commit_now((SetData(path, data, node.version),))
    return node.data == data


def listening(pid: int) -> list[str]:
    """The addresses at which a process accepts connections, as /proc spells them."""
    inodes = {
        str(link.readlink()).removeprefix("socket:[").removesuffix("]")
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if str(link.readlink()).startswith("socket:[")
    }
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().split("\n")
    ]
    return [row[1].partition(":")[0] for row in rows if len(row) > 9 and row[3] == LISTEN and row[9] in inodes]


def test_its_servers_have_one_leader_and_listen_on_loopback_alone(ensemble: EmbeddedZooKeeper) -> None:
    assert ensemble.address.count(",") == SERVERS - 1
    heard = [address for pid in ensemble.pids for address in listening(pid)]
    assert len(heard) == 2 * SERVERS + 1, "clients and elections at each, and who follows at the leader"
    assert set(heard) <= set(LOOPBACK)


def test_a_second_start_adopts_all(ensemble: EmbeddedZooKeeper) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: EmbeddedZooKeeper.start(ensemble.directory, 60, SERVERS), range(2)))
    assert [(each.pids, each.address) for each in found] == [(ensemble.pids, ensemble.address)] * 2
    seen = EmbeddedZooKeeper.found_in(ensemble.directory)
    assert seen is not None
    assert seen.pids == ensemble.pids


def test_a_session_outlives_the_leader_and_the_next_start_brings_it_back(ensemble: EmbeddedZooKeeper) -> None:
    client = session(ensemble.address)
    client.commit_now((Create("/kept", b"before"), Create("/mine", b"", ephemeral=True)))
    pids, killed = ensemble.pids, leader_of(ensemble)
    kill(killed)
    eventually(lambda: is_written(client, "/kept", b"after"), "the two that are left take it")
    assert leader_of(ensemble) is not killed
    restarted = EmbeddedZooKeeper.start(ensemble.directory, 60, SERVERS)
    assert restarted.address == ensemble.address
    assert len(set(restarted.pids) & set(pids)) == SERVERS - 1
    (back,) = [server for server in restarted.servers if server.place == killed.place]
    assert back.mode() == "follower"
    there = session(back.place.address)
    there.sync_now()
    kept, mine = there.read_many(["/kept", "/mine"])
    assert kept is not None
    assert kept.data == b"after"
    assert mine is not None
    assert mine.owner == client.id
    assert not client.lost
    there.close()
    client.close()


def test_a_server_that_hangs_does_not_stop_a_start_and_two_do(ensemble: EmbeddedZooKeeper) -> None:
    hung = [server.pid for server in ensemble.servers if server.mode() == "follower"]
    assert None not in hung
    first, second = hung
    with stopped(first):
        assert EmbeddedZooKeeper.start(ensemble.directory, 60, SERVERS).pids == ensemble.pids
        with stopped(second):
            with pytest.raises(StartFailed, match="answered no client in time"):
                EmbeddedZooKeeper.start(ensemble.directory, 1, SERVERS)
            assert len(ensemble.pids) == SERVERS, "a start that fails ends nothing that lived before"
    EmbeddedZooKeeper.start(ensemble.directory, 60, SERVERS)


def test_a_port_taken_since_is_named_and_the_others_go_on(ensemble: EmbeddedZooKeeper) -> None:
    server = next(server for server in ensemble.servers if server.mode() == "follower")
    assert server.place.peering is not None
    kill(server)
    election = server.place.peering.election
    with (
        socket.create_server(("127.0.0.1", election)),
        pytest.raises(
            StartFailed, match=rf"port {election} of the ZooKeeper in .*server-\d is taken by another.*ensemble.json"
        ),
    ):
        EmbeddedZooKeeper.start(ensemble.directory, 1, SERVERS)
    assert len(ensemble.pids) == SERVERS - 1
    session(ensemble.address).close()
    assert len(EmbeddedZooKeeper.start(ensemble.directory, 60, SERVERS).pids) == SERVERS


def test_a_first_start_takes_other_ports_and_one_that_fails_leaves_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        first = iter([taken])
        monkeypatch.setattr(layout, "free_ports", lambda count: [*first, *free_ports(count)][:count])
        started = EmbeddedZooKeeper.start(directory, 60, SERVERS)
        assert taken not in [port for server in started.servers for port in server.place.ports]
    started.stop()
    with (
        socket.create_server(("127.0.0.1", started.servers[1].place.client)),
        pytest.raises(StartFailed, match=r"server-2 is taken by another process"),
    ):
        EmbeddedZooKeeper.start(directory, 1, SERVERS)
    assert started.pids == []


def test_a_directory_of_one_server_is_no_ensembles(directory: Path) -> None:
    alone = EmbeddedZooKeeper.start(directory, 60)
    with pytest.raises(StartFailed, match="was made with 1 ZooKeeper server, not 3"):
        EmbeddedZooKeeper.start(directory, 60, SERVERS)
    assert [server.mode() for server in alone.servers] == ["standalone"]
