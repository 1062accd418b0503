"""A process of which one lives per directory: started, found and stopped by whoever looks there."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.process.processes import PID_FILE, LockedProcess
from tests.waiting import eventually

STOP_S = 10.0
HELD_FILE = "held"
# Reads the pipe's end as soon as nobody holds it open for writing, even if nobody does any longer when it is opened.
SLEEPS_WHILE_HELD = """
import os, sys
held = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
os.set_blocking(held, True)
os.read(held, 1)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LockedProcess]:
    """It names its directory, and sleeps. It outlives neither the test nor, however that ends, the test's process."""
    os.mkfifo(tmp_path / HELD_FILE)
    holds = os.open(tmp_path / HELD_FILE, os.O_RDWR)
    process = LockedProcess(tmp_path)
    with process.locked() as lock:
        assert lock is not None
        child = process.start((sys.executable, "-c", SLEEPS_WHILE_HELD, str(tmp_path / HELD_FILE)), lock)
    try:
        deadline = time.monotonic() + STOP_S
        while process.pid() is None:
            assert time.monotonic() < deadline
        yield process
    finally:
        os.close(holds)
        child.kill()
        child.wait(STOP_S)


def test_one_that_has_not_said_its_pid_yet_is_stopped_all_the_same(process: LockedProcess) -> None:
    pid_file = process.directory / PID_FILE
    said = pid_file.read_text()
    pid_file.unlink()
    saying = threading.Timer(0.3, lambda: pid_file.write_text(said))
    saying.start()
    try:
        assert process.stop(STOP_S)
        assert not process.alive()
    finally:
        saying.join()


def test_one_that_never_says_it_is_not_waited_for_for_long(process: LockedProcess) -> None:
    pid_file = process.directory / PID_FILE
    said = pid_file.read_text()
    pid_file.write_text("1")
    assert not process.stop(STOP_S)
    pid_file.write_text(said)
    assert process.stop(STOP_S)
    assert process.stop(STOP_S), "none lives"


BECOMES_ITSELF = 'exec /bin/sh -c "$0" "$0" "$1"'


def test_one_that_becomes_another_program_keeps_its_pid(tmp_path: Path) -> None:
    process = LockedProcess(tmp_path)
    with process.locked() as lock:
        assert lock is not None
        child = process.start(("/bin/sh", "-c", BECOMES_ITSELF, BECOMES_ITSELF, str(tmp_path)), lock)
    try:
        eventually(lambda: process.pid() is not None, "it has said its pid")
        assert {process.pid() for _ in range(500)} == {child.pid}
        assert process.stop(STOP_S)
    finally:
        child.kill()
        child.wait(STOP_S)
    assert process.pid() is None
