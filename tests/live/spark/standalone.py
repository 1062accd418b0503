"""A standalone Spark cluster of real Master and Worker processes, from pyspark's own scripts, on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyspark

TIMEOUT_S = 180.0
POLL_S = 0.1
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # many short-lived JVMs share a machine

T = TypeVar("T")


def wait_for(what: str, found: Callable[[], T | None], timeout_s: float = TIMEOUT_S) -> T:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(POLL_S)
    raise AssertionError(f"{what}: not within {timeout_s} s")


def children(*parents: int) -> list[tuple[int, bytes]]:
    """The processes that these have started, and their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent in parents:
            found.append((int(path.name), command))
    return sorted(found)


class Standalone:
    """hosts: loopback addresses, one for each one-core Worker."""

    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts = list(hosts)
        try:
            self._start("master", "master.Master", "127.0.0.1", "--port", "0")
            self.url = wait_for("the master", self._url)
            for number in range(len(hosts)):
                self.start_worker(number)
            for number in range(len(hosts)):
                wait_for(f"worker {number}", partial(self._says, f"worker-{number}", "Successfully registered"))
        except BaseException:
            self.stop()
            raise

    def start_worker(self, number: int) -> None:
        """Again, too, where it was."""
        name = f"worker-{number}"
        options = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / name), self.url)
        self._start(name, "worker.Worker", self._hosts[number], *options)

    def add_worker(self, host: str) -> None:
        self._hosts.append(host)
        self.start_worker(len(self._hosts) - 1)

    def _start(self, name: str, main: str, host: str, *options: str) -> None:
        home = Path(pyspark.__file__).parent
        # The script becomes the JVM (exec), so the pid is the process's own.
        class_name = f"org.apache.spark.deploy.{main}"
        command = [str(home / "bin" / "spark-class"), class_name, "--host", host, "--webui-port", "0", *options]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def _says(self, name: str, text: str) -> bool:
        return text in self._log(name)

    def _url(self) -> str | None:
        found = re.search(r"spark://127\.0\.0\.1:\d+", self._log("master"))
        return found.group() if found else None

    def worker_pid(self, number: int) -> int:
        return self._processes[f"worker-{number}"].pid

    def executors(self) -> dict[int, int]:
        """By worker, the pid of its executor that lives."""
        found = {}
        for number in range(len(self._hosts)):
            for pid, command in children(self.worker_pid(number)):
                if b"CoarseGrainedExecutorBackend" in command:
                    found[number] = pid
        return found

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            process.wait(30)
