"""A process is found again as long as it lives, and nobody else for it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from spark_replication.process import processes
from spark_replication.process.processes import ProcessMark, Unfound, find_process, own_mark

TIMEOUT_S = 20.0
TELLS = """
import sys
from spark_replication.process.processes import own_mark
print(*own_mark(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], ProcessMark]]:
    process = subprocess.Popen([sys.executable, "-c", TELLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, ProcessMark(*map(int, process.stdout.readline().split()))
    process.communicate(timeout=TIMEOUT_S)


def sought(mark: ProcessMark) -> Unfound | None:
    """None: it was found."""
    found = find_process(mark)
    if isinstance(found, Unfound):
        return found
    os.close(found)
    return None


@pytest.fixture(autouse=True)
def closes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every pidfd is closed in the end. Other threads of this process open and close what is theirs."""
    opened, closed = [], []
    pidfd_open, close = os.pidfd_open, os.close

    def opens(pid: int, flags: int = 0) -> int:
        opened.append(pidfd_open(pid, flags))
        return opened[-1]

    def noted(number: int) -> None:
        closed.append(number)
        close(number)

    monkeypatch.setattr(os, "pidfd_open", opens)
    monkeypatch.setattr(os, "close", noted)
    yield
    assert set(opened) <= set(closed)


def test_a_process_is_found_until_it_has_ended(other: tuple[subprocess.Popen[str], ProcessMark]) -> None:
    process, mark = other
    assert mark.pid == process.pid
    assert sought(mark) is None
    process.communicate(timeout=TIMEOUT_S)
    assert sought(mark) is Unfound.ENDED


def test_whoever_has_its_pid_since_is_not_taken_for_it(other: tuple[subprocess.Popen[str], ProcessMark]) -> None:
    _, mark = other
    assert sought(mark._replace(started=mark.started - 1)) is Unfound.ENDED


def test_what_an_earlier_release_has_written_is_its_pid_alone() -> None:
    assert sought(ProcessMark(os.getpid())) is None


def test_of_another_namespace_nothing_is_seen() -> None:
    own = own_mark()
    assert sought(own._replace(namespace=own.namespace + 1)) is Unfound.NOT_SEEN


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ESRCH, errno.EACCES])
def test_one_that_lives_and_is_not_shown_is_not_taken_for_ended(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(processes, "started_of", refusing(error))
    assert sought(ProcessMark(os.getpid(), started=1)) is Unfound.NOT_SEEN


def test_who_cannot_look_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "started_of", refusing(errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        find_process(ProcessMark(os.getpid(), started=1))


def refusing(error: int) -> Callable[[str], int]:
    def refuse(shown: str) -> int:
        raise OSError(error, os.strerror(error), shown)

    return refuse


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")
def test_a_process_is_found_where_proc_is_another_namespaces() -> None:
    """Its pid is somebody else's there."""
    script = """
import os
from pathlib import Path
from spark_replication.process.processes import find_process, own_mark
mark = own_mark()
stat = Path("/proc/self/stat").read_text()
assert not stat.startswith(f"{mark.pid} "), "it is"
assert str(mark.started) in stat
assert os.get_blocking(find_process(mark)), "it is a pidfd"
"""
    subprocess.run(["unshare", "--pid", "--fork", sys.executable, "-c", script], check=True, timeout=TIMEOUT_S)
