"""How a guardian hears of its broker's end, and whom its signals reach."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_replication.live.guarding.broker_file import BrokerFile
from spark_replication.live.guarding.broker_watch import BrokerWatch
from spark_replication.process.processes import own_namespace
from spark_replication.storage.directory.broker_directory import DirectoryLock

LOOK_S = 0.05
TIMEOUT_S = 20.0


@contextmanager
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        yield started
    finally:
        started.kill()
        started.communicate(timeout=TIMEOUT_S)


def broker_file(pid: int, *, pid_namespace: int = 0, started: int = 0) -> BrokerFile:
    return BrokerFile(
        pid=pid,
        pid_namespace=pid_namespace,
        started=started,
        incarnation="a",
        host="127.0.0.1",
        port=1,
        replication_port=2,
        epoch=0,
    )


def test_its_end_is_told_and_a_signal_after_it_is_nothing(tmp_path: Path) -> None:
    with process() as broker, BrokerWatch(tmp_path, broker_file(broker.pid)) as watch:
        assert watch.is_seen
        assert not watch.ended_within(LOOK_S)
        watch.signal(signal.SIGTERM)
        assert watch.ended_within(TIMEOUT_S)
        assert broker.wait(TIMEOUT_S) == -signal.SIGTERM
        watch.signal(signal.SIGKILL)


@pytest.mark.parametrize(("pid_namespace", "started"), [(1, 0), (0, 1)])
def test_of_one_that_is_not_seen_the_lock_tells_the_end(tmp_path: Path, pid_namespace: int, started: int) -> None:
    """Whoever has its number here is somebody else."""
    lock = DirectoryLock.take(tmp_path)
    found = broker_file(os.getpid(), pid_namespace=pid_namespace, started=started)
    with BrokerWatch(tmp_path, found) as watch:
        assert not watch.is_seen
        assert not watch.ended_within(LOOK_S)
        watch.signal(signal.SIGKILL)
        lock.release()
        assert watch.ended_within(TIMEOUT_S)


@pytest.mark.parametrize("pid_namespace", [0, 1])
def test_who_is_woken_waits_no_longer(tmp_path: Path, pid_namespace: int) -> None:
    lock = DirectoryLock.take(tmp_path)
    waking, wake = os.pipe()
    os.write(wake, b"x")
    with process() as broker, BrokerWatch(tmp_path, broker_file(broker.pid, pid_namespace=pid_namespace)) as watch:
        assert not watch.ended_within(10 * TIMEOUT_S, waking)
    lock.release()
    os.close(waking)
    os.close(wake)


def test_the_same_namespace_is_no_other(tmp_path: Path) -> None:
    with BrokerWatch(tmp_path, broker_file(os.getpid(), pid_namespace=own_namespace())) as watch:
        assert watch.is_seen
