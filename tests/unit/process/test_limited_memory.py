"""How much memory a process may take: in processes of their own, since a limit stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_replication.process import memory
from spark_replication.process.memory import HALF, HALF_BYTES_MIN, NO_LIMIT, memory_bytes

PROGRAM = """
import mmap, resource, sys
from spark_replication.process.memory import limit_memory
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]), int(sys.argv[2])))
limit_memory(int(sys.argv[1]))
try:
    mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # as malloc takes it
    print("taken", end=" ")
except OSError:
    print("refused", end=" ")
print(resource.getrlimit(resource.RLIMIT_DATA)[0])
"""


def said(*arguments: int) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_process_takes_no_more_than_its_limit() -> None:
    assert said(2 << 30) == ["refused", str(2 << 30)]
    assert said(NO_LIMIT)[0] == "taken"


def test_a_limit_that_was_set_before_is_not_widened() -> None:
    assert said(2 << 30, 1 << 30) == ["refused", str(1 << 30)]
    assert said(HALF, 1 << 30) == ["refused", str(1 << 30)]


def test_unless_told_otherwise_it_takes_half_of_what_there_is() -> None:
    assert said(HALF)[1] == str(max(memory_bytes() // 2, HALF_BYTES_MIN))


@pytest.mark.parametrize(
    ("told", "expected"), [("1073741824\n", 1 << 30), ("max\n", None), ("9223372036854771712\n", None)]
)
def test_a_container_may_have_less_than_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, expected: int | None
) -> None:
    file = tmp_path / "memory.max"
    file.write_text(told)
    monkeypatch.setattr(memory, "_CONTAINERS", ())
    of_host = memory_bytes()
    monkeypatch.setattr(memory, "_CONTAINERS", (tmp_path / "no-such-cgroup", file))
    assert memory_bytes() == (of_host if expected is None else expected)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["live.broker.process", "live.controller.process", "transport.flight.door_process"])
def test_nothing_takes_memory_of_arrow_before_the_limit_is_set(module: str) -> None:
    """Arrow would reserve 1 GiB at once, which counts, and which it does without where a limit refuses it."""
    program = f"import pyarrow, spark_replication.{module}; print(pyarrow.default_memory_pool().max_memory())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"
