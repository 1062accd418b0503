"""Measures the take-over from a killed controller: until a successor holds /controller, until the successor has loaded
everything, and until every broker has answered its INIT.

There are two successors. One is the process that LocalCluster starts in place of the dead one: it knows by the lock on
its directory that its predecessor is dead. The other stood by already, as the driver of another Spark application does:
only ZooKeeper's session timeout tells it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from spark_replication.admin.bench.cluster import (
    PATIENT,
    ControllerLog,
    Filled,
    FirstSeen,
    eventually,
    session_with,
)
from spark_replication.admin.bench.replicate import BROKERS, Progress
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.zk import paths
from spark_replication.zk.session import Session

END_TIMEOUT_S = 30.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds are those since the kill. For a standby they include the session timeout, session_ms."""

    partitions: int
    successor: str
    session_ms: int
    #: The successor holds /controller.
    won_ms: int
    #: The successor has read everything.
    loaded_ms: int
    #: Every broker has answered the successor's INIT.
    told_ms: int


COLUMNS = Figures.__struct_fields__


def takeover(filled: Filled, progress: Progress) -> Iterator[Figures]:
    cluster = filled.cluster
    with session_with(cluster) as session:
        log = cluster.directory / "controller" / "log"
        figures = partial(killed, session, log, partitions=filled.partitions, session_ms=filled.session_ms)
        assert cluster.controller_pid is not None, "a healthy cluster has a controller"
        progress("the controller is killed; its guardian starts another")
        yield figures(cluster.controller_pid, successor="restarted")
        with _other_controller(filled) as (other, other_log):
            progress("another controller takes over when the first resigns, which then stands by")
            resigned = cluster.controller_pid
            assert resigned is not None, "it has just taken over"
            os.kill(resigned, signal.SIGTERM)
            _wait_told(ControllerLog(other_log, from_start=True))
            eventually(partial(_stands_by, cluster, resigned, log), "the first controller's process is there again")
            progress("the other controller is killed; the first stands by")
            yield figures(other.pid, successor="standby")


def killed(session: Session, path: Path, pid: int, *, successor: str, partitions: int, session_ms: int) -> Figures:
    """Kill the controller of this pid, and measure its successor, which logs to this path."""
    holder = session.read_now(paths.CONTROLLER)
    assert holder is not None, "it is held"
    won = FirstSeen(session, paths.CONTROLLER, lambda node: node is not None and node.owner != holder.owner)
    log = ControllerLog(path)
    killed_s = time.time()
    os.kill(pid, signal.SIGKILL)
    won_s = won.wait("is another's")
    _wait_told(log)
    return Figures(
        partitions=partitions,
        successor=successor,
        session_ms=session_ms,
        won_ms=round(1_000 * (won_s - killed_s)),
        loaded_ms=round(1_000 * (log.loaded_s[-1] - killed_s)),
        told_ms=round(1_000 * (log.told[-1].at_s - killed_s)),
    )


def _wait_told(log: ControllerLog) -> None:
    def told() -> bool:
        log.read()
        return len({each.broker for each in log.told if each.init}) == BROKERS

    eventually(told, "every broker has answered the INIT")


@contextmanager
def _other_controller(filled: Filled) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Another controller of the same cluster, in a directory of its own."""
    cluster = filled.cluster
    settings = {**PATIENT, "zookeeper.session.ms": filled.session_ms}
    directory = cluster.directory / "standby"
    directory.mkdir()
    command = (
        sys.executable,
        "-m",
        "spark_replication.live.controller.process",
        f"--directory={directory}",
        f"--mirror={cluster.mirror_path}",
        f"--zookeeper={cluster.zookeeper.removeprefix('zk://').partition('/')[0]}",
        f"--settings={json.dumps(settings)}",
    )
    path = directory / "log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        eventually(lambda: b"standing by" in path.read_bytes(), "the other controller stands by")
        yield process, path
    finally:
        process.kill()
        process.wait(END_TIMEOUT_S)


def _stands_by(cluster: LocalCluster, before: int, log: Path) -> bool:
    return cluster.controller_pid not in (None, before) and log.read_bytes().count(b"standing by") > 0
