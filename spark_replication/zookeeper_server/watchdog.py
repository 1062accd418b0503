"""Ends an embedded ZooKeeper that nobody needs any more.

python -m spark_replication.zookeeper_server.watchdog --directory=DIRECTORY/watchdog --unused-s=600

Its servers are processes of their own, so that they outlive whoever has started them. Were its users killed, and had
brokers ended with their lease, they would stay for ever. A directory has one watchdog, which lives as long as a server
does, or somebody uses them (locks.Use). Somebody needs them who uses them, or is connected. Data stays.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

from spark_replication.process.locked_process import LockedProcess
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.zookeeper_server.layout import server_directories, stored_places
from spark_replication.zookeeper_server.locks import unused
from spark_replication.zookeeper_server.patience import Unused
from spark_replication.zookeeper_server.srvr import clients_in, said_by

WATCHDOG_DIRECTORY = "watchdog"
LOOK_S = 1.0
STOP_TIMEOUT_S = 10.0


def start_watchdog(directory: Path, unused_s: float) -> None:
    """Unless one lives."""
    process = _process_of(directory)
    with process.locked() as lock:
        if lock is not None:
            options = (f"--directory={process.directory}", f"--unused-s={unused_s}")
            process.start((sys.executable, "-m", "spark_replication.zookeeper_server.watchdog", *options), lock)


def stop_watchdog(directory: Path) -> None:
    _process_of(directory).stop(STOP_TIMEOUT_S)


def _process_of(directory: Path) -> LockedProcess:
    return LockedProcess(directory / WATCHDOG_DIRECTORY)


def watch(directory: Path, unused_s: float, stopping: threading.Event) -> None:
    nobody = Unused(unused_s, time.monotonic())
    while not stopping.wait(LOOK_S):
        with unused(directory) as is_unused:
            servers = [process for path in server_directories(directory) if (process := LockedProcess(path)).alive()]
            if is_unused and not servers:
                return
            is_needed = not is_unused or _has_clients(directory)
            if nobody.looked(is_needed=is_needed, now_s=time.monotonic()):
                for server in servers:
                    server.stop(STOP_TIMEOUT_S)


def _has_clients(directory: Path) -> bool:
    return any(clients_in(said_by(place)) for place in stored_places(directory) or ())


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.zookeeper_server.watchdog")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--unused-s", type=float, required=True)
    arguments = parser.parse_args()
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    watch(arguments.directory.parent, arguments.unused_s, stopping)
    return 0


if __name__ == "__main__":
    sys.exit(main())
