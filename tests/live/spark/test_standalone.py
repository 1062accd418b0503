"""On real Workers: an executor's death costs its guardian, and nobody's records or service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import spark_replication as sr
from spark_replication.spark.cluster import ClusterFile, read_cluster_file
from tests.live.cluster.history import SCHEMA, Load
from tests.live.spark.standalone import Standalone, wait_for

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[3]
BROKERS = 3
START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 90.0


class Running:
    def __init__(self, directory: Path, driver: subprocess.Popen[bytes], spark: Standalone, file: ClusterFile) -> None:
        self.directory = directory
        self.driver = driver
        self.spark = spark
        self.zookeeper = file.zookeeper

    def pids(self) -> dict[int, int]:
        found = {}
        for path in sorted((self.directory / "data" / "logs").glob("broker-*/broker.json")):
            found[int(path.parent.name.removeprefix("broker-"))] = msgspec.json.decode(path.read_bytes())["pid"]
        return found

    def driver_says(self, text: str) -> int:
        return (self.directory / "driver.log").read_text(errors="replace").count(text)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    # One slot more than guardians: the mirror's MERGEs run beside them.
    spark = Standalone(tmp_path, ["127.0.0.1"] * (BROKERS + 1))
    options = ["--no-load", "--master", spark.url, "--set", f"data.dir={tmp_path / 'data'}"]
    with (tmp_path / "driver.log").open("wb") as log:
        command = [sys.executable, "jobs/start_cluster.py", "--config", "conf/local.toml", *options]
        driver = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:

        def ready() -> ClusterFile | None:
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()
            return read_cluster_file(tmp_path / "data")

        running = Running(tmp_path, driver, spark, wait_for("the cluster", ready, START_TIMEOUT_S))
        yield running
        driver.send_signal(signal.SIGINT)
        assert driver.wait(STOP_TIMEOUT_S) == 0, (tmp_path / "driver.log").read_text()
        left = [pid for pid in running.pids().values() if Path(f"/proc/{pid}").exists()]
        assert not left, f"brokers {left} outlived the stop"
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
        spark.stop()


def test_a_killed_executor_stops_no_broker_and_loses_no_record(running: Running) -> None:
    brokers = running.pids()
    assert len(brokers) == BROKERS
    admin = sr.Admin(running.zookeeper)
    admin.create_topic("orders", SCHEMA, partitions=BROKERS)
    with Load(running.zookeeper, "orders", BROKERS) as load:
        load.wait_for_more(50)
        executor = next(iter(running.spark.executors().values()))
        killed_at = time.monotonic()
        os.kill(executor, signal.SIGKILL)
        # Whether a guardian lived in it or not: produce goes on while the fleet gathers again.
        load.wait_for_more(300)
        assert load.longest_wait_s(killed_at) < 5
        assert running.pids() == brokers, "no broker was started anew: they were adopted, or never left"
        # That guardians are back shows in what they do: a broker that dies now is started again.
        broker, pid = next(iter(brokers.items()))
        os.kill(pid, signal.SIGKILL)
        wait_for("the broker to be started again", lambda: running.pids().get(broker, pid) != pid)
        load.wait_for_more(50)
    load.check_history()
    admin.close()
