"""`spark-replication debug bundle`: all that can be had, whatever cannot, and no secret."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spark_replication.admin import process_logs
from spark_replication.live.guarding.broker_file import BrokerFile, write_broker_file
from spark_replication.messages.observing import DescribeSettings, SettingInForce, ToldSettings
from spark_replication.storage.directory.broker_directory import boot_id
from spark_replication.transport.proofs.token import CLIENT
from spark_replication.transport.proofs.tokens import read_tokens
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with logs, and records that are nobody's business."""
    found = tmp_path / "data"
    for name, text in {
        "driver.log": "driver",
        "driver.log.1": "before",
        "controller/log": "c" * 100,
        "zookeeper/log": "zookeeper",
        "zookeeper/log.1": "zookeeper before",
        "zookeeper/login": "user:swordfish-of-zookeeper",
        "zookeeper/server-2/log": "one of three",
        "logs/guardian-0.log": "guardian",
        "logs/guardian-0.log.1": "guardian before",
        "logs/broker-1/broker.log": "broker",
        "logs/broker-1/lease.json": "{}",
        "logs/broker-2/broker.log": "another",
        "logs/broker-1/orders-0.id/00000000000000000000.arrows": "records",
        "token": "swordfish-of-this-cluster",
    }.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
    return found


def telling(
    brokers: dict[int, Path], controller: Path, boots: Mapping[int, str] = {}
) -> Callable[[int, DescribeSettings], ToldSettings]:
    """What processes tell that write there: broker 1's server is the controller's, too, which is asked first."""
    asked: list[int] = []

    def told(broker: int, _asked: DescribeSettings) -> ToldSettings:
        asked.append(broker)
        directory = controller if asked == [1] else brokers[broker]
        own = SettingInForce(name="retention.ms", value=broker, origin="cluster")
        boot = boot_id() if asked == [1] else boots.get(broker, boot_id())
        return ToldSettings(settings=(own,), of_cluster={"flush": "always"}, directory=str(directory), boot_id=boot)

    return told


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        return {name.partition("/")[2]: file.read() for name, file in found.items() if file is not None}


def test_it_has_the_state_and_the_logs_and_no_secret(
    run: Run, cluster: FakeCluster, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_logs, "LOG_BYTES_MAX", 10)
    cluster.settings = telling({1: data / "logs/broker-1", 2: data / "logs/broker-2"}, data / "controller")
    (data / "token").chmod(0o600)
    cluster.tokens = read_tokens("security.token.file", str(data / "token"), CLIENT)
    target = tmp_path / "it.tar.gz"
    mode = ("--set", "security.mode=token", "--set", f"security.token.file={data / 'token'}")
    ran = run("debug", "bundle", "-b", cluster.bootstrap, *mode, target)
    assert (ran.exit, ran.out) == (0, f"{target}\n")
    found = contents(target)
    assert set(found) == {
        *(
            "versions.json",
            "settings/cluster.json",
            "settings/this-command.json",
            "health.json",
            "cluster.json",
            "topics.json",
            "replicas.json",
        ),
        *("settings/controller.json", "settings/broker-1.json", "settings/broker-2.json"),
        *("reassignments.json", "events.json", "errors.txt", "metrics/controller.txt"),
        *(
            "metrics/broker-1.txt",
            "metrics/broker-2.txt",
            "data/driver.log",
            "data/driver.log.1",
            "data/controller/log",
        ),
        *("data/zookeeper/log", "data/zookeeper/log.1", "data/zookeeper/server-2/log"),
        *("data/logs/broker-1/broker.log", "data/logs/broker-1/lease.json"),
        *("data/logs/broker-2/broker.log", "data/logs/guardian-0.log", "data/logs/guardian-0.log.1"),
    }
    assert found["data/controller/log"] == b"c" * 10
    assert json.loads(found["settings/this-command.json"])["security.token.file"] == "(set)"
    assert json.loads(found["settings/cluster.json"]) == {"flush": "always"}
    assert json.loads(found["settings/broker-2.json"]) == {"retention.ms": {"value": 2, "from": "cluster"}}
    assert json.loads(found["topics.json"])[0]["name"] == "orders"
    assert json.loads(found["health.json"])["verdict"] == "healthy"
    assert found["errors.txt"] == b""
    assert not any(b"swordfish" in data or b"records" in data for data in found.values())


def test_of_a_cluster_that_does_not_answer_it_has_the_rest(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_replication.admin.cli.debug_command.DEADLINE_MS", 100)
    monkeypatch.chdir(tmp_path)
    ran = run("debug", "bundle", "-b", "127.0.0.1:1", "--set", f"data.dir={data}")
    assert ran.exit == 0
    found = contents(tmp_path / ran.out.strip())
    assert found["data/driver.log"] == b"driver"
    assert b"health.json: BROKER_NOT_AVAILABLE" in found["errors.txt"]


def test_what_is_there_is_not_written_over(run: Run, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "it.tar.gz"
    target.write_text("mine")
    ran = run("debug", "bundle", "-b", "127.0.0.1:1", "--set", f"data.dir={data}", target)
    assert (ran.exit, target.read_text()) == (1, "mine")
    assert "cannot be written: File exists" in ran.err


def bundled(run: Run, cluster: FakeCluster, target: Path, *words: str) -> tuple[set[str], list[str]]:
    """The logs that are in it, and the lines about what is not."""
    ran = run("debug", "bundle", "-b", cluster.bootstrap, *words, target)
    assert ran.exit == 0
    found = contents(target)
    missing = found["errors.txt"].decode().splitlines()
    assert ran.err.splitlines()[-len(missing) :] == [f"error: {line}" for line in missing]
    return {name for name in found if name.startswith(("data", "logs"))}, missing


def test_of_a_driver_and_of_brokers_whose_logs_are_elsewhere_it_has_all(
    run: Run, cluster: FakeCluster, tmp_path: Path
) -> None:
    """The broker that nobody knows any more, too: it may be what is wrong."""
    brokers_logs = ("logs/broker-1/broker.log", "logs/broker-7/broker.log", "logs/guardian-0.log")
    for name in ("own/driver.log", "own/zookeeper/log", *brokers_logs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    brokers = {1: tmp_path / "logs/broker-1", 2: tmp_path / "logs/broker-2"}
    cluster.settings = telling(brokers, tmp_path / "own", {2: "of another host"})
    logs, missing = bundled(run, cluster, tmp_path / "it.tar.gz")
    assert logs == {"data/driver.log", "data/zookeeper/log", *brokers_logs}
    assert missing == [
        "logs of broker 2: it is on another host, where "
        f"{tmp_path}/logs/broker-2 has them: run `debug bundle` there, too"
    ]


def test_it_says_which_logs_are_not_to_be_seen(run: Run, cluster: FakeCluster, data: Path, tmp_path: Path) -> None:
    (data / "logs/broker-1").rename(tmp_path / "hidden")
    (data / "logs/broker-1").write_text("no folder")
    (data / "logs/broker-2/broker.log").unlink()
    brokers = {1: data / "logs/broker-1", 2: tmp_path / "nowhere/logs/broker-2"}
    cluster.settings = telling(brokers, tmp_path / "nowhere")
    _logs, missing = bundled(run, cluster, tmp_path / "it.tar.gz")
    told = "\n".join(missing)
    assert f"logs in {tmp_path}/nowhere: No such file or directory. Run it as a user who may" in told
    assert f"logs in {data}/logs/broker-1: Not a directory" in told
    assert f"logs of broker 2: {brokers[2]} is not to be seen from here" in told


@pytest.mark.parametrize("has_own", [True, False])
def test_a_guardian_is_missing_unless_it_has_a_log_of_its_own(
    run: Run, cluster: FakeCluster, data: Path, tmp_path: Path, *, has_own: bool
) -> None:
    """Here this process is the guardian."""
    cluster.settings = telling({1: data / "logs/broker-1", 2: data / "logs/broker-2"}, data / "controller")
    target = tmp_path / "it.tar.gz"
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as broker,  # it ends with this block
        (data / "logs" / ("guardian-0.log" if has_own else "other.log")).open("a"),
    ):
        serving = BrokerFile(pid=broker.pid, incarnation="a", host="h", port=2, replication_port=3, epoch=4)
        write_broker_file(data / "logs/broker-1", serving)
        assert run("debug", "bundle", "-b", cluster.bootstrap, target).exit == 0
    why = f"log of the guardian of broker-1: process {os.getpid()} writes it to its standard error"
    assert (why in contents(target)["errors.txt"].decode()) != has_own


def test_an_earlier_release_does_not_say_where_its_logs_are(
    run: Run, cluster: FakeCluster, data: Path, tmp_path: Path
) -> None:
    logs, missing = bundled(run, cluster, tmp_path / "one.tar.gz", "--set", f"data.dir={data}")
    assert "data/logs/broker-2/broker.log" in logs
    assert {line.partition(":")[0] for line in missing} == {
        *("settings/cluster.json", "settings/controller.json", "settings/broker-1.json", "settings/broker-2.json"),
    }
    logs, missing = bundled(run, cluster, tmp_path / "two.tar.gz", "--set", f"data.dir={tmp_path / 'empty'}")
    assert logs == set()
    unknown = "it did not say where they are (INVALID_REQUEST: no action describe_settings)"
    assert [line for line in missing if line.startswith(f"logs of broker 2: {unknown}")] != []
    assert [line for line in missing if line.startswith("logs of ZooKeeper: ")] != []


def test_a_driver_that_is_no_job_writes_no_log(run: Run, cluster: FakeCluster, data: Path, tmp_path: Path) -> None:
    for name in ("driver.log", "driver.log.1", "controller/log"):
        (data / name).unlink()
    cluster.settings = telling({1: data / "logs/broker-1", 2: data / "logs/broker-2"}, data)
    logs, missing = bundled(run, cluster, tmp_path / "it.tar.gz")
    assert "data/zookeeper/log" in logs
    assert missing == [
        f"logs of controller: {data} has none: a driver that is no job of ours writes to the output of its program"
    ]
