"""One ZooKeeper server from pyspark's jars, single or of an ensemble: its settings, its process, its state.

Its directory holds zoo.cfg, data/, and the files of locked_process: lock, pid, log. Each start writes the settings
anew. ZooKeeper itself writes none: reconfiguration is off, which is its default.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from spark_replication.errors import ReplicationError, StartFailed
from spark_replication.process.java import QUICK_START, find_java
from spark_replication.process.locked_process import LockedProcess, last_lines
from spark_replication.process.spark_jars import spark_jar
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.layout import HOST, ServerPlace, replace_text
from spark_replication.zookeeper_server.quorum_secret import SETTINGS, java_options, quorum_secret
from spark_replication.zookeeper_server.srvr import NOT_SERVING, mode_in, said_by

TICK_MS = 500
SESSION_TIMEOUT_MIN_MS = 1_000
SESSION_TIMEOUT_MAX_MS = 60_000
JOIN_TICKS_MAX = 20  # in which a server joins the leader, and gets all that it has missed
SILENCE_TICKS_MAX = 10  # between a leader and a follower, before they part
HEAP = "256m"
CONNECTIONS_MAX = 2_000  # from one host; every broker of the cluster may be on it
CLIENT_WAIT_MS_MIN, CLIENT_WAIT_MS_MAX = 500, 2_000  # whatever has the port may be no ZooKeeper, and never answer
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class PortTaken(StartFailed):
    """Another process has a port that this server needs."""


class ServerProcess:
    def __init__(self, place: ServerPlace, ensemble: Sequence[ServerPlace]) -> None:
        """`ensemble` has the places of all servers, this one included."""
        self.place = place
        self._ensemble = ensemble
        self._process = LockedProcess(place.directory)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid of its process; None if that does not live, or cannot be seen from here."""
        return self._process.pid()

    @property
    def log_path(self) -> Path:
        return self._process.log_path

    def alive(self) -> bool:
        return self._process.alive()

    def launch(self) -> bool:
        """Start the process. Returns False if it lives, or somebody is just asking whether it does."""
        command = _command(self.place.directory, self._secret)
        with self._process.locked() as lock:
            if lock is None:
                return False
            self._write_settings()
            self._child = self._process.start(command, lock)
        return True

    def check_lives(self) -> None:
        """Raise PortTaken or StartFailed if the process that `launch` started has ended."""
        if self._child is None or self._child.returncode is None:
            return
        said = last_lines(self.log_path)
        kind = PortTaken if "Address already in use" in said else StartFailed
        raise kind(f"ZooKeeper in {self.place.directory} ended at its start:\n{said}")

    def end(self, timeout_s: float) -> bool:
        """End the process. Returns False if it still lives."""
        return self._process.stop(timeout_s)

    def mode(self) -> str | None:
        """The mode of the server: leader, follower or standalone. None if it serves nobody."""
        return mode_in(said_by(self.place))

    def is_heard(self, deadline: float) -> bool:
        """Whether the server answers clients, or says that it cannot before a majority of its ensemble lives."""
        return self.waits_for_others() or self.answers(deadline)

    def waits_for_others(self) -> bool:
        return self.place.peering is not None and NOT_SERVING in said_by(self.place)

    def answers(self, deadline: float) -> bool:
        """Whether a real client gets a session. An open port is no proof of that, nor is the server's word that it
        serves."""
        if self.mode() is None:
            return False
        wait_ms = min(CLIENT_WAIT_MS_MAX, max(CLIENT_WAIT_MS_MIN, int((deadline - time.monotonic()) * 1000)))
        try:
            Session.connect(self.place.address, "", session_timeout_ms=4_000, request_timeout_ms=wait_ms).close()
        except ReplicationError:
            return False
        return True

    def _write_settings(self) -> None:
        data = self.place.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": data,
            "clientPort": self.place.client,
            "clientPortAddress": HOST,
            "tickTime": TICK_MS,
            "minSessionTimeout": SESSION_TIMEOUT_MIN_MS,
            "maxSessionTimeout": SESSION_TIMEOUT_MAX_MS,
            "maxClientCnxns": CONNECTIONS_MAX,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
            **self._ensemble_settings(),
        }
        if self.place.peering is not None:
            replace_text(data / "myid", str(self.place.number))
        replace_text(self.place.directory / "zoo.cfg", "".join(f"{name}={value}\n" for name, value in settings.items()))

    def _ensemble_settings(self) -> dict[str, object]:
        members = {
            f"server.{place.number}": f"{HOST}:{place.peering.quorum}:{place.peering.election}"
            for place in self._ensemble
            if place.peering is not None
        }
        if not members:
            return {}
        proving = SETTINGS if self._secret is not None else {}
        return {"initLimit": JOIN_TICKS_MAX, "syncLimit": SILENCE_TICKS_MAX, **members, **proving}

    @property
    def _secret(self) -> Path | None:
        return None if self.place.peering is None else quorum_secret(self.place.directory.parent)


def _command(directory: Path, secret: Path | None) -> Sequence[str]:
    return (
        find_java("ZooKeeper"),
        f"-Xmx{HEAP}",
        "-XX:+ExitOnOutOfMemoryError",  # so that it is started again
        *QUICK_START,
        "-Djava.awt.headless=true",
        "-Dorg.apache.logging.log4j.level=WARN",
        "-Dzookeeper.preAllocSize=4096",  # KB; 64 MB a transaction log otherwise
        *(() if secret is None else java_options(secret)),
        "-cp",
        f"{find_jars()}/*",
        MAIN_CLASS,
        str(directory / "zoo.cfg"),
    )


def find_jars() -> Path:
    """The folder with ZooKeeper's jars."""
    return spark_jar("zookeeper", otherwise=", or name a ZooKeeper with zookeeper.connect").parent
