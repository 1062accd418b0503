"""Whether freed memory stays with the process: seen by the pages that it must be given again."""

from __future__ import annotations

import subprocess
import sys

import pytest

# 16 pieces of 1 MiB, written and freed again and again: 4,096 pages each time, if they go back.
STORY = """
import ctypes, resource, sys
from spark_replication.process.memory import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
kept = keep_freed_memory() if "keep" in sys.argv else None
def use():
    pieces = [libc.malloc(1 << 20) for _ in range(16)]
    for piece in pieces:
        ctypes.memset(piece, 1, 1 << 20)
    for piece in pieces:
        libc.free(piece)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def told(*arguments: str, **environment: str) -> tuple[str, int]:
    command = [sys.executable, "-c", STORY, *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    kept, faults = said.split()
    return kept, int(faults)


def test_it_goes_back_to_the_system_unless_it_is_kept() -> None:
    assert told()[1] >= 10 * 3_000
    kept, faults = told("keep")
    assert kept == "True"
    assert faults < 4_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "assigned",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
    ids=str,
)
def test_what_people_have_set_counts(assigned: dict[str, str]) -> None:
    kept, faults = told("keep", **assigned)
    assert kept == "False"
    assert faults >= 10 * 3_000
