"""Settings in force, as each process tells them, and a debug bundle, from a folder that is nobody's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.finding.settings_file import given_settings
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("id", pa.int64())])
VARIABLE = "SPARK_REPLICATION_SEGMENT_BYTES"
FILE = """
zookeeper.session.ms = 3000
min.insync.replicas = 1
segment.bytes = 1000000
segment.ms = 1000000
retention.ms = 1000000
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sr.LocalCluster]:
    """Started with a file, an environment and a --set, each over the one before."""
    file = tmp_path_factory.mktemp("settings") / "own.toml"
    file.write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "2000000")
        given = given_settings(file, {"segment.ms": 3_000_000})
    with sr.LocalCluster.start(brokers=2, config=given) as started:
        yield started


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(cluster: sr.LocalCluster, *words: str) -> str:
    environment = {**os.environ, "SPARK_REPLICATION_BOOTSTRAP": cluster.zookeeper}
    command = [sys.executable, "-m", "spark_replication", *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
    return ran.stdout


def in_force(cluster: sr.LocalCluster, *words: str) -> dict[str, dict[str, tuple[Any, str]]]:
    """What each process has in force: its settings, each with its value and whence that comes."""
    found: dict[str, dict[str, tuple[Any, str]]] = {}
    for row in json.loads(run(cluster, "settings", "show", "--format=json", *words)):
        found.setdefault(row["process"], {})[row["setting"]] = (row["value"], row["from"])
    return found


PROCESSES = ("controller", "broker 1", "broker 2")


def of_all(cluster: sr.LocalCluster, name: str, *words: str) -> set[tuple[Any, str]]:
    told = in_force(cluster, "--all", *words)
    return {told[process][name] for process in PROCESSES}


def test_each_process_tells_what_it_has_in_force_after_every_kind_of_change(
    cluster: sr.LocalCluster, elsewhere: Path
) -> None:
    told = in_force(cluster)
    assert told.keys() == {*PROCESSES}
    for process in PROCESSES:
        origin = told[process]["retention.ms"][1]
        assert origin.startswith("file /")
        assert origin.endswith("/own.toml")
        assert {name: told[process][name] for name in ("retention.ms", "segment.bytes", "segment.ms")} == {
            "retention.ms": (1_000_000, origin),
            "segment.bytes": (2_000_000, f"environment {VARIABLE}"),
            "segment.ms": (3_000_000, "--set"),
        }
        assert "compression" not in told[process]
    assert of_all(cluster, "compression") == {("none", "default")}

    cluster.admin.create_topic("orders", SCHEMA, partitions=2, replication_factor=2)
    run(cluster, "settings", "set", "retention.ms=4000000", "compression=lz4")
    run(cluster, "topics", "configure", "orders", "retention.ms=5000000")
    eventually(lambda: of_all(cluster, "retention.ms") == {(4_000_000, "cluster")}, "all have the cluster's in force")
    assert of_all(cluster, "compression") == {("lz4", "cluster")}
    eventually(
        lambda: of_all(cluster, "retention.ms", "--topic", "orders") == {(5_000_000, "topic")}, "and the topic's"
    )
    assert of_all(cluster, "compression", "--topic", "orders") == {("lz4", "cluster")}
    assert in_force(cluster, "--of", "cluster") == {
        "cluster": {"retention.ms": (4_000_000, "cluster"), "compression": ("lz4", "cluster")}
    }
    described = run(cluster, "topics", "describe", "orders")
    assert "retention.ms=5000000  (topic)" in described
    assert "compression=lz4  (cluster)" in described
    assert f"segment.bytes=2000000  (environment {VARIABLE})" in described

    run(cluster, "settings", "set", "retention.ms=", "compression=")
    run(cluster, "topics", "configure", "orders", "retention.ms=")
    eventually(lambda: {value for value, _from in of_all(cluster, "retention.ms")} == {1_000_000}, "the file's again")
    eventually(
        lambda: {value for value, _from in of_all(cluster, "retention.ms", "--topic", "orders")} == {1_000_000},
        "for the topic, too",
    )


def test_a_broker_that_is_started_again_has_in_force_what_the_cluster_has_set(
    cluster: sr.LocalCluster, elsewhere: Path
) -> None:
    run(cluster, "settings", "set", "compression=zstd")
    cluster.kill_broker(2)
    cluster.restart_broker(2)
    cluster.wait_healthy()
    eventually(lambda: of_all(cluster, "compression") == {("zstd", "cluster")}, "all have the cluster's in force")
    assert of_all(cluster, "segment.ms") == {(3_000_000, "--set")}
    run(cluster, "settings", "set", "compression=")


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        return {name.partition("/")[2]: file.read() for name, file in found.items() if file is not None}


def test_a_debug_bundle_from_another_folder_has_the_logs_of_all_and_the_clusters_own_settings(
    cluster: sr.LocalCluster, elsewhere: Path
) -> None:
    """Though one broker is dead, and nobody gives the command the cluster's file of settings."""
    run(cluster, "settings", "set", "log.retention.check.interval.ms=5000")
    cluster.kill_broker(2)
    eventually(lambda: [each.id for each in cluster.admin.describe_cluster().brokers] == [1], "its end is known")
    try:
        target = run(cluster, "debug", "bundle").strip()
    finally:
        cluster.restart_broker(2)
        cluster.wait_healthy()
    found = contents(elsewhere / target)
    logs = {"controller/log", "controller/page.log", "zookeeper/log"}
    logs |= {f"logs/broker-{broker}/broker.log" for broker in (1, 2)}
    assert {f"data/{name}" for name in logs} <= found.keys()
    assert b"registered" in found["data/logs/broker-2/broker.log"]
    assert json.loads(found["settings/cluster.json"]) == {"log.retention.check.interval.ms": 5000}
    controllers = json.loads(found["settings/controller.json"])
    assert controllers["segment.ms"] == {"value": 3_000_000, "from": "--set"}
    assert json.loads(found["settings/broker-1.json"])["segment.ms"] == controllers["segment.ms"]
    # Its guardian is a thread of this program.
    assert f"log of the guardian of broker-1: process {os.getpid()} writes it" in found["errors.txt"].decode()
    assert not [name for name in found if name.endswith("login")]
