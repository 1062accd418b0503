"""Keeps an embedded ZooKeeper alive for its users: a server that ends or hangs is restarted at the same ports.

Any number of keepers may keep one directory, in any number of processes. The first one to see a death restarts the
server, and the others adopt it. A keeper releases its lock as a user (locks.Use) only once its thread has ended: so
nobody restarts what the last user stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from spark_replication.errors import ReplicationError, StartGivenUp
from spark_replication.process.threads import Worker
from spark_replication.zk.login import NOBODY, Login
from spark_replication.zk.protecting import protect_all
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.certificates import client_login
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper
from spark_replication.zookeeper_server.locks import Use, unused
from spark_replication.zookeeper_server.patience import Backoff, Hang
from spark_replication.zookeeper_server.server import ServerProcess
from spark_replication.zookeeper_server.watchdog import Watchdog

LOOK_S = 1.0
ANSWER_MS = 2_000
SESSION_MS = 4_000
PROTECT_MS = 10_000
RESTART_TIMEOUT_S = 60.0
JOIN_TIMEOUT_S = 30.0
FREE_BYTES_MIN = 256 << 20  # ZooKeeper ends when it cannot write its transaction log

log = logging.getLogger(__name__)


class _Silence(NamedTuple):
    since_s: float
    servers: tuple[ServerProcess, ...]


class Keeper:
    """Made by `start`. One thread calls the methods; `problems`, `address` and `pids` are for any thread."""

    def __init__(self, zookeeper: EmbeddedZooKeeper, use: Use, free_bytes_min: int, watchdog: Watchdog) -> None:
        self._zookeeper = zookeeper
        self._use = use
        self._watchdog = watchdog
        self._free_bytes_min = free_bytes_min
        self._clients = {server: _Client(server) for server in zookeeper.servers}
        self._hangs = {server: Hang() for server in zookeeper.servers}
        self._backoff = Backoff()
        self._silence: _Silence | None = None
        self._trouble = ""
        self._disk_is_low = False
        self._stopping = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = Worker(self._run, "zookeeper-keeper")

    @classmethod
    def start(
        cls,
        directory: str | os.PathLike[str],
        timeout_s: float,
        servers: int = 1,
        *,
        free_bytes_min: int = FREE_BYTES_MIN,
        unused_s: float = 0.0,
        login: Login = NOBODY,
    ) -> Keeper:
        """Start or adopt the servers, and keep them alive until `leave` or `stop`. They answer clients when this
        returns. ZooKeeper ends by itself once nobody has needed it for `unused_s`, even if all users were killed; with
        0 it never does. Nobody but the holders of `login` may write anything there; without one, everybody may."""
        path = Path(directory).resolve()
        path.mkdir(parents=True, exist_ok=True)
        use = Use(path)
        use.begin(time.monotonic() + timeout_s)
        try:
            found = EmbeddedZooKeeper.start(path, timeout_s, servers)
        except BaseException:
            use.end()
            raise
        try:
            close_to_others(found, login)
            watchdog = Watchdog(path, unused_s)
            watchdog.begin()
            keeper = cls(found, use, free_bytes_min, watchdog)
        except BaseException:
            use.end()
            _stop_unused(found)
            raise
        keeper._thread.start()
        return keeper

    @property
    def directory(self) -> Path:
        return self._zookeeper.directory

    @property
    def address(self) -> str:
        return self._zookeeper.address

    @property
    def pids(self) -> list[int]:
        """The pids of the servers that live."""
        return self._zookeeper.pids

    def problems(self) -> list[str]:
        """What is wrong with ZooKeeper, the worst first."""
        found = []
        if self._thread.died:
            found.append("ZooKeeper's keeper died of an error, and nobody starts ZooKeeper again: restart this process")
        silence = self._silence
        if silence is not None:
            who = f"ZooKeeper at {self.address}"
            if 2 * len(silence.servers) < len(self._zookeeper.servers):
                who = f"server {_numbers(silence.servers)} of {who}"
            silent_s = time.monotonic() - silence.since_s
            found.append(f"{who} has not answered for {silent_s:.0f} s: {self._trouble or 'it is being restarted'}")
        if self._disk_is_low:
            found.append(self._disk_problem())
        return found

    def leave(self) -> None:
        """Stop keeping ZooKeeper. It runs on, for its other users or the next one."""
        if not self._stopping.is_set():
            os.eventfd_write(self._wake, 1)  # first: the thread closes it once _stopping is set
            self._stopping.set()
        self._thread.join(JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            # It stays a user, too: nobody may stop what this thread may be about to restart.
            log.warning("ZooKeeper in %s is left running: its keeper has not ended in time", self.directory)
            return
        self._use.end()

    def stop(self) -> bool:
        """Leave, and stop the servers unless others use them. Returns whether they were stopped."""
        self.leave()
        return _stop_unused(self._zookeeper, self._watchdog)

    # On the keeper's thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
                self._watchdog.keep()
            except StartGivenUp:
                break
            except (ReplicationError, OSError) as error:
                if str(error) != self._trouble:
                    log.warning("ZooKeeper in %s cannot be kept alive: %s", self.directory, error)
                self._trouble = str(error)
            self._wait_for_death()
        os.close(self._wake)
        for client in self._clients.values():
            client.close()

    def _wait_for_death(self) -> None:
        """Wait until a server ends or `leave` is called, at most for LOOK_S."""
        with contextlib.ExitStack() as opened:
            ends = select.poll()
            ends.register(self._wake, select.POLLIN)
            for pid in self._zookeeper.pids:
                with contextlib.suppress(ProcessLookupError):
                    process = os.pidfd_open(pid)
                    opened.callback(os.close, process)
                    ends.register(process, select.POLLIN)
            ends.poll(LOOK_S * 1000)

    def _look(self) -> None:
        self._look_at_disk()
        silent = tuple(server for server in self._zookeeper.servers if not self._is_heard(server))
        now_s = time.monotonic()
        if not silent:
            self._silence, self._trouble = None, ""
            self._backoff.answered(now_s)
            return
        self._silence = _Silence(now_s if self._silence is None else self._silence.since_s, silent)
        if any(not server.alive() for server in silent) and self._backoff.may_restart(now_s):
            self._restart(silent)

    def _is_heard(self, server: ServerProcess) -> bool:
        """Whether the server answers, or waits for others of its ensemble. Ends a server that hangs."""
        if not server.alive():
            return False
        pid = server.pid
        heard = self._clients[server].is_answered() or server.waits_for_others()
        if self._hangs[server].asked(pid, answered=heard, now_s=time.monotonic()) and pid is not None:
            self._zookeeper.end_hung(server, pid, time.monotonic() + RESTART_TIMEOUT_S, self._is_wanted)
        return heard

    def _restart(self, silent: Sequence[ServerProcess]) -> None:
        log.warning("ZooKeeper in %s: server %s has ended, and is restarted", self.directory, _numbers(silent))
        try:
            EmbeddedZooKeeper.start(
                self.directory, RESTART_TIMEOUT_S, len(self._zookeeper.servers), wanted=self._is_wanted
            )
        finally:
            self._backoff.restarted(time.monotonic())
        self._silence, self._trouble = None, ""
        log.warning("ZooKeeper in %s answers again, at %s", self.directory, self.address)

    def _is_wanted(self) -> bool:
        return not self._stopping.is_set()

    def _look_at_disk(self) -> None:
        is_low = shutil.disk_usage(self.directory).free < self._free_bytes_min
        if is_low and not self._disk_is_low:
            log.warning("%s", self._disk_problem())
        self._disk_is_low = is_low

    def _disk_problem(self) -> str:
        free_mib, least_mib = shutil.disk_usage(self.directory).free >> 20, self._free_bytes_min >> 20
        return (
            f"{free_mib} MiB are free at {self.directory}, less than {least_mib}: ZooKeeper ends when its disk is "
            "full. Free some, or set a retention.bytes"
        )


def _stop_unused(zookeeper: EmbeddedZooKeeper, watchdog: Watchdog | None = None) -> bool:
    with unused(zookeeper.directory) as is_unused:
        if is_unused:
            zookeeper.stop()
            if watchdog is not None:
                watchdog.stop()
    return is_unused


def close_to_others(zookeeper: EmbeddedZooKeeper, login: Login) -> None:
    """Let nobody but the holders of `login` write anywhere; without one, everybody may."""
    if not login.owns:
        return
    session = Session.connect(
        zookeeper.address,
        "",
        session_timeout_ms=SESSION_MS,
        request_timeout_ms=PROTECT_MS,
        login=replace(login, tls=zookeeper.login.tls),
    )
    try:
        protect_all(session)
    finally:
        session.close()


def _numbers(servers: Sequence[ServerProcess]) -> str:
    return ", ".join(str(server.place.number) for server in servers)


class _Client:
    """A client of one server. It asks all questions in one session: opening one is a write, which ZooKeeper flushes."""

    def __init__(self, server: ServerProcess) -> None:
        self._address = server.place.address
        self._directory = server.place.shared
        self._session: Session | None = None

    def is_answered(self) -> bool:
        try:
            if self._session is None or self._session.lost:
                self._session = Session.connect(
                    self._address,
                    "",
                    session_timeout_ms=SESSION_MS,
                    request_timeout_ms=ANSWER_MS,
                    login=client_login(self._directory),
                )
            # A read is answered after the writes before it: a server whose disk hangs does not answer.
            return self._session.connected and self._session.read_now("/") is not None
        except ReplicationError:
            return False

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
