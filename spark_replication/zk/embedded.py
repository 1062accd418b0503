"""ZooKeeper from pyspark's jars, for who has none: a detached process of its own, adopted by the next that starts it.

In the directory: zoo.cfg, data/, port (chosen once: clients keep the address over restarts), and what locked_process
keeps there: lock, pid, log.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from spark_replication.errors import ReplicationError, StartFailed
from spark_replication.zk.locked_process import LockedProcess, last_lines
from spark_replication.zk.session import Session

HOST = "127.0.0.1"
TICK_MS = 500
SESSION_TIMEOUT_MIN_MS = 1_000
SESSION_TIMEOUT_MAX_MS = 60_000
HEAP = "256m"
PORT_ATTEMPTS_MAX = 5  # at the first start, when another process takes the port that was just free
POLL_S = 0.02
STOP_TIMEOUT_S = 10.0
CLIENT_WAIT_MS_MIN, CLIENT_WAIT_MS_MAX = 500, 2_000  # what holds the port may be no ZooKeeper, and say nothing
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JAVA_INSTALL = "install Java 17 (apt-get install openjdk-17-jre-headless), or set JAVA_HOME"


class EmbeddedZooKeeper:
    """One server. `start` makes it run; any number of processes may do so for one directory."""

    def __init__(self, directory: Path, port: int) -> None:
        """Use `start`."""
        self.directory = directory
        self.port = port
        self._process = LockedProcess(directory)

    @classmethod
    def start(cls, directory: str | os.PathLike[str], timeout_s: float) -> EmbeddedZooKeeper:
        """Running and answering clients: adopted if it lives, else started."""
        path = Path(directory).resolve()
        deadline = time.monotonic() + timeout_s
        process = LockedProcess(path)
        while True:
            with process.locked() as lock:
                if lock is not None:
                    return cls._launch(process, lock, deadline)
            adopted = cls._adopt(process, deadline)
            if adopted is not None:
                return adopted
            # It died before it answered: start it.

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """None: it does not live."""
        return self._process.pid()

    def alive(self) -> bool:
        return self._process.alive()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends it, whoever started it. Its data stays."""
        stop_directory(self.directory, timeout_s)

    @classmethod
    def _launch(cls, process: LockedProcess, lock: int, deadline: float) -> EmbeddedZooKeeper:
        command = _command(process.directory)
        first = _stored_port(process.directory) is None
        for _ in range(PORT_ATTEMPTS_MAX):
            port = _free_port() if first else _stored_port(process.directory)
            assert port is not None, "a start that is not the first has its port"
            if not first:
                _wait_port_free(port, process.directory, deadline)
            _write_config(process.directory, port)
            child = process.start(command, lock)
            if _wait_answering(process, child, port, deadline):
                return cls(process.directory, port)
            if not (first and "Address already in use" in last_lines(process.log_path)):
                break
        raise StartFailed(f"ZooKeeper in {process.directory} ended at its start:\n{last_lines(process.log_path)}")

    @classmethod
    def _adopt(cls, process: LockedProcess, deadline: float) -> EmbeddedZooKeeper | None:
        """None: it is gone."""
        while process.alive():
            port = _stored_port(process.directory)
            if port is not None and _answers(port, deadline):
                return cls(process.directory, port)
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"a ZooKeeper lives in {process.directory} (pid {process.pid()}) but answers no client: see "
                    f"{process.log_path}, or end it"
                )
            time.sleep(POLL_S)
        return None


def stop_directory(directory: str | os.PathLike[str], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End the ZooKeeper of this directory, if one lives."""
    process = LockedProcess(Path(directory).resolve())
    if not process.stop(timeout_s):
        raise ReplicationError(
            f"the ZooKeeper of {directory} (pid {process.pid()}) is still alive: end it on the host where it runs"
        )


def _command(directory: Path) -> Sequence[str]:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise StartFailed(f"ZooKeeper needs Java, and there is none{f' in {home}' if home else ''}: {JAVA_INSTALL}")
    return (
        java,
        f"-Xmx{HEAP}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Djava.awt.headless=true",
        "-Dorg.apache.logging.log4j.level=WARN",
        "-Dzookeeper.preAllocSize=4096",  # KB; 64 MB a transaction log otherwise
        "-cp",
        f"{_jars()}/*",
        MAIN_CLASS,
        str(directory / "zoo.cfg"),
    )


def _jars() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise StartFailed("the embedded ZooKeeper comes from pyspark's jars: pip install pyspark")
    return Path(found.origin).parent / "jars"


def _write_config(directory: Path, port: int) -> None:
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    settings = {
        "dataDir": data,
        "clientPort": port,
        "clientPortAddress": HOST,
        "tickTime": TICK_MS,
        "minSessionTimeout": SESSION_TIMEOUT_MIN_MS,
        "maxSessionTimeout": SESSION_TIMEOUT_MAX_MS,
        "maxClientCnxns": 0,  # every broker of the cluster may be on this host
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok,srvr,mntr",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
    }
    _replace(directory / "zoo.cfg", "".join(f"{name}={value}\n" for name, value in settings.items()))
    _replace(directory / "port", str(port))


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: others read while it is written."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _stored_port(directory: Path) -> int | None:
    """None: before the first start has succeeded in choosing one."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((directory / "port").read_text())
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_port_free(port: int, directory: Path, deadline: float) -> None:
    """Clients know the address: a restart waits for the port rather than take another."""
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StartFailed(
                        f"port {port} of the ZooKeeper in {directory} is taken by another process: end that one, or "
                        f"remove {directory / 'port'} to let this one choose another"
                    ) from error
        time.sleep(POLL_S)


def _wait_answering(process: LockedProcess, child: subprocess.Popen[bytes], port: int, deadline: float) -> bool:
    """False: it ended."""
    while child.returncode is None:
        if _answers(port, deadline):
            # Another server on this port would answer as well: what was started must be the one that lives.
            return child.returncode is None
        if time.monotonic() > deadline:
            process.stop(STOP_TIMEOUT_S)
            raise StartFailed(
                f"ZooKeeper in {process.directory} answered no client in time:\n{last_lines(process.log_path)}"
            )
        time.sleep(POLL_S)
    return False


def _answers(port: int, deadline: float) -> bool:
    """A real client gets a session: an open port is not enough, and `ruok` is answered before that."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    wait_ms = min(CLIENT_WAIT_MS_MAX, max(CLIENT_WAIT_MS_MIN, int((deadline - time.monotonic()) * 1000)))
    try:
        Session.connect(f"{HOST}:{port}", "", session_timeout_ms=4_000, request_timeout_ms=wait_ms).close()
    except ReplicationError:
        return False
    return True
