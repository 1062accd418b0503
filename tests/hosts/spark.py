"""Spark's standalone cluster over the hosts of a bed, and drivers that run a cluster on it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyspark

from spark_replication.live.broker.lease import LEASE_FILE, LeaseFile
from spark_replication.live.guarding.broker_file import BrokerFile, read_broker_file
from spark_replication.process.java import QUICK_START
from spark_replication.spark.cluster_file import ClusterFile, read_cluster_file
from spark_replication.spark.session import kept_classes
from spark_replication.spark.standalone import EXECUTOR, write_settings
from tests.hosts.bed import Bed, Host, Process
from tests.live.spark.waiting import wait_for

MASTER_PORT = 7077
START_S = 120.0
AUTHENTICATED = {"spark.authenticate": "true", "spark.authenticate.secret": "of a bed"}
BROKER = b"spark_replication.live.broker.process"


class HostedSpark:
    """A Master on one host, a Worker on each of others. The Master finds again what it knew when it is restarted."""

    def __init__(self, bed: Bed, master: Host, workers: Sequence[Host], cores: int) -> None:
        self.url = f"spark://{master.address}:{MASTER_PORT}"
        self.workers = list(workers)
        self._bed = bed
        self._master = master
        self._cores = cores
        self._processes: dict[Host, Process] = {}
        settings = {**AUTHENTICATED, "spark.decommission.enabled": "true"}
        self._settings = write_settings(bed.directory / "standalone.conf", settings)
        self.start_master()
        for host in self.workers:
            self.start_worker(host)
        for host in self.workers:
            self.wait_registered(host)

    def start_master(self) -> None:
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._bed.files}/master"
        process = self._run(self._master, "master.Master", "--port", str(MASTER_PORT), SPARK_MASTER_OPTS=recovery)
        wait_for("Spark's Master", lambda: "I have been elected leader" in process.says(), START_S)

    def start_worker(self, host: Host) -> None:
        work = str(self._bed.files / "work")
        self._run(host, "worker.Worker", "--cores", str(self._cores), "--memory", "4g", "--work-dir", work, self.url)

    def wait_registered(self, host: Host) -> None:
        process = self._processes[host]
        wait_for(f"the Worker of {host}", lambda: "Successfully registered" in process.says(), START_S)

    def process(self, host: Host) -> Process:
        """The Worker's there, or the Master's."""
        return self._processes[host]

    def executors(self, host: Host) -> list[int]:
        return [pid for pid, command in host.processes().items() if EXECUTOR in command]

    def kill_executors(self, host: Host) -> None:
        for pid in self.executors(host):
            os.kill(pid, signal.SIGKILL)

    def _run(self, host: Host, main: str, *options: str, **environment: str) -> Process:
        home = Path(pyspark.__file__).parent
        process = host.run(
            str(home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{main}",
            "--host",
            host.address,
            "--webui-port",
            "0",
            "--properties-file",
            str(self._settings),
            *options,
            environment={
                "SPARK_HOME": str(home),
                "SPARK_CONF_DIR": str(self._bed.directory / "no-conf"),
                "SPARK_LOCAL_IP": host.address,
                "SPARK_DAEMON_MEMORY": "512m",
                "PYSPARK_PYTHON": sys.executable,
                "JDK_JAVA_OPTIONS": " ".join((*QUICK_START, *kept_classes())),
                **environment,
            },
        )
        self._processes[host] = process
        return process


class HostedDriver:
    """jobs/start_cluster.py on one host, as often as it is started."""

    def __init__(
        self,
        bed: Bed,
        host: Host,
        master: str,
        *,
        brokers: int,
        settings: Mapping[str, Any],
        spark: Mapping[str, str],
    ) -> None:
        self.host = host
        self._bed = bed
        self._spark = write_settings(bed.directory / f"spark-{host.name}.conf", spark)
        assigned = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self._command = [
            *(sys.executable, "jobs/start_cluster.py", "--no-load", "--brokers", str(brokers), "--master", master),
            *("--set", f"data.dir={bed.files}/data", *assigned),
        ]
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def launch(self) -> None:
        (self.host.files / "data" / "cluster.json").unlink(missing_ok=True)
        environment = {
            "SPARK_CONF_DIR": str(self._bed.directory / "no-conf"),
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {self._spark} pyspark-shell",
            "SPARK_LOCAL_IP": self.host.address,
            "PYSPARK_PYTHON": sys.executable,
        }
        self._process = self.host.run(*self._command, environment=environment)

    def wait_started(self) -> ClusterFile:
        def ready() -> ClusterFile | None:
            assert self.process.returncode is None, self.process.says()
            return read_cluster_file(self.host.files / "data")

        return wait_for(f"the cluster of {self.host}", ready)

    def status(self) -> list[str]:
        """Its lines, the newest last."""
        return [line for line in self.process.says().splitlines() if "| controller epoch" in line]

    def wait_healthy(self) -> None:
        """As its next line of status has it."""
        before = len(self.status())

        def healthy() -> bool:
            lines = self.status()
            return len(lines) > before and lines[-1].startswith("healthy")

        try:
            wait_for("a healthy cluster", healthy, 90.0)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.process.says()[-3_000:]}") from None

    def stop(self) -> None:
        """As Ctrl-C does."""
        self.process.signal(signal.SIGINT)
        assert self.process.wait(90.0) == 0, self.process.says()


class HostedBrokers:
    """What guardians have made on the hosts of a bed."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)

    def directories(self) -> dict[int, tuple[Host, Path]]:
        """By broker. No id is on two hosts."""
        found = [
            (int(path.name.removeprefix("broker-")), host, path)
            for host in self._hosts
            for path in (host.files / "data" / "logs").glob("broker-*")
        ]
        by_broker = {broker: (host, path) for broker, host, path in found}
        assert len(by_broker) == len(found), found
        return by_broker

    def host(self, broker: int) -> Host:
        return self.directories()[broker][0]

    def homes(self) -> set[Host]:
        return {host for host, _ in self.directories().values()}

    def files(self) -> dict[int, BrokerFile]:
        files = {broker: read_broker_file(path) for broker, (_, path) in self.directories().items()}
        return {broker: file for broker, file in files.items() if file is not None}

    def pids(self) -> dict[int, int]:
        """By broker, as this machine sees them: those whose processes live."""
        found = {}
        for host in self._hosts:
            for pid, command in (host.processes() if host.runs else {}).items():
                told = re.search(rb"--broker-id=(\d+)", command)
                if BROKER in command and told is not None:
                    found[int(told[1])] = pid
        return found

    def lease(self, broker: int) -> LeaseFile:
        _, path = self.directories()[broker]
        return msgspec.json.decode((path / LEASE_FILE).read_bytes(), type=LeaseFile)

    def leases(self) -> dict[int, LeaseFile]:
        return {broker: self.lease(broker) for broker in self.directories()}
