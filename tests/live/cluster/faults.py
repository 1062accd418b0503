"""What is done to the processes of a cluster, and undone."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import spark_replication as sr
from spark_replication.errors import DirectoryInUse
from spark_replication.process.processes import wait_ended
from spark_replication.storage.directory.broker_directory import DirectoryLock
from tests.waiting import eventually

END_TIMEOUT_S = 10.0


def kill(*pids: int | None) -> None:
    """SIGKILL, to all of them before any is waited for."""
    found = [pid for pid in pids if pid is not None]
    assert len(found) == len(pids), "each is alive"
    ends = [os.pidfd_open(pid) for pid in found]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    for end in ends:
        assert wait_ended(end, END_TIMEOUT_S)
        os.close(end)


def hang(pid: int | None) -> None:
    """SIGSTOP: it keeps its connections, its locks and its memory, and does nothing. On a busy machine its threads stop
    a moment later than kill(2) returns, and may answer until then."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: thread_states(pid) <= {"T"}, f"every thread of {pid} is stopped", END_TIMEOUT_S)


def thread_states(pid: int) -> set[str]:
    """As in proc(5). Of a thread that ends meanwhile: none."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    """It hangs until the end of the block, or until its guardian puts an end to it."""
    assert pid is not None
    hang(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def full_disk(pid: int, allowed_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond that."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (allowed_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def held_down(cluster: sr.LocalCluster, broker: int) -> Iterator[None]:
    """Killed, and kept from starting again: somebody else has its directory."""
    found = cluster.brokers[broker]
    kill(found.pid)
    with ExitStack() as held:

        def taken() -> bool:
            try:
                lock = DirectoryLock.take(Path(found.log_dir))
            except DirectoryInUse:  # its guardian was faster
                kill(cluster.brokers[broker].pid)
                return False
            held.callback(lock.release)
            return True

        eventually(taken, f"broker {broker} is kept from starting")
        yield
