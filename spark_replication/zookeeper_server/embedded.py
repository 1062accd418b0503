"""ZooKeeper from pyspark's jars, for users without one: a single server, or three, which survive the loss of one.

Each server is a detached process, which the next start in its directory adopts. The places and ports of the servers are
chosen once (layout). A start holds the lock on `starting`: of two starts at once, the later one adopts. A start ends a
server that lives but hangs, and starts it again. Whoever needs ZooKeeper for long has a Keeper.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spark_replication.errors import ReplicationError, StartFailed, StartGivenUp
from spark_replication.process.files import own_directory
from spark_replication.process.processes import LockedProcess, last_lines
from spark_replication.zk.login import Login
from spark_replication.zk.session import NotPermitted, Session
from spark_replication.zookeeper_server.certificates import client_login, make_certificates, tls_directory
from spark_replication.zookeeper_server.layout import (
    ServerPlace,
    check_servers,
    choose_places,
    forget_places,
    ports_file,
    server_directories,
    servers_made,
    stored_places,
    taken_port,
)
from spark_replication.zookeeper_server.locks import POLL_S, require_wanted, starting
from spark_replication.zookeeper_server.patience import HANG_S, Hang
from spark_replication.zookeeper_server.quorum_secret import make_quorum_secret
from spark_replication.zookeeper_server.server import PortTaken, ServerProcess

PORT_ATTEMPTS_MAX = 5  # at the first start, when another process takes a port that was just free
STOP_TIMEOUT_S = 10.0
HUNG_STOP_TIMEOUT_S = 1.0  # a server that hangs does not react to SIGTERM either
SESSION_MS = 4_000
ANSWER_MS = 10_000
TOP = ["zookeeper"]  # what a ZooKeeper has that nobody has written to

log = logging.getLogger(__name__)


class EmbeddedZooKeeper:
    """The ZooKeeper of one directory. Any number of processes may `start` it."""

    def __init__(self, directory: Path, places: tuple[ServerPlace, ...]) -> None:
        """Use `start`, or `found_in`."""
        self.directory = directory
        self.servers = tuple(ServerProcess(place, places) for place in places)

    @classmethod
    def start(
        cls,
        directory: str | os.PathLike[str],
        timeout_s: float,
        servers: int = 1,
        *,
        wanted: Callable[[], bool] = lambda: True,
    ) -> EmbeddedZooKeeper:
        """Adopt the servers that live, start the others, and return once they answer clients.

        `wanted` is asked again and again. Once it is False, the start ends with StartGivenUp, and leaves what it has
        started to the next start.
        """
        path = Path(directory).resolve()
        deadline = time.monotonic() + timeout_s
        check_servers(path, servers)
        own_directory(path)
        with starting(path, deadline, wanted):
            check_servers(path, servers)  # another process may have made it meanwhile
            places = stored_places(path)
            if places is None:
                is_new = servers_made(path) is None
                found = cls._start_first(path, servers, deadline, wanted)
                if is_new:
                    found._require_untouched()
                return found
            found = cls(path, places)
            found._run(deadline, wanted, ports_known=True)
            return found

    @classmethod
    def found_in(cls, directory: str | os.PathLike[str]) -> EmbeddedZooKeeper | None:
        """The ZooKeeper of this directory, alive or not. None if none was ever started there."""
        path = Path(directory).resolve()
        places = stored_places(path)
        return None if places is None else cls(path, places)

    @property
    def address(self) -> str:
        """The addresses of all servers: a client goes on to the next when one is lost."""
        return ",".join(server.place.address for server in self.servers)

    @property
    def login(self) -> Login:
        """What its servers ask of a client: it may connect then, and owns nothing."""
        return client_login(self.directory)

    @property
    def pids(self) -> list[int]:
        """The pids of the servers that live."""
        return [pid for server in self.servers if (pid := server.pid) is not None]

    def alive(self) -> bool:
        """Whether any server lives."""
        return any(server.alive() for server in self.servers)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End all servers, whoever started them. Their data stays."""
        stop_directory(self.directory, timeout_s)

    @classmethod
    def _start_first(
        cls, directory: Path, servers: int, deadline: float, wanted: Callable[[], bool]
    ) -> EmbeddedZooKeeper:
        attempts_left = PORT_ATTEMPTS_MAX
        while True:
            found = cls(directory, choose_places(directory, servers))
            attempts_left -= 1
            try:
                found._run(deadline, wanted, ports_known=False)
                return found
            except PortTaken:
                if not attempts_left:
                    raise
                forget_places(directory)

    def end_hung(self, server: ServerProcess, pid: int, deadline: float, wanted: Callable[[], bool]) -> None:
        """End the process `pid` of this server, which a keeper saw hang. Nothing happens if the server has another
        process meanwhile, or answers again."""
        with starting(self.directory, deadline, wanted):
            if server.pid == pid and not server.is_heard(deadline):
                _end_hung(server)

    def require_protocol(self, *, tls: bool) -> None:
        """Raise StartFailed if a server lives that speaks otherwise to its clients."""
        for server in self.servers:
            if server.alive() and server.speaks_tls != tls:
                why = (
                    "it was started without security, or by an earlier version, and does not speak TLS"
                    if tls
                    else f"it speaks TLS, and its certificates are gone from {self.directory}"
                )
                raise StartFailed(
                    f"the ZooKeeper in {server.place.directory} (pid {server.pid}) lives, and is not adopted: {why}. "
                    "End the clusters and brokers that use it, then it by `spark-replication zookeeper stop "
                    f"--directory {self.directory}`, and start again"
                )

    def _require_untouched(self) -> None:
        """Raise StartFailed if anybody has written to the servers since this start has made them. Nothing of that is
        believed: it goes, and the next start makes them anew."""
        found = self._top()
        if found == TOP:
            return
        self.stop()
        forget_places(self.directory)
        for server in self.servers:
            shutil.rmtree(server.place.directory / "data", ignore_errors=True)
        raise StartFailed(
            f"another process wrote {', '.join(sorted(set(found) - set(TOP)))} to the ZooKeeper in {self.directory} "
            "before its first start was complete. All of it is removed: see who that is, and start again"
        )

    def _top(self) -> list[str]:
        session = Session.connect(
            self.address, "", session_timeout_ms=SESSION_MS, request_timeout_ms=ANSWER_MS, login=self.login
        )
        try:
            session.sync_now()
            return session.children_now("/")
        except NotPermitted:
            return ["an ACL"]
        finally:
            session.close()

    def _run(self, deadline: float, wanted: Callable[[], bool], *, ports_known: bool) -> None:
        """Start the servers. If none lived before, a failure ends those that were started, unless it is StartGivenUp.
        The part of an ensemble that lived is left alone.

        With `ports_known`, clients know the addresses: a port that is taken is waited for.
        """
        self.require_protocol(tls=tls_directory(self.directory) is not None)
        lived = self.alive()
        if not lived and len(self.servers) > 1:
            make_quorum_secret(self.directory)
        try:
            self._run_all(deadline, wanted, ports_known=ports_known)
        except StartGivenUp:
            raise
        except BaseException:
            if not lived:
                self.stop()
            raise

    def _run_all(self, deadline: float, wanted: Callable[[], bool], *, ports_known: bool) -> None:
        """Start servers until all live, those that were started answer, and a majority answers: one that was adopted
        and hangs does not hold up an ensemble."""
        hangs = {server: Hang() for server in self.servers}
        launched: set[ServerProcess] = set()
        answering: set[ServerProcess] = set()
        while True:
            # Look each time: a server that was just killed may have seemed to live.
            dead = [server for server in self.servers if server not in launched and not server.alive()]
            for server in dead:
                answering.discard(server)
                if self._may_launch(server, ports_known=ports_known) and server.launch():
                    launched.add(server)
            answering |= {server for server in self.servers if server not in answering and server.answers(deadline)}
            # A foreign server on the same port would answer, too: the process that was started must live.
            for server in launched:
                server.check_lives()
            if launched.issuperset(dead) and launched <= answering and 2 * len(answering) > len(self.servers):
                return
            if time.monotonic() > deadline:
                raise self._late(dead, launched, answering)
            require_wanted(self.directory, wanted)
            for server in set(self.servers) - launched - answering - set(dead):
                heard = server.waits_for_others()
                if hangs[server].asked(server.pid, answered=heard, now_s=time.monotonic()):
                    _end_hung(server)
            time.sleep(POLL_S)

    def _may_launch(self, server: ServerProcess, *, ports_known: bool) -> bool:
        port = taken_port(server.place)
        if port is not None and not ports_known:
            raise PortTaken(f"port {port} of ZooKeeper in {self.directory} was taken before it started")
        return port is None

    def _late(
        self, dead: list[ServerProcess], launched: set[ServerProcess], answering: set[ServerProcess]
    ) -> StartFailed:
        for server in dead:
            port = None if server in launched else taken_port(server.place)
            if port is not None:
                return PortTaken(
                    f"port {port} of the ZooKeeper in {server.place.directory} is taken by another process: end that "
                    f"one, or remove {ports_file(self.directory)} while no server lives, to have others chosen"
                )
        silent = next(server for server in self.servers if server not in answering)
        return StartFailed(
            f"the ZooKeeper in {silent.place.directory} (pid {silent.pid}) answered no client in time. Its log, "
            f"{silent.log_path}, ends with:\n{last_lines(silent.log_path)}"
        )


def serve_over_tls(directory: Path) -> None:
    """Have the ZooKeeper of this directory speak TLS alone from its next start on, for ever. Raises StartFailed if it
    lives, and does not."""
    if tls_directory(directory) is not None:
        return
    found = EmbeddedZooKeeper.found_in(directory)
    if found is not None:
        found.require_protocol(tls=True)
    make_certificates(directory)


def stop_directory(directory: str | os.PathLike[str], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End every ZooKeeper server that lives in this directory."""
    processes = [LockedProcess(path) for path in server_directories(Path(directory).resolve())]
    with ThreadPoolExecutor(len(processes)) as pool:
        ended = list(pool.map(lambda process: process.stop(timeout_s), processes))
    for process, gone in zip(processes, ended, strict=True):
        if not gone:
            raise ReplicationError(
                f"the ZooKeeper of {process.directory} (pid {process.pid()}) is still alive: end it on the host where "
                "it runs"
            )


def _end_hung(server: ServerProcess) -> None:
    log.warning("ZooKeeper (pid %s) has answered nobody for %.0f s: ending it", server.pid, HANG_S)
    if not server.end(HUNG_STOP_TIMEOUT_S):
        log.error("ZooKeeper in %s hangs, and cannot be ended: see its disk", server.place.directory)
