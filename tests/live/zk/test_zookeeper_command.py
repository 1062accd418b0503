"""`spark-replication zookeeper` as a person runs it: in the foreground until Ctrl-C, or detached."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_replication.config import settings_from
from spark_replication.errors import BrokerNotAvailable
from spark_replication.zk.login import read_login
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, stop_directory
from spark_replication.zookeeper_server.keeper import Keeper
from tests import waiting

pytestmark = pytest.mark.live

DEADLINE_S = 60.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "zookeeper"
    stop_directory(tmp_path / "zookeeper")


def command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "spark_replication", "zookeeper", f"--directory={directory}", *arguments]


def ran(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(directory, *arguments), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def status(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ran(directory, "status", "--format=json").stdout)
    return found


def eventually(holds: Callable[[], bool], what: str) -> None:
    waiting.eventually(holds, what, DEADLINE_S)


def test_in_the_foreground_it_guards_its_server_and_ctrl_c_ends_both(directory: Path) -> None:
    with subprocess.Popen(command(directory), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = [running.stdout.readline() for _ in range(4)]
        found = EmbeddedZooKeeper.found_in(directory)
        assert found is not None
        assert found.address in said[0]
        assert f"--set zookeeper.connect={found.address}\n" in said[1]
        assert f"zk://{found.address}/spark_replication\n" in said[2]
        assert said[3] == "Ctrl-C ends it\n"
        Session.connect(found.address, "/x", session_timeout_ms=4_000, request_timeout_ms=10_000).close()

        refused = ran(directory)
        assert refused.returncode == 1
        assert f"runs in {directory} already, at {found.address}" in refused.stderr

        refused = ran(directory, "stop")
        assert refused.returncode == 1
        assert f"the ZooKeeper in {directory} is in use" in refused.stderr

        (killed,) = found.pids
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: found.pids not in ([], [killed]), "a killed server is started again")
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 0
    assert found.pids == []


def test_with_a_login_nobody_else_writes_there(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.touch(mode=0o600)
    file.write_text("ours:a long password")
    started = ran(directory, "--detach", f"--auth-file={file}")
    assert started.returncode == 0, started.stderr
    found = EmbeddedZooKeeper.found_in(directory)
    assert found is not None
    tls = directory / "tls"
    named = {
        "zookeeper.tls.ca.file": tls / "ca.pem",
        "zookeeper.tls.certificate.file": tls / "client.pem",
        "zookeeper.tls.key.file": tls / "client.key",
    }
    over_tls = "".join(f" --set {name}={path}" for name, path in named.items())
    assert f"--set zookeeper.connect={found.address} --set zookeeper.auth.file={file}{over_tls}\n" in started.stdout
    assert f"zk://{found.address}/spark_replication{over_tls}\n" in started.stdout
    given = {"zookeeper.auth.file": str(file), **{name: str(path) for name, path in named.items()}}
    ours = read_login(settings_from(given))
    Session.connect(found.address, "/x", session_timeout_ms=4_000, request_timeout_ms=10_000, login=ours).close()
    with pytest.raises(BrokerNotAvailable):
        Session.connect(found.address, "/x", session_timeout_ms=4_000, request_timeout_ms=1_000)
    assert [each["mode"] for each in status(directory)] == ["standalone"]
    refused = ran(directory, "--detach", f"--auth-file={tmp_path / 'nothing'}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "zookeeper.auth.file" in refused.stderr


def test_ctrl_c_leaves_it_to_a_cluster_that_uses_it(directory: Path) -> None:
    with subprocess.Popen(command(directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert [running.stdout.readline() for _ in range(4)][-1] == "Ctrl-C ends it\n"
        cluster = Keeper.start(directory, DEADLINE_S)
        pids = cluster.pids
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 0
        assert "it runs on: a cluster uses the ZooKeeper in" in running.stderr.read()
    assert cluster.pids == pids
    assert cluster.stop()
    assert cluster.pids == []


def test_detached_it_outlives_the_command_and_the_next_one_starts_what_is_dead(directory: Path) -> None:
    first = ran(directory, "--servers=3", "--detach")
    assert (first.returncode, first.stderr) == (0, "")
    servers = status(directory)
    assert sorted(server["mode"] for server in servers) == ["follower", "follower", "leader"]
    assert ",".join(server["address"] for server in servers) in first.stdout
    os.kill(servers[0]["pid"], signal.SIGKILL)
    eventually(lambda: status(directory)[0]["pid"] is None, "one is dead")
    assert ran(directory, "--detach").stdout == first.stdout, "three again, without being told so"
    again = status(directory)
    assert [server["pid"] for server in again[1:]] == [server["pid"] for server in servers[1:]]
    assert again[0]["mode"] is not None
    assert ran(directory, "stop").returncode == 0
    assert {server["pid"] for server in status(directory)} == {None}
