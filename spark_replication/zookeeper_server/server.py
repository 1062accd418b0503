"""One ZooKeeper server from pyspark's jars, single or of an ensemble: its settings, its process, its state.

Its directory holds zoo.cfg, log4j2.properties, data/, and the files of a LockedProcess: lock, pid, log. Each start
writes the settings anew. ZooKeeper itself writes none: reconfiguration is off, which is its default.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from spark_replication.errors import ReplicationError, StartFailed
from spark_replication.process.java import QUICK_START, find_java, spark_jar
from spark_replication.process.processes import LockedProcess, last_lines
from spark_replication.process.whole_files import replace_text
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.certificates import client_login, tls_directory
from spark_replication.zookeeper_server.layout import ServerPlace
from spark_replication.zookeeper_server.native_tls import native_tls_jar, native_tls_options
from spark_replication.zookeeper_server.quorum_secret import java_options, quorum_secret
from spark_replication.zookeeper_server.settings import SECURE_PORT, as_properties, log_settings, server_settings
from spark_replication.zookeeper_server.srvr import NOT_SERVING, mode_in, said_by

HEAP = "256m"
CLIENT_WAIT_MS_MIN, CLIENT_WAIT_MS_MAX = 500, 2_000  # whatever has the port may be no ZooKeeper, and never answer
SETTINGS_FILE = "zoo.cfg"
LOG_SETTINGS_FILE = "log4j2.properties"
# What the server's classes name, as `jdeps` tells; without libraries that netty would unpack: see native_tls for one.
_NEEDED = re.compile(
    r"(zookeeper|netty|log4j-(api|core|slf4j2)|slf4j-api|snappy-java|metrics-core|audience-annotations|commons-io"
    r"|javax\.servlet-api|jackson-(annotations|core|databind))-(?!.*(native-(epoll|kqueue)|boringssl))"
)
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

    @property
    def speaks_tls(self) -> bool:
        """Whether the process speaks TLS, or the last one did."""
        try:
            return f"\n{SECURE_PORT}=" in (self.place.directory / SETTINGS_FILE).read_text()
        except FileNotFoundError:
            return False

    def launch(self) -> bool:
        """Start the process. Returns False if it lives, or somebody is just asking whether it does."""
        command = _command(self.place.directory, self._secret, self._native_tls)
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
            Session.connect(
                self.place.address,
                "",
                session_timeout_ms=4_000,
                request_timeout_ms=wait_ms,
                login=client_login(self.place.shared),
            ).close()
        except ReplicationError:
            return False
        return True

    def _write_settings(self) -> None:
        data = self.place.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        if self.place.peering is not None:
            replace_text(data / "myid", str(self.place.number))
        settings = server_settings(
            self.place,
            self._ensemble,
            tls=tls_directory(self.place.shared),
            is_native=self._native_tls is not None,
            has_secret=self._secret is not None,
        )
        replace_text(self.place.directory / SETTINGS_FILE, as_properties(settings))
        replace_text(self.place.directory / LOG_SETTINGS_FILE, log_settings(self.log_path))

    @property
    def _native_tls(self) -> Path | None:
        """The jar that has it. None if there is no TLS, or if Java's is all there is."""
        has_tls = tls_directory(self.place.shared) is not None
        return native_tls_jar(find_jars(), self.place.shared) if has_tls else None

    @property
    def _secret(self) -> Path | None:
        return None if self.place.peering is None else quorum_secret(self.place.shared)


def _command(directory: Path, secret: Path | None, native_tls: Path | None) -> Sequence[str]:
    return (
        find_java("ZooKeeper"),
        f"-Xmx{HEAP}",
        "-XX:+ExitOnOutOfMemoryError",  # so that it is started again
        *QUICK_START,
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={directory / LOG_SETTINGS_FILE}",
        "-Dzookeeper.preAllocSize=4096",  # KB; 64 MB a transaction log otherwise
        *(() if secret is None else java_options(secret)),
        *(() if native_tls is None else native_tls_options(directory)),
        "-cp",
        ":".join((class_path(find_jars()), *(() if native_tls is None else (str(native_tls),)))),
        MAIN_CLASS,
        str(directory / SETTINGS_FILE),
    )


def class_path(jars: Path) -> str:
    """The jars of these that ZooKeeper needs. Among all 300 of Spark's Java would look for each class: half a second of
    CPU more at each start."""
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")) if _NEEDED.match(jar.name))


def find_jars() -> Path:
    """The folder with ZooKeeper's jars."""
    return spark_jar("zookeeper", otherwise=", or name a ZooKeeper with zookeeper.connect").parent
