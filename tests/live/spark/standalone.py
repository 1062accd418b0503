"""A standalone Spark cluster of real Master and Worker processes, from pyspark's own scripts, on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyspark

TIMEOUT_S = 90.0
POLL_S = 0.1

T = TypeVar("T")


def wait_for(what: str, found: Callable[[], T | None], timeout_s: float = TIMEOUT_S) -> T:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(POLL_S)
    raise AssertionError(f"{what}: not within {timeout_s} s")


class Standalone:
    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = wait_for("the master", self._url)
        for number in range(workers):
            name = f"worker-{number}"
            options = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(directory / name))
            self._start(name, "worker.Worker", "--host", "127.0.0.1", *options, self.url)
        for number in range(workers):
            wait_for(f"worker {number}", partial(self._says, f"worker-{number}", "Successfully registered"))

    def _start(self, name: str, main: str, *options: str) -> None:
        home = Path(pyspark.__file__).parent
        # The script becomes the JVM (exec), so the pid is the process's own.
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *options]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "512m",
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            )

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def _says(self, name: str, text: str) -> bool:
        return text in self._log(name)

    def _url(self) -> str | None:
        found = re.search(r"spark://127\.0\.0\.1:\d+", self._log("master"))
        return found.group() if found else None

    def executors(self) -> list[int]:
        """The pids of the executors that live: children of our workers."""
        workers = {process.pid for process in self._processes}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if b"CoarseGrainedExecutorBackend" in command and parent in workers:
                found.append(int(path.name))
        return sorted(found)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)
