"""The main job as `make run` starts it: what it prints is true, and Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import spark_replication as sr
from spark_replication.live.guarding.broker_file import read_broker_file
from spark_replication.model import DirectoryIdentity
from spark_replication.process.stop_signals import INTERRUPTED
from spark_replication.spark.cluster_file import ClusterFile, read_cluster_file
from spark_replication.storage.directory.broker_directory import write_identity
from tests.live.spark.waiting import left_behind, wait_for
from tests.live.tables.guarded_writers import writer_of
from tests.unit.page.viewer import Viewer
from tests.unit.transport.test_security import token_settings

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
STOP_TIMEOUT_S = 90.0
REFUSED_TIMEOUT_S = 120.0
COMING_IN = re.compile(r"healthy \| .* \| in: [\d,]+ rows/s, [\d.]+ KiB/s; slowest follower [\d,]+ rows behind")
EVENT = r"event \| [\d:]+ .*{}.*, because .*{}.* \(cause 1\.\d+\)"


def command_line(*arguments: str) -> str:
    command = [sys.executable, "-m", "spark_replication", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def address_of_broker(data: Path) -> str:
    found = read_broker_file(data / "logs" / "broker-1")
    assert found is not None
    return f"{found.host}:{found.port}"


def test_the_main_job_serves_what_it_prints_and_ctrl_c_ends_everything(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "job.log"
    with log.open("wb") as output:
        command = [sys.executable, "jobs/start_cluster.py", "--set", f"data.dir={data}"]
        job = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:

        def ready() -> ClusterFile | None:
            assert job.poll() is None, log.read_text()
            return read_cluster_file(data)

        cluster = wait_for("the cluster", ready, 180)

        def rows() -> list[dict[str, int]]:
            listed = json.loads(command_line("topics", "--bootstrap", cluster.zookeeper, "--format", "json"))
            if not listed:
                return []
            shown = command_line("consume", "orders", "-p", "0", "-b", address_of_broker(data), "--format", "json")
            return list(json.loads(shown))

        found = wait_for("the load's first rows", rows)
        assert [row["_offset"] for row in found] == list(range(len(found)))
        partitions = json.loads(command_line("partitions", "-b", cluster.zookeeper, "--format", "json"))
        assert [(row["topic"], row["partition"]) for row in partitions] == [("orders", number) for number in range(3)]
        assert {tuple(sorted(row["replicas"])) for row in partitions} == {(1, 2, 3)}
        brokers = json.loads(command_line("brokers", "-b", cluster.zookeeper, "--format", "json"))
        assert [row["id"] for row in brokers] == [1, 2, 3]
        shown = json.loads(command_line("settings", "show", "-b", cluster.zookeeper, "--format", "json"))
        processes = ("controller", "broker 1", "broker 2", "broker 3")
        of_data = {row["process"]: (row["value"], row["from"]) for row in shown if row["setting"] == "data.dir"}
        assert of_data == dict.fromkeys(processes, (str(data), "--set"))
        command_line("debug", "bundle", "-b", cluster.zookeeper, str(tmp_path / "it.tar.gz"))
        with tarfile.open(tmp_path / "it.tar.gz") as archive:
            logs = {name.partition("/data/")[2] for name in archive.getnames()}
            (missing,) = (each for each in archive.getmembers() if each.name.endswith("/errors.txt"))
        assert {"driver.log", "zookeeper/log", *(f"logs/broker-{number}/broker.log" for number in (1, 2, 3))} <= logs
        assert {f"logs/guardian-{number}.log" for number in range(3)} <= logs
        assert missing.size == 0, "the logs of all processes are in it"
        page = next(line.split()[1] for line in log.read_text().splitlines() if line.startswith("page "))
        assert Viewer(page).ask("/readyz").status == 200
        with sr.connect(cluster.zookeeper) as connected:
            assert connected.page == page
        for broker in (1, 2, 3):
            wait_for(f"the writer of tables beside broker {broker}", writer_of(data, broker).pid)
        # A second driver in the same directory stands by; when it is told to end, it takes nothing along.
        theirs = set(left_behind(data))
        with (tmp_path / "standby.log").open("wb") as output:
            standby = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        wait_for("the second driver", lambda: "standing by" in (tmp_path / "standby.log").read_text())
        os.killpg(standby.pid, signal.SIGINT)  # a terminal's goes to all of its processes
        assert standby.wait(STOP_TIMEOUT_S) == INTERRUPTED, (tmp_path / "standby.log").read_text()
        wait_for("its processes to end", lambda: set(left_behind(data)) <= theirs)
        again = json.loads(command_line("brokers", "-b", cluster.zookeeper, "--format", "json"))
        assert again == brokers
        assert read_cluster_file(data) == cluster
        wait_for("the status", lambda: "healthy | controller epoch 1 | 3 brokers" in log.read_text())
        wait_for("what comes in", lambda: COMING_IN.search(log.read_text()))
        assert len(re.findall(EVENT.format("created orders", "create topic orders"), log.read_text())) == 1
        serving = read_broker_file(data / "logs" / "broker-2")
        assert serving is not None
        os.kill(serving.pid, signal.SIGKILL)
        wait_for("its death", lambda: re.search(EVENT.format("gone broker 2", "broker 2"), log.read_text()))
        job.send_signal(signal.SIGINT)
        assert job.wait(STOP_TIMEOUT_S) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
        assert not left_behind(data)
        assert read_cluster_file(data) is None
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()


def refused(*options: str, environment: Mapping[str, str] = {}) -> str:
    """What it says on standard error: one sentence, whatever Spark says of itself."""
    command = [sys.executable, "jobs/start_cluster.py", *options]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=REFUSED_TIMEOUT_S,
    )
    assert ran.returncode == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    (sentence,) = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert ran.stderr.splitlines()[-1] == sentence
    return sentence


def test_what_is_wrong_is_one_sentence_and_an_exit_code(tmp_path: Path) -> None:
    data = ("--set", f"data.dir={tmp_path / 'data'}")
    unknown = refused(*data, "--set", "min.insync.replica=1")
    assert "unknown setting min.insync.replica: did you mean min.insync.replicas?" in unknown
    assert "'min.insync.replicas' is not NAME=VALUE" in refused(*data, "--set", "min.insync.replicas")
    assert "min.insync.replicas" in refused(*data, "--set", "min.insync.replicas=two")
    missing = refused(*data, "--config", str(tmp_path / "none.toml"))
    assert "none.toml cannot be read: No such file or directory" in missing
    (tmp_path / "file").touch()
    assert f"data.dir {tmp_path}/file cannot be used: File exists" in refused("--set", f"data.dir={tmp_path}/file")
    assert "data.dir /proc/1/data cannot be used: " in refused("--set", "data.dir=/proc/1/data")
    without_java = refused(*data, environment={"JAVA_HOME": str(tmp_path)})
    assert f"Spark needs Java, and there is none in {tmp_path}: install Java 17" in without_java


def test_what_is_wrong_with_spark_or_zookeeper_is_one_sentence(tmp_path: Path) -> None:
    data = ("--set", f"data.dir={tmp_path / 'data'}")
    silent = refused(*data, "--set", "zookeeper.connect=127.0.0.1:1", "--set", "request.timeout.ms=500")
    assert "no ZooKeeper answers at 127.0.0.1:1" in silent
    token = [part for name, value in token_settings(tmp_path).items() for part in ("--set", f"{name}={value}")]
    open_door = refused(*data, *token, "--set", "zookeeper.connect=127.0.0.1:1")
    assert "the ZooKeeper at 127.0.0.1:1" in open_door
    assert "set zookeeper.auth.file, or zookeeper.unprotected=true" in open_door
    waived = ("--set", "zookeeper.connect=127.0.0.1:1", "--set", "zookeeper.unprotected=true")
    assert "set security.broker.token.file, a file that no client has" in refused(*data, *token, *waived)
    few = refused(*data, "--master", "local[2]")
    assert (
        "local[2] has 2 slots, and 3 guardians need 3, with one more for each task of other jobs: use local[4]" in few
    )
    # Brokers that another ZooKeeper knows: theirs are not taken, and ours would never start.
    brokers = tmp_path / "data" / "logs" / "broker-1"
    brokers.mkdir(parents=True)
    write_identity(brokers, DirectoryIdentity(cluster_id="another", broker_id=1))
    taken = refused(*data)
    assert f"{brokers} belongs to a broker of cluster another, and the ZooKeeper at 127.0.0.1:" in taken
    assert "has none yet: choose another data.dir or log.dir" in taken
    assert not left_behind(tmp_path / "data")
