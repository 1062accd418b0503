"""An embedded ZooKeeper ends by itself once nobody needs it, and not before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.process.processes import LockedProcess
from spark_replication.zk.operations import Create
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, stop_directory
from spark_replication.zookeeper_server.keeper import Keeper
from spark_replication.zookeeper_server.watchdog import WATCHDOG_DIRECTORY, Watchdog
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

UNUSED_S = 2.0
LONG_S = 6.0
KEEPS = """
import sys
from spark_replication.zookeeper_server.keeper import Keeper
from tests.waiting import eventually
keeper = Keeper.start(sys.argv[1], 60, unused_s=float(sys.argv[2]))
print(keeper.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "zookeeper"
    yield directory
    Watchdog(directory, 0.0).stop()
    stop_directory(directory)


def keeper_in(directory: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", KEEPS, str(directory), str(UNUSED_S)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def lives(directory: Path) -> bool:
    found = EmbeddedZooKeeper.found_in(directory)
    return found is not None and found.alive()


def watchdog_in(directory: Path) -> LockedProcess:
    return LockedProcess(directory / WATCHDOG_DIRECTORY)


def watched(directory: Path) -> bool:
    return watchdog_in(directory).alive()


def session_of(address: str) -> Session:
    return Session.connect(address, "", session_timeout_ms=4_000, request_timeout_ms=10_000)


def test_what_a_killed_keeper_leaves_ends_and_its_data_stays(directory: Path) -> None:
    process, address = keeper_in(directory)
    session = session_of(address)
    session.commit_now((Create("/kept", b""),))
    session.close()
    end(process)
    eventually(lambda: not lives(directory) and not watched(directory), "both have ended")
    assert "nobody has needed" in watchdog_in(directory).log_path.read_text()
    again = Keeper.start(directory, 60)
    assert again.address == address
    session = session_of(address)
    assert session.children_now("/kept") == []
    session.close()
    assert again.stop()


def test_it_stays_while_a_client_is_connected(directory: Path) -> None:
    process, address = keeper_in(directory)
    session = session_of(address)
    end(process)
    with pytest.raises(AssertionError):
        eventually(lambda: not lives(directory), "it ends", LONG_S)
    session.close()
    eventually(lambda: not lives(directory), "it ends")


def test_it_stays_while_somebody_uses_it(directory: Path) -> None:
    process, _ = keeper_in(directory)
    other = Keeper.start(directory, 60)
    end(process)
    with pytest.raises(AssertionError):
        eventually(lambda: not lives(directory), "it ends", LONG_S)
    assert other.stop()
    assert not watched(directory)


def test_who_says_no_time_leaves_it_for_ever(directory: Path) -> None:
    keeper = Keeper.start(directory, 60)
    assert not watched(directory)
    assert keeper.stop()


def test_who_comes_later_and_says_another_time_is_heard(directory: Path) -> None:
    process, _ = keeper_in(directory)
    for_ever = Keeper.start(directory, 60)
    end(process)
    for_ever.leave()
    assert watched(directory)
    with pytest.raises(AssertionError):
        eventually(lambda: not lives(directory), "it ends", LONG_S)
    Keeper.start(directory, 60, unused_s=UNUSED_S).leave()
    eventually(lambda: not lives(directory) and not watched(directory), "both have ended")


def test_a_watchdog_that_was_killed_is_there_again_while_somebody_uses_it(directory: Path) -> None:
    keeper = Keeper.start(directory, 60, unused_s=UNUSED_S)
    eventually(lambda: watchdog_in(directory).pid() is not None, "one watches")
    first = watchdog_in(directory).pid()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: watchdog_in(directory).pid() not in (None, first), "another watches")
    assert keeper.stop()
    assert not watched(directory)
