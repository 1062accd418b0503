"""A process is found again as long as it lives, and nobody else for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.process.found_process import ProcessMark, is_seen, open_process, own_mark

TIMEOUT_S = 20.0
TELLS = """
import sys
from spark_replication.process.found_process import own_mark
print(*own_mark(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], ProcessMark]]:
    process = subprocess.Popen([sys.executable, "-c", TELLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, ProcessMark(*map(int, process.stdout.readline().split()))
    process.communicate(timeout=TIMEOUT_S)


def finds(mark: ProcessMark) -> bool:
    found = open_process(mark)
    if found is not None:
        os.close(found)
    return found is not None


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_process_is_found_while_it_lives(other: tuple[subprocess.Popen[str], ProcessMark]) -> None:
    process, mark = other
    assert (mark.pid, is_seen(mark), finds(mark)) == (process.pid, True, True)
    process.communicate(timeout=TIMEOUT_S)
    assert not finds(mark)


def test_whoever_has_its_pid_since_is_not_taken_for_it(other: tuple[subprocess.Popen[str], ProcessMark]) -> None:
    _, mark = other
    before = descriptors()
    assert not finds(mark._replace(started=mark.started - 1))
    assert descriptors() == before


def test_what_an_earlier_release_has_written_is_its_pid_alone() -> None:
    mark = ProcessMark(os.getpid())
    assert is_seen(mark)
    assert finds(mark)


def test_of_another_namespace_nothing_is_seen() -> None:
    own = own_mark()
    assert is_seen(own)
    assert not is_seen(own._replace(namespace=own.namespace + 1))
