"""An embedded ZooKeeper with certificates speaks TLS alone, and serves nobody without one of them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.errors import BrokerNotAvailable, StartFailed
from spark_replication.zk.login import NOBODY, Login, read_login
from spark_replication.zk.operations import Create
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server import embedded, settings
from spark_replication.zookeeper_server.certificates import client_login, make_certificates
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, serve_over_tls, stop_directory
from spark_replication.zookeeper_server.keeper import Keeper
from spark_replication.zookeeper_server.server import ServerProcess
from tests.unit.transport.certificates import Authority
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

START_S = 60.0
TIMEOUT_MS = 2_000
OURS = Login(digest="ours:secret")


def session(address: str, login: Login, chroot: str = "/secured") -> Session:
    return Session.connect(address, chroot, session_timeout_ms=10_000, request_timeout_ms=TIMEOUT_MS, login=login)


def connected(address: str, login: Login) -> bool:
    try:
        found = session(address, login, "")
    except BrokerNotAvailable:
        return False
    found.close()
    return True


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "zookeeper"
    stop_directory(tmp_path / "zookeeper")


@pytest.fixture
def start(directory: Path) -> Callable[..., EmbeddedZooKeeper]:
    return lambda servers=1: EmbeddedZooKeeper.start(directory, START_S, servers)


def login_of(authority: Authority, name: str) -> Login:
    issued = authority.issue(name)
    return read_login(
        settings_from(
            {
                "zookeeper.tls.ca.file": str(authority.file),
                "zookeeper.tls.certificate.file": str(issued.certificate),
                "zookeeper.tls.key.file": str(issued.key),
            }
        )
    )


@pytest.mark.parametrize("servers", [1, 3])
def test_who_has_a_certificate_is_served_and_nobody_else(
    directory: Path, start: Callable[..., EmbeddedZooKeeper], tmp_path: Path, servers: int
) -> None:
    make_certificates(directory)
    found = start(servers)
    ours, theirs = client_login(directory), login_of(Authority(tmp_path, "another CA"), "stranger")
    strangers = {
        "without TLS": NOBODY,
        "without a certificate": Login(tls=ours.tls[:1]),
        "with one of another CA": Login(tls=(*ours.tls[:1], *theirs.tls[1:])),
        "trusting another CA": theirs,
    }
    for server in found.servers:
        assert connected(server.place.address, ours)
        assert server.mode() in {"standalone", "leader", "follower"}
        for who, login in strangers.items():
            assert not connected(server.place.address, login), who
    (tmp_path / "other").mkdir()
    make_certificates(tmp_path / "other")
    with pytest.raises(BrokerNotAvailable, match=r"set zookeeper\.tls\.…"):
        session(found.address, NOBODY)


def test_what_encrypts_is_unpacked_in_its_own_directory_and_does_not_stay(
    directory: Path, start: Callable[..., EmbeddedZooKeeper]
) -> None:
    """Java's own takes tens of milliseconds for the writes of one failover: see native_tls."""
    make_certificates(directory)
    found = start()
    session(found.address, Login(tls=client_login(directory).tls)).close()
    (pid,) = found.pids
    loaded = [line.split()[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "tcnative" in line]
    assert loaded
    assert {str(Path(path).parent) for path in loaded} == {str(directory)}
    assert [path for path in loaded if Path(path).exists()] == []


def test_a_directory_of_before_there_were_certificates_goes_on(
    directory: Path, start: Callable[..., EmbeddedZooKeeper]
) -> None:
    before = start()
    one = session(before.address, OURS)
    one.commit_now((Create("/kept", b"data"),))
    one.close()
    with pytest.raises(StartFailed, match="does not speak TLS"):
        serve_over_tls(directory)
    make_certificates(directory)  # as if it had been started meanwhile
    with pytest.raises(StartFailed, match=rf"pid {before.pids[0]}\) lives, and is not adopted"):
        start()
    assert before.alive(), "others use it"
    before.stop()
    after = start()
    assert after.address == before.address
    with pytest.raises(BrokerNotAvailable):
        session(after.address, OURS)
    again = session(after.address, Login(digest=OURS.digest, tls=client_login(directory).tls))
    node = again.read_now("/kept")
    again.close()
    assert node is not None
    assert node.data == b"data"
    (directory / "tls").rename(directory / "away")
    with pytest.raises(StartFailed, match="it speaks TLS, and its certificates are gone"):
        start()


def test_servers_of_an_ensemble_take_none_without_a_certificate_of_theirs(
    directory: Path, start: Callable[..., EmbeddedZooKeeper], tmp_path: Path
) -> None:
    """It has the secret, but other certificates: what servers say to each other would be heard otherwise."""
    make_certificates(directory)
    found = start(3)
    places = [server.place for server in found.servers]
    assert found.servers[2].end(30)
    rogue = tmp_path / "rogue"
    make_certificates(rogue)
    (rogue / "quorum.jaas").write_bytes((directory / "quorum.jaas").read_bytes())
    (rogue / "server-3").mkdir()
    place = type(places[2])(number=3, directory=rogue / "server-3", client=places[2].client, peering=places[2].peering)
    impostor = ServerProcess(place, [*places[:2], place])
    assert impostor.launch()
    try:
        others = [server.log_path for server in found.servers[:2]]
        eventually(lambda: all(re.search("SSL|certificate", log.read_text()) for log in others), "refused", START_S)
        assert impostor.mode() is None
    finally:
        assert impostor.end(30)
    start(3)
    eventually(lambda: found.servers[2].mode() in {"leader", "follower"}, "the true one is taken in", START_S)


def test_its_keeper_and_its_watchdog_have_a_certificate_too(directory: Path) -> None:
    make_certificates(directory)
    keeper = Keeper.start(directory, START_S, login=OURS)
    try:
        (killed,) = keeper.pids
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: keeper.pids not in ([], [killed]), "it is started again", START_S)
        eventually(lambda: keeper.problems() == [], "it answers", START_S)
    finally:
        assert keeper.stop()


def test_what_was_there_before_the_first_start_was_complete_is_not_adopted(
    directory: Path, start: Callable[..., EmbeddedZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ServerProcess.answers

    def after_a_stranger(server: ServerProcess, deadline: float) -> bool:
        if not answers(server, deadline):
            return False
        stranger = session(server.place.address, NOBODY, "/spark_replication")
        stranger.commit_now((Create("/config"),))
        stranger.close()
        return True

    with monkeypatch.context() as attacked:
        attacked.setattr(ServerProcess, "answers", after_a_stranger)
        with pytest.raises(StartFailed, match="another process wrote spark_replication to the ZooKeeper in"):
            start()
    assert not (directory / "data").exists()
    found = start()
    one = session(found.address, NOBODY, "")
    assert one.children_now("/") == embedded.TOP
    one.commit_now((Create("/mine"),))
    one.close()
    found.stop()
    (directory / "port").unlink()  # as a person does, to have another chosen
    one = session(start().address, NOBODY, "")
    assert one.children_now("/") == ["mine", "zookeeper"], "this start has not made it"
    one.close()


def test_its_log_does_not_outgrow_its_bound(
    directory: Path, start: Callable[..., EmbeddedZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 5_000  # a start says three times as much
    monkeypatch.setattr(settings, "LOG_BYTES_MAX", bound)
    monkeypatch.setattr(settings, "LOG_LEVEL", "debug")
    found = start()
    log = found.servers[0].log_path
    eventually(log.with_name("log.1").exists, "it was begun anew")
    assert sorted(path.name for path in directory.glob("log*") if path.suffix != ".properties") == ["log", "log.1"]
    assert all(path.stat().st_size < 2 * bound for path in (log, log.with_name("log.1")))
