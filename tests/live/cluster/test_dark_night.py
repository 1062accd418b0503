"""What each of the main commands says, and how soon, when something of the cluster is dead, or its address is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.process.processes import LockedProcess
from tests.live.cluster.faults import held_down, kill
from tests.printed import printed
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

CONFIG = {"zookeeper.session.ms": 3_000}
TOPIC = "dark"
#: Of a command that promises 3 s for its search, with its start, on a machine that others use. Without that bound it
#: would take 30 s.
ALLOWED_S = 25.0

COMMANDS: dict[str, tuple[str, ...]] = {
    "health": ("health",),
    "topics": ("topics",),
    "describe": ("topics", "describe", TOPIC),
    "consume": ("consume", TOPIC),
    "produce": ("produce", TOPIC),
}
ROW = '{"id": 1}\n'


class Said(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float


def said(bootstrap: str, *command: str, given: str = ROW) -> Said:
    began_s = time.monotonic()
    arguments = [sys.executable, "-m", "spark_replication", *command]
    environment = {**os.environ, "SPARK_REPLICATION_BOOTSTRAP": bootstrap}
    ran = subprocess.run(
        arguments, env=environment, input=given, capture_output=True, text=True, timeout=120, check=False
    )
    return Said(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - began_s)


def tell(bootstrap: str, expected: Mapping[str, tuple[int, str]], *, together: int = 1) -> None:
    """Run each command, print how long it took, and compare its exit code and what it says. together: how many of them
    at a time, where they only wait."""
    with ThreadPoolExecutor(together) as pool:
        ran = list(pool.map(lambda name: said(bootstrap, *COMMANDS[name]), expected))
    wrong = []
    for (name, (code, sentence)), found in zip(expected.items(), ran, strict=True):
        line = f"{bootstrap:60} {name:9} exit {found.code} after {found.seconds:4.1f} s: {found.err.strip()[:300]}"
        sys.stdout.write(f"{line}\n")
        if found.code != code or sentence not in found.out + found.err or found.seconds > ALLOWED_S:
            wrong.append((name, found))
        assert "Traceback" not in found.err
    assert not wrong


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3, config=CONFIG) as started:
        started.admin.create_topic(TOPIC, pa.schema([("id", pa.int64())]), partitions=2, replication_factor=3)
        yield started


@contextmanager
def no_brokers(cluster: sr.LocalCluster) -> Iterator[None]:
    with ExitStack() as held:
        for broker in (1, 2, 3):
            held.enter_context(held_down(cluster, broker))
        eventually(lambda: health(cluster)["brokers"] == 0, "the controller knows that every broker is dead")
        eventually(lambda: not tables(cluster), "the tables say so, too")
        yield
    cluster.wait_healthy()


def health(cluster: sr.LocalCluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(cluster.zookeeper, "health", "--format=json").out)
    return found


def tables(cluster: sr.LocalCluster) -> list[Any]:
    from spark_replication.mirror.asking.load import read_table

    return list(read_table("brokers", cluster.mirror_path).to_pylist())


@contextmanager
def no_controller(cluster: sr.LocalCluster) -> Iterator[None]:
    """Killed, and kept from starting again: somebody else has its lock."""
    process = LockedProcess(cluster.directory / "controller")
    with ExitStack() as held:

        def is_held() -> bool:
            if (pid := cluster.controller_pid) is not None:
                kill(pid)
            return held.enter_context(process.locked()) is not None

        eventually(is_held, "the controller is kept from starting")
        eventually(lambda: health(cluster)["controller"] is None, "brokers know of no controller")
        yield
    cluster.wait_healthy()


@contextmanager
def no_zookeeper(cluster: sr.LocalCluster) -> Iterator[None]:
    cluster.kill_zookeeper()
    try:
        yield
    finally:
        cluster.restart_zookeeper()
        cluster.wait_healthy()


NOBODY = " cannot be reached: no broker of "
ALL_DEAD = {
    "health": (2, "3 of 3 brokers are dead: 1, 2, 3"),
    "topics": (0, TOPIC),
    "describe": (0, "1, 2, 3"),
    "consume": (1, NOBODY),
    "produce": (1, NOBODY),
}
SERVED = {
    "topics": (0, TOPIC),
    "describe": (0, "1, 2, 3"),
    "consume": (0, "offset"),
    "produce": (0, "batches"),
}


def test_all_brokers_are_dead_and_the_controller_lives(cluster: sr.LocalCluster, tmp_path: Path) -> None:
    with no_brokers(cluster):
        tell(cluster.zookeeper, ALL_DEAD)
        tell(f"delta:{cluster.mirror_path}", ALL_DEAD)
        found = health(cluster)
        (incident,) = found["incidents"]
        assert incident["severity"] == "critical"
        assert [(each["what"], each["count"]) for each in incident["consequences"]] == [("without a leader", 2)]
        (command,) = incident["mends"][0]["commands"]
        ran = said(cluster.zookeeper, *command.split()[1:], str(tmp_path / "bundle.tar.gz"))
        assert (command, ran.code) == ("spark-replication debug bundle", 0), ran
        assert len(found["reasons"]) > 1, "programs still get each reason by itself"


def test_the_controller_is_dead_and_brokers_live(cluster: sr.LocalCluster) -> None:
    with no_controller(cluster):
        told = {"health": (2, "no controller commands"), **SERVED}
        for bootstrap in (cluster.zookeeper, cluster.bootstrap, f"delta:{cluster.mirror_path}"):
            tell(bootstrap, told)


def test_zookeeper_is_dead(cluster: sr.LocalCluster) -> None:
    with no_zookeeper(cluster):
        silent = "has had no connection to ZooKeeper"
        eventually(lambda: silent in said(cluster.bootstrap, "health").out, "the controller says that it is away")
        tell(cluster.bootstrap, {"health": (2, silent), **SERVED})
        tell(f"delta:{cluster.mirror_path}", SERVED)
        away = {name: (2 if name == "health" else 1, "error: CLUSTER_NOT_FOUND: ") for name in COMMANDS}
        tell(cluster.zookeeper, away, together=len(away))


WRONG: dict[str, Callable[[sr.LocalCluster], str]] = {
    "port": lambda _cluster: "127.0.0.1:1",
    "port of ZooKeeper": lambda _cluster: "zk://127.0.0.1:1/spark_replication",
    "chroot": lambda cluster: f"{cluster.zookeeper}-of-nobody",
    "path": lambda cluster: f"delta:{cluster.directory}/nowhere",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_address_is_told_soon(cluster: sr.LocalCluster, what: str) -> None:
    bootstrap = WRONG[what](cluster)
    tell(
        bootstrap,
        {
            name: (2 if name == "health" else 1, f"error: CLUSTER_NOT_FOUND: nobody has answered at '{bootstrap}'")
            for name in COMMANDS
        },
        together=len(COMMANDS),
    )


def test_what_mends_dead_brokers_can_be_run_as_it_is_printed(
    cluster: sr.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster.admin.create_topic("only", pa.schema([("id", pa.int64())]), partitions=1, replication_factor=1)
    cluster.admin.create_topic("pair", pa.schema([("id", pa.int64())]), partitions=1, replication_factor=2)
    cluster.admin.reassign({"only-0": [3], "pair-0": [3, 2]})
    cluster.admin.wait_reassigned(["only-0", "pair-0"], 60)
    with held_down(cluster, 3):
        eventually(lambda: is_alone(health(cluster), "1 of 3 brokers is dead: 3"), "health names one cause")
        (incident,) = health(cluster)["incidents"]
        commands = [command for mend in incident["mends"] for command in mend["commands"]]
        assert [command.split()[1:3] for command in commands] == [
            ["debug", "bundle"],
            ["reassign", "plan"],
            ["reassign", "apply"],
            ["leader", "elect"],
        ], "the topic of three replicas stays: two brokers have no place for them"
        for command in commands:
            asks = ["--yes"] if "leader elect" in command else []
            ran = said(cluster.zookeeper, *command.split()[1:], *asks)
            assert ran.code == 0, (command, ran)
        eventually(lambda: not health(cluster)["leaderless"], "others lead")
        told, lossy = health(cluster)["incidents"]
        assert [each["subjects"][0].split("-")[0] for each in told["consequences"]] == [TOPIC]
        assert "only-0 may have lost" in lossy["what"]
        (acknowledge,) = lossy["mends"][0]["commands"]
        assert said(cluster.zookeeper, *acknowledge.split()[1:]).code == 0
        assert len(health(cluster)["incidents"]) == 1
    cluster.wait_healthy()


def test_a_partition_of_which_nothing_is_left_begins_anew_as_the_guide_prints(
    cluster: sr.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    admin = cluster.admin
    admin.create_topic("orders", pa.schema([("id", pa.int64())]), partitions=4, replication_factor=1)
    admin.reassign({"orders-3": [3]})
    admin.wait_reassigned(["orders-3"], 60)
    with held_down(cluster, 3):
        eventually(lambda: "orders-3" in said(cluster.zookeeper, "health").out, "nobody leads it")
        for line in printed("operate", "spark-replication reassign plan orders-3=1,2"):
            ran = said(cluster.zookeeper, *line.split()[1:], given="y\n")
            assert ran.code == 0, (line, ran)
        admin.wait_reassigned(["orders-3"], 60)  # the dead one goes once both others are in sync
        (topic,) = admin.describe_topics(["orders"])
        found = topic.partitions[3]
        assert (found.replicas, found.leader in (1, 2)) == ((1, 2), True)
        written = said(cluster.zookeeper, "produce", "orders", "-p", "3")
        assert written.code == 0, written
    admin.delete_topic("orders")
    cluster.wait_healthy()


def is_alone(found: dict[str, Any], cause: str) -> bool:
    return [each["what"] for each in found["incidents"]] == [cause] and found["leaderless"] > 0
