"""A broker that does not answer is ended by signals, of the guardian that holds its lease and of no other."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.engine.guarding.leases import Lease
from spark_replication.live.broker.lease import LEASE_FILE, LeaseFile
from spark_replication.live.guarding import guardian
from spark_replication.live.guarding.broker_file import BrokerFile, write_broker_file
from spark_replication.live.guarding.guardian import DIRECTORY, Assignment, Guardian
from spark_replication.messages.actions import SHUTDOWN
from spark_replication.messages.envelope import Done
from spark_replication.messages.guarding import Shutdown
from spark_replication.model import encode
from spark_replication.storage.directory.broker_directory import DirectoryLock
from spark_replication.transport.flight.actions import ActionServer, handled
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY

MINE = (3, 7)
NOBODY_LISTENS = 1
WAIT_S = 20.0
# It hangs: it answers nobody, and a SIGTERM is no reason for it to end. `then`: what happens meanwhile.
HANGS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: exec(sys.argv[1]))
print(flush=True)
while True:
    time.sleep(60)
"""


@contextmanager
def broker(
    directory: Path,
    then: str = "sys.exit()",
    pid_namespace: int = 0,
    started: int = 0,
    port: int = NOBODY_LISTENS,
) -> Iterator[subprocess.Popen[bytes]]:
    directory.mkdir()
    lock = DirectoryLock.take(directory)
    process = subprocess.Popen([sys.executable, "-c", HANGS, then], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        serving = BrokerFile(
            pid=process.pid,
            pid_namespace=pid_namespace,
            started=started,
            incarnation="a",
            host="127.0.0.1",
            port=port,
            replication_port=2,
            epoch=0,
        )
        write_broker_file(directory, serving)
        yield process
    finally:
        process.kill()
        process.communicate()
        lock.release()


def shut_down(directory: Path, timeout_s: float = 1.0) -> None:
    assignment = Assignment(
        log_directory=str(directory.parent), cluster_id="ours", zookeeper="", host="127.0.0.1", overrides={}
    )
    settings = settings_from({"controlled.shutdown.timeout.ms": 1})
    ours = Guardian(1, assignment, Lease(*MINE), settings=settings, security=NO_SECURITY, report=lambda _died: None)
    ours.shut_down(timeout_s)


def lease_of(held: tuple[int, int]) -> bytes:
    return encode(LeaseFile(controller_epoch=held[0], attempt=held[1]))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / DIRECTORY.format(1)


@pytest.mark.parametrize("held", [None, MINE])
def test_the_present_guardian_ends_a_broker_that_hangs(directory: Path, held: tuple[int, int] | None) -> None:
    with broker(directory) as process:
        if held is not None:
            (directory / LEASE_FILE).write_bytes(lease_of(held))
        shut_down(directory, WAIT_S)
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("lease", [lease_of((3, 8)), b"damaged"])
def test_a_guardian_that_was_taken_over_or_cannot_tell_sends_no_signal(directory: Path, lease: bytes) -> None:
    with broker(directory) as process:
        (directory / LEASE_FILE).write_bytes(lease)
        shut_down(directory)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_what_does_not_end_by_itself_is_killed(directory: Path) -> None:
    with broker(directory, then="pass") as process:
        (directory / LEASE_FILE).write_bytes(lease_of(MINE))
        shut_down(directory)
        assert process.wait(WAIT_S) == -9


@pytest.mark.parametrize("flush_s", [WAIT_S, 0.1])
def test_a_broker_that_has_heard_has_the_time_to_flush_too_and_no_more(
    directory: Path, monkeypatch: pytest.MonkeyPatch, flush_s: float
) -> None:
    monkeypatch.setattr(guardian, "FLUSH_TIMEOUT_S", flush_s)
    heard: list[Shutdown] = []

    def stopped(request: Shutdown) -> Done:
        heard.append(request)
        return Done()

    server = ActionServer("127.0.0.1", [handled(SHUTDOWN, stopped)], rights=Rights(NO_SECURITY))
    try:
        with broker(directory, port=server.port) as process:
            (directory / LEASE_FILE).write_bytes(lease_of(MINE))
            ends = threading.Timer(1.0, process.terminate)  # flushed
            if flush_s == WAIT_S:
                ends.start()
            shut_down(directory, timeout_s=0.1)
            assert process.wait(WAIT_S) == (0 if flush_s == WAIT_S else -9)
    finally:
        server.stop(1)
    assert heard == [Shutdown(controller_epoch=MINE[0], attempt=MINE[1], with_all=True)]


def test_nothing_is_killed_that_was_taken_over_meanwhile(directory: Path) -> None:
    taken = f"open({str(directory / LEASE_FILE)!r}, 'wb').write({lease_of((4, 0))!r})"
    with broker(directory, then=taken) as process:
        (directory / LEASE_FILE).write_bytes(lease_of(MINE))
        shut_down(directory, timeout_s=4.0)  # the process is to hear its SIGTERM before, on a busy machine too
        assert (directory / LEASE_FILE).read_bytes() == lease_of((4, 0))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


@pytest.mark.parametrize(("pid_namespace", "started"), [(1, 0), (0, 1)])
def test_whoever_has_that_pid_here_gets_no_signal(
    directory: Path, caplog: pytest.LogCaptureFixture, pid_namespace: int, started: int
) -> None:
    """The broker's number is of another namespace; or the broker has ended, and somebody else has its number now."""
    with broker(directory, pid_namespace=pid_namespace, started=started) as process:
        (directory / LEASE_FILE).write_bytes(lease_of(MINE))
        shut_down(directory)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    assert "end it by hand" in caplog.text
