"""A standalone Spark cluster on loopback, run by pyspark's own scripts: Master, Workers, and their executors.

The drill and the live tests kill its executors; a driver that is killed finds the same Master again.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyspark

from spark_replication.errors import StartFailed
from spark_replication.process.java import QUICK_START
from spark_replication.process.processes import last_lines
from spark_replication.spark.session import kept_classes

HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.1

EXECUTOR = b"CoarseGrainedExecutorBackend"  # in an executor's command line

Found = TypeVar("Found")


class Standalone:
    """A cluster that runs from its construction to `stop`. Each Worker has one core, for one executor with one task."""

    def __init__(
        self,
        directory: Path,
        hosts: Sequence[str],
        within: Callable[[str], Sequence[str]] = lambda _host: (),
        settings: Mapping[str, str] = {},
    ) -> None:
        """`hosts` are loopback addresses, one a Worker. `within(host)` is a command that runs the Worker's command and
        becomes it (exec). `settings` are Spark's, for the Master and the Workers."""
        self._settings = write_settings(directory / "standalone.conf", settings)
        self._directory = directory
        self._within = within
        self._hosts = list(hosts)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start("master", "master.Master", HOST, "--port", "0")
            self.url = self._wait_for("master", self._url)
            for number in range(len(hosts)):
                self.start_worker(number)
            for number in range(len(hosts)):
                name = _worker(number)
                self._wait_for(name, partial(self._says, name, "Successfully registered"))
        except BaseException:
            self.stop()
            raise

    def restart_master(self) -> None:
        """Restart the Master at its address, without its state."""
        self._processes["master"].kill()
        self._processes["master"].wait()
        self._start("master", "master.Master", HOST, "--port", self.url.rpartition(":")[2])
        self._wait_for("master", self._url)

    def start_worker(self, number: int) -> None:
        """Start this Worker; one that has ended is started again where it was."""
        name = _worker(number)
        options = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / name), self.url)
        self._start(name, "worker.Worker", self._hosts[number], *options, within=self._within(self._hosts[number]))

    def add_worker(self, host: str) -> None:
        self._hosts.append(host)
        self.start_worker(len(self._hosts) - 1)

    def worker_pid(self, number: int) -> int:
        return self._processes[_worker(number)].pid

    def executors(self) -> dict[int, int]:
        """The pid of the live executor of each Worker."""
        numbers = {self.worker_pid(number): number for number in range(len(self._hosts))}
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        above = {pid: parent for pid in sorted(pids) if _is_executor(pid) and (parent := _parent(pid)) in numbers}
        return {numbers[parent]: pid for pid, parent in above.items()}

    def executor_above(self, pid: int) -> int | None:
        """The executor whose task has started this process. None if that task, or the process, is gone."""
        found: int | None = pid
        while found is not None and not _is_executor(found):
            found = _parent(found)
        return found

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, main: str, host: str, *options: str, within: Sequence[str] = ()) -> None:
        home = Path(pyspark.__file__).parent
        # The script becomes the JVM (exec), so the pid is the process's own.
        class_name = f"org.apache.spark.deploy.{main}"
        command = [
            *within,
            str(home / "bin" / "spark-class"),
            class_name,
            "--host",
            host,
            "--webui-port",
            "0",
            "--properties-file",
            str(self._settings),
            *options,
        ]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self._directory / "no-conf"),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "512m",
            "JDK_JAVA_OPTIONS": " ".join((*QUICK_START, *kept_classes())),  # executors inherit it
        }
        with self._log_path(name).open("wb") as log:
            # A session of its own: Ctrl-C goes to the process that started this, which first stops what runs on it.
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _wait_for(self, name: str, found: Callable[[], Found | None]) -> Found:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            value = found()
            if value:
                return value
            time.sleep(POLL_S)
        path = self._log_path(name)
        raise StartFailed(
            f"Spark's {name} is not ready after {START_TIMEOUT_S} s. Its log, {path}:\n{last_lines(path)}"
        )

    def _log_path(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _says(self, name: str, text: str) -> bool:
        return text in self._log_path(name).read_text(errors="replace")

    def _url(self) -> str | None:
        found = re.search(rf"spark://{re.escape(HOST)}:\d+", self._log_path("master").read_text(errors="replace"))
        return found.group() if found else None


def write_settings(path: Path, settings: Mapping[str, str]) -> Path:
    """Write settings of Spark, which may hold a secret, to a file that is named to it. As SPARK_CONF_DIR, its folder
    would cost each JVM more than a third of its start: Java refuses kept classes where files come before the jars."""
    path.touch(0o600)
    path.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return path


def _worker(number: int) -> str:
    return f"worker-{number}"


def _is_executor(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _parent(pid: int) -> int | None:
    """The parent's pid. None if the process is gone, or is the first of all."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) or None
    return None
