"""The main job as a process of its own, in a Spark application of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from spark_replication.live.broker.lease import LEASE_FILE, LeaseFile
from spark_replication.live.guarding.broker_file import BrokerFile, read_broker_file
from spark_replication.spark.cluster_file import ClusterFile, read_cluster_file
from spark_replication.spark.standalone import write_settings
from spark_replication.zookeeper_server.embedded import stop_directory
from tests.live.spark.waiting import wait_for

ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 240.0
# What a cluster with a security mode asks of Spark.
AUTHENTICATED = {"spark.authenticate": "true", "spark.authenticate.secret": "of a test"}
STOP_TIMEOUT_S = 120.0


class Application:
    """jobs/start_cluster.py, as often as it is started. data: another application's, or None = `directory`/data. spark:
    Spark's settings."""

    def __init__(
        self,
        directory: Path,
        master: str,
        *,
        brokers: int = 3,
        data: Path | None = None,
        settings: Mapping[str, str] = {},
        spark: Mapping[str, str] = {},
    ) -> None:
        self.data = data or directory / "data"
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._master = master
        self._brokers = brokers
        self._settings = {"data.dir": str(self.data), **settings}
        self._spark = write_settings(directory / "spark.conf", spark)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def launch(self) -> None:
        self._starts += 1
        assigned = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        options = ["--no-load", "--brokers", str(self._brokers), "--master", self._master]
        given = f"--properties-file {self._spark} pyspark-shell"
        environment = {**os.environ, "SPARK_CONF_DIR": str(self._directory / "no-conf"), "PYSPARK_SUBMIT_ARGS": given}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "jobs/start_cluster.py", *options, *assigned],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def start(self) -> ClusterFile:
        """Running and healthy, or with as many brokers as there are slots."""
        self.launch()
        return self.wait_started()

    def wait_started(self) -> ClusterFile:
        """Once its driver commands, and the cluster is healthy."""

        def ready() -> ClusterFile | None:
            assert self.process.poll() is None, self.says()
            found = read_cluster_file(self.data)
            return found if found is not None and found.driver_pid == self.process.pid else None

        self.found = wait_for("the cluster", ready, START_TIMEOUT_S)
        return self.found

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> Path:
        return self._directory / f"driver-{self._starts}.log"

    def says(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_healthy(self) -> None:
        """As its next line of status has it."""
        before = self.says().count("| controller epoch")

        def healthy() -> bool:
            lines = [line for line in self.says().splitlines() if "| controller epoch" in line]
            return len(lines) > before and lines[-1].startswith("healthy")

        wait_for("a healthy cluster", healthy)

    # What lies in its directories

    def directories(self) -> dict[int, Path]:
        found = (self.data / "logs").glob("broker-*")
        return {int(path.name.removeprefix("broker-")): path for path in sorted(found)}

    def brokers(self) -> dict[int, BrokerFile]:
        files = {broker: read_broker_file(path) for broker, path in self.directories().items()}
        return {broker: file for broker, file in files.items() if file is not None}

    def pids(self) -> dict[int, int]:
        return {broker: file.pid for broker, file in self.brokers().items()}

    def living(self) -> set[int]:
        """The brokers whose processes are there; one that has ended, and that nobody has waited for, is none."""
        return {broker for broker, pid in self.pids().items() if lives(pid)}

    def leases(self) -> dict[int, LeaseFile]:
        """Who guards each broker."""
        return {
            broker: msgspec.json.decode((path / LEASE_FILE).read_bytes(), type=LeaseFile)
            for broker, path in self.directories().items()
        }

    def wait_taken_over(self, before: Mapping[int, LeaseFile]) -> None:
        """Each of these brokers has another guardian than it had."""
        wait_for("the next guardians", lambda: all(self.leases()[broker] != lease for broker, lease in before.items()))

    # The end

    def kill(self) -> None:
        """SIGKILL, to the driver and to its JVM, as a host does that goes."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As Ctrl-C does: a controlled stop of everything."""
        pids = self.pids()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(STOP_TIMEOUT_S) == 0, self.says()
        left = [pid for pid in pids.values() if lives(pid)]
        assert not left, f"brokers {left} outlived the stop"
        assert "nobody expected" not in self.says(), "its controller commands again after such an error"

    def end_driver(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def clean_up(self) -> None:
        """After a failed test, too: nothing of it is left."""
        self.end_driver()
        for file in self.brokers().values():
            if lives(file.pid):
                with suppress(ProcessLookupError):
                    os.kill(file.pid, signal.SIGKILL)
        if (self.data / "zookeeper").exists():
            stop_directory(self.data / "zookeeper")


def clean_up(*applications: Application) -> None:
    """Of one cluster. All drivers end first: one that lives starts again what is ended for another."""
    for application in applications:
        application.end_driver()
    for application in applications:
        application.clean_up()


def lives(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
