"""The servers of an ensemble prove to each other that they belong to it: others on the host may reach their ports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from spark_replication.zookeeper_server import embedded
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper
from spark_replication.zookeeper_server.quorum_secret import FILE
from spark_replication.zookeeper_server.server import ServerProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

START_S = 60.0
SERVING = {"leader", "follower"}


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    found = EmbeddedZooKeeper.start(tmp_path / "zookeeper", START_S, 3)
    yield found
    found.stop()


def impostor(ensemble: EmbeddedZooKeeper, directory: Path) -> ServerProcess:
    """Has the number and the ports of the third server, and none of its files."""
    places = [server.place for server in ensemble.servers]
    (directory / "server-3").mkdir(parents=True)
    place = msgspec.structs.replace(places[2], directory=directory / "server-3")
    return ServerProcess(place, [*places[:2], place])


def test_a_server_without_the_secret_is_not_taken_in(ensemble: EmbeddedZooKeeper, tmp_path: Path) -> None:
    secret = ensemble.directory / FILE
    assert secret.stat().st_mode & 0o777 == 0o600
    assert all(secret.read_text() not in Path(f"/proc/{pid}/cmdline").read_text() for pid in ensemble.pids)
    assert ensemble.servers[2].end(30)
    rogue = impostor(ensemble, tmp_path / "rogue")
    assert rogue.launch()
    try:
        heard = [server.log_path for server in ensemble.servers[:2]]
        eventually(lambda: all("Failed to authenticate" in log.read_text() for log in heard), "it is refused", START_S)
        assert rogue.mode() is None
        eventually(lambda: {server.mode() for server in ensemble.servers[:2]} == SERVING, "the others serve", START_S)
    finally:
        assert rogue.end(30)
    shutil.copy(secret, tmp_path / "rogue" / FILE)
    assert rogue.launch()
    try:
        eventually(lambda: rogue.mode() in SERVING, "with the secret it would have been taken in", START_S)
    finally:
        assert rogue.end(30)


def test_an_ensemble_of_before_gets_its_secret_when_all_its_servers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "zookeeper"
    with monkeypatch.context() as before:
        before.setattr(embedded, "make_quorum_secret", lambda _directory: None)
        found = EmbeddedZooKeeper.start(directory, START_S, 3)
    try:
        assert found.servers[0].end(30)
        EmbeddedZooKeeper.start(directory, START_S, 3)
        assert not (directory / FILE).exists(), "the others would not take one in that wants proof"
        found.stop()
        EmbeddedZooKeeper.start(directory, START_S, 3)
        assert (directory / FILE).exists()
        eventually(lambda: {server.mode() for server in found.servers} == SERVING, "all serve", START_S)
    finally:
        found.stop()
