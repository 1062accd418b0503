"""What a process uses and holds, as Linux tells it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = 100.0  # of /proc/<pid>/stat: Linux shows hundredths of seconds, whatever its clock


def cpu_s_of(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        # The program's name, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return total


def memory_kb(pid: int) -> int:
    """The resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
