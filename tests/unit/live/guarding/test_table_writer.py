"""A guardian keeps one writer of tables beside its broker: it is started once there is a topic for it, and when it may
be started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.live.guarding.table_writer import AGAIN_S, FOLDER, STEADY_S, TableWriterKeeper
from spark_replication.live.tables.process import NICENESS
from spark_replication.process.processes import SESSION_NICENESS, LockedProcess
from tests.waiting import eventually

NOBODY = "127.0.0.1:1"


class Beside:
    """A keeper, its clock, and the writer that it keeps."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 1_000.0
        self.directory = directory
        self.process = LockedProcess(directory / FOLDER)
        self.keeper = self.another()

    def another(self) -> TableWriterKeeper:
        return TableWriterKeeper(1, self.directory, NOBODY, {}, lambda: self.now_s)

    def started(self) -> int:
        """Whom the keeper starts when it is told of tables."""
        self.keeper.heed(has_tables=True)
        return self.living()

    def living(self) -> int:
        eventually(lambda: self.process.pid() is not None, "it has said its pid")
        pid = self.process.pid()
        assert pid is not None
        return pid

    def killed(self) -> None:
        os.kill(self.living(), signal.SIGKILL)
        eventually(lambda: not self.process.alive(), "it has ended")

    def starts_after(self, seconds: float) -> bool:
        self.now_s += seconds
        self.keeper.heed(has_tables=True)
        return self.process.alive()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    found = Beside(tmp_path)
    yield found
    found.keeper.stop()
    assert not found.process.alive()


def test_there_is_none_without_tables(beside: Beside) -> None:
    beside.keeper.heed(has_tables=False)
    assert not beside.process.directory.exists()
    beside.keeper.stop()
    assert not beside.process.directory.exists()


def test_one_that_lives_is_left(beside: Beside) -> None:
    pid = beside.started()
    beside.now_s += 10 * AGAIN_S[1]
    beside.keeper.heed(has_tables=True)
    beside.another().heed(has_tables=True)
    beside.keeper.heed(has_tables=False)
    assert beside.living() == pid
    assert beside.process.log_path.read_text().count("Traceback") == 0


@pytest.mark.skipif(not SESSION_NICENESS.exists(), reason="a kernel without groups of sessions")
def test_brokers_come_before_it_though_it_has_a_session_of_its_own(beside: Beside) -> None:
    told = Path(f"/proc/{beside.started()}/autogroup")
    eventually(lambda: told.read_text().endswith(f" nice {NICENESS}\n"), "its session gives way")


def test_one_that_has_ended_is_started_after_a_pause_that_grows(beside: Beside) -> None:
    beside.started()
    for pause_s in (AGAIN_S[0], 2 * AGAIN_S[0], 4 * AGAIN_S[0]):
        beside.killed()
        assert not beside.starts_after(pause_s - 0.1)
        assert beside.starts_after(0.1)


def test_one_that_lived_for_long_is_started_again_at_once(beside: Beside) -> None:
    beside.started()
    beside.killed()
    assert beside.starts_after(AGAIN_S[0])
    beside.now_s += STEADY_S + 1
    beside.keeper.heed(has_tables=True)
    beside.killed()
    assert beside.starts_after(0)
    beside.killed()
    assert not beside.starts_after(AGAIN_S[0] - 0.1)
    assert beside.starts_after(0.1)


def test_no_writer_is_started_once_its_guardian_has_ended(beside: Beside) -> None:
    beside.started()
    beside.keeper.stop()
    assert not beside.process.alive()
    assert not beside.starts_after(STEADY_S)
