"""`spark-replication debug bundle`: all that can be had, whatever cannot, and no secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from spark_replication.admin import debug_bundle
from spark_replication.transport.token import CLIENT
from spark_replication.transport.tokens import read_tokens
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
        "logs/broker-1/broker.log": "broker",
        "logs/broker-1/lease.json": "{}",
        "logs/broker-1/orders-0.id/00000000000000000000.arrows": "records",
        "token": "swordfish-of-this-cluster",
    }.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
    return found


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        return {name.partition("/")[2]: file.read() for name, file in found.items() if file is not None}


def test_it_has_the_state_and_the_logs_and_no_secret(
    run: Run, cluster: FakeCluster, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug_bundle, "LOG_BYTES_MAX", 10)
    (data / "token").chmod(0o600)
    cluster.tokens = read_tokens("security.token.file", str(data / "token"), CLIENT)
    target = tmp_path / "it.tar.gz"
    mode = ("--set", "security.mode=token", "--set", f"security.token.file={data / 'token'}")
    ran = run("debug", "bundle", "-b", cluster.bootstrap, "--set", f"data.dir={data}", *mode, target)
    assert (ran.exit, ran.out) == (0, f"{target}\n")
    found = contents(target)
    assert set(found) == {
        *("versions.json", "settings.json", "health.json", "cluster.json", "topics.json", "replicas.json"),
        *("reassignments.json", "events.json", "errors.txt", "metrics/controller.txt"),
        *(
            "metrics/broker-1.txt",
            "metrics/broker-2.txt",
            "data/driver.log",
            "data/driver.log.1",
            "data/controller/log",
        ),
        *("data/zookeeper/log", "data/logs/broker-1/broker.log", "data/logs/broker-1/lease.json"),
    }
    assert found["data/controller/log"] == b"c" * 10
    assert json.loads(found["settings.json"])["security.token.file"] == "(set)"
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
