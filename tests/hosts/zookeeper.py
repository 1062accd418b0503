"""ZooKeeper on a host of its own, reached by all others: the embedded one serves its own host alone."""

from __future__ import annotations

from pathlib import Path

from spark_replication.errors import ReplicationError
from spark_replication.process.java import QUICK_START, find_java
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.server import MAIN_CLASS, find_jars
from tests.hosts.bed import Bed, Host, Process
from tests.waiting import eventually

PORT = 2181
START_S = 60.0


def login_settings(directory: Path) -> dict[str, str | bool]:
    """Whose everything in it is."""
    file = directory / "login"
    file.touch(mode=0o600)
    file.write_text("cluster:of a test\n")
    return {"zookeeper.auth.file": str(file), "zookeeper.login.in.clear": True}  # nobody listens on these networks


class HostedZooKeeper:
    """Runs from `start` to the end of its host; what it stored is among that host's files."""

    def __init__(self, bed: Bed, host: Host) -> None:
        self.host = host
        self.address = f"{host.address}:{PORT}"
        self._folder = bed.files / "zookeeper"

    def start(self) -> Process:
        stored = self.host.files / "zookeeper"
        stored.mkdir(exist_ok=True)
        settings = {
            "dataDir": self._folder / "data",
            "clientPort": PORT,
            "clientPortAddress": self.host.address,
            "tickTime": 500,
            "minSessionTimeout": 1_000,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
        }
        (stored / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        options = ("-Xmx256m", *QUICK_START, "-Dorg.apache.logging.log4j.level=WARN", "-Dzookeeper.preAllocSize=4096")
        command = (find_java("ZooKeeper"), *options, "-cp", f"{find_jars()}/*", MAIN_CLASS)
        process = self.host.run(*command, str(self._folder / "zoo.cfg"))
        eventually(lambda: self._answers(process), f"the ZooKeeper of {self.host} answers", START_S)
        return process

    def _answers(self, process: Process) -> bool:
        assert process.returncode is None, process.says()
        try:
            Session.connect(self.address, "", session_timeout_ms=4_000, request_timeout_ms=1_000).close()
        except ReplicationError:
            return False
        return True
