"""Until something is there, and who has started whom."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

TIMEOUT_S = 180.0
POLL_S = 0.1

T = TypeVar("T")


def wait_for(what: str, found: Callable[[], T | None], timeout_s: float = TIMEOUT_S) -> T:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(POLL_S)
    raise AssertionError(f"{what}: not within {timeout_s} s")


def left_behind(data: Path) -> list[int]:
    """The processes that name this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(data).encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def children(*parents: int) -> list[tuple[int, bytes]]:
    """The processes that these have started, and their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent in parents:
            found.append((int(path.name), command))
    return sorted(found)
