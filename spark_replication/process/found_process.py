"""A process that others are to find again by what it has written down. A pid alone lies: pids are used again, and in
another PID namespace (a container's) the same number is somebody else, or nobody."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# What /proc/<pid>/stat tells after the name, which is in brackets and may hold anything: the 22nd of all its fields.
_STARTED = 19


class ProcessMark(NamedTuple):
    """namespace: of PIDs, the one that its pid is a number of. started: in ticks since the host's start. 0: not known,
    since an earlier release has written it."""

    pid: int
    namespace: int = 0
    started: int = 0


def own_mark() -> ProcessMark:
    return ProcessMark(os.getpid(), own_namespace(), _started(os.getpid()) or 0)


def own_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def is_seen(mark: ProcessMark) -> bool:
    """Whether this process can say anything of it."""
    return mark.namespace in {0, own_namespace()}


def open_process(mark: ProcessMark) -> int | None:
    """A pidfd of that very process, which `is_seen`. None: it has ended."""
    try:
        found = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return None
    # With the pidfd in hand: whoever has this pid by now keeps it meanwhile, or the pidfd says that it has ended.
    if mark.started and _started(mark.pid) != mark.started:
        os.close(found)
        return None
    return found


def _started(pid: int) -> int | None:
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
        return int(told.rpartition(b")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None
