"""Ends an embedded ZooKeeper that nobody needs any more.

python -m spark_replication.zookeeper_server.watchdog --directory=DIRECTORY/watchdog

ZooKeeper's servers are processes of their own, which outlive whoever started them. If all users were killed, and the
brokers ended with their lease, the servers would stay for ever. A directory has one watchdog, which lives as long as
any server lives or has a user (locks.Use). The servers are needed while they have a user or a connected client. Their
data stays.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from spark_replication.process.logs import log_as_text
from spark_replication.process.processes import LockedProcess
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.zookeeper_server.layout import server_directories, stored_places
from spark_replication.zookeeper_server.locks import is_used, unused
from spark_replication.zookeeper_server.patience import Backoff, Unused
from spark_replication.zookeeper_server.srvr import clients_in, said_by

WATCHDOG_DIRECTORY = "watchdog"
UNUSED_FILE = "unused_s"  # after so many seconds without need the servers end; 0 for never
LOOK_S = 1.0
STOP_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class Watchdog:
    """The watchdog of one directory, for a user of its ZooKeeper. Of all users' `unused_s` the last counts."""

    def __init__(self, directory: Path, unused_s: float) -> None:
        self._unused_s = unused_s
        self._process = LockedProcess(directory / WATCHDOG_DIRECTORY)
        self._backoff = Backoff()

    def begin(self) -> None:
        self._process.directory.mkdir(parents=True, exist_ok=True)
        # In place: two keepers that begin at once would share a `.new` file. A reader that finds no number reads again.
        (self._process.directory / UNUSED_FILE).write_text(str(self._unused_s))
        self.keep()

    def keep(self) -> None:
        """Restart the watchdog if it has ended, with a growing pause if it ends repeatedly."""
        now_s = time.monotonic()
        if not self._unused_s or not self._backoff.may_restart(now_s) or self._process.alive():
            return
        self._backoff.restarted(now_s)
        with self._process.locked() as lock:
            if lock is not None:
                place = f"--directory={self._process.directory}"
                self._process.start((sys.executable, "-m", "spark_replication.zookeeper_server.watchdog", place), lock)

    def stop(self) -> None:
        self._process.stop(STOP_TIMEOUT_S)


def watch(directory: Path, stopping: threading.Event) -> None:
    """End the servers once nobody needs them. This is the loop of the watchdog's process."""
    nobody = Unused(time.monotonic())
    while not stopping.wait(LOOK_S):
        servers = [process for path in server_directories(directory) if (process := LockedProcess(path)).alive()]
        used = is_used(directory)
        if not used and not servers:
            return
        is_needed = used or _has_clients(directory)
        unused_s = _unused_s(directory)
        if nobody.looked(unused_s, is_needed=is_needed, now_s=time.monotonic()):
            _end(directory, servers, unused_s)


def _end(directory: Path, servers: Sequence[LockedProcess], unused_s: float) -> None:
    with unused(directory) as is_unused:
        if is_unused:
            log.warning("nobody has needed the ZooKeeper in %s for %.0f s: ending it", directory, unused_s)
            for server in servers:
                server.stop(STOP_TIMEOUT_S)


def _unused_s(directory: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        return float((directory / WATCHDOG_DIRECTORY / UNUSED_FILE).read_text())
    return 0.0


def _has_clients(directory: Path) -> bool:
    return any(clients_in(said_by(place)) for place in stored_places(directory) or ())


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.zookeeper_server.watchdog")
    parser.add_argument("--directory", type=Path, required=True)
    arguments = parser.parse_args()
    log_as_text(logging.INFO)
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    watch(arguments.directory.parent, stopping)
    return 0


if __name__ == "__main__":
    sys.exit(main())
