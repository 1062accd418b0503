"""Drivers that stand by: on the seat of one that dies they need not wait for its session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.cluster.faults import hang
from tests.live.zk.conftest import Cluster
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SESSION_MS = 30_000
WAIT_S = 60.0


class Drivers:
    """Processes that want to control one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, directory: Path) -> tuple[subprocess.Popen[bytes], Path]:
        settings = {"zookeeper.session.ms": SESSION_MS, "zk.chroot": self._cluster.chroot}
        log = directory.parent / f"{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "spark_replication.live.controller.process",
                    f"--directory={directory}",
                    f"--mirror={directory.parent / 'mirror'}",
                    f"--zookeeper={self._cluster.address}",
                    f"--settings={json.dumps(settings)}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        return process, log


@pytest.fixture
def drivers(cluster: Cluster) -> Iterator[Drivers]:
    drivers = Drivers(cluster)
    yield drivers
    for process in drivers.processes:
        process.kill()
        process.wait()


def wait_until(holds: Callable[[], bool]) -> None:
    eventually(holds, "it is said, or over", WAIT_S)


def says(log: Path, text: str) -> bool:
    return text in log.read_text(errors="replace")


def test_one_that_stands_by_on_the_same_seat_takes_over_at_once(drivers: Drivers, tmp_path: Path) -> None:
    first, log = drivers.start(tmp_path / "controller")
    wait_until(lambda: says(log, "controller at epoch 1"))
    _, next_log = drivers.start(tmp_path / "controller")
    wait_until(lambda: says(next_log, "standing by"))
    _, third_log = drivers.start(tmp_path / "elsewhere")
    wait_until(lambda: says(third_log, "standing by"))
    killed_s = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    wait_until(lambda: says(next_log, "controller at epoch 2"))
    assert time.monotonic() - killed_s < SESSION_MS / 1000 / 3
    assert not says(third_log, "controller at epoch"), "it does not know whether the first has died"


def test_one_that_stands_by_does_not_end_a_driver_that_lives(drivers: Drivers, tmp_path: Path) -> None:
    first, log = drivers.start(tmp_path / "controller")
    wait_until(lambda: says(log, "controller at epoch 1"))
    _, next_log = drivers.start(tmp_path / "controller")
    wait_until(lambda: says(next_log, "standing by"))
    hang(first.pid)  # it hangs, and its session goes on for a while
    looked_s = time.monotonic()
    wait_until(lambda: time.monotonic() - looked_s > 1)
    assert not says(next_log, "controller at epoch")
    os.kill(first.pid, signal.SIGCONT)
    os.kill(first.pid, signal.SIGTERM)
    wait_until(lambda: says(next_log, "controller at epoch 2"))
