"""Finds a process again by the mark that it has written down. A pid alone is no proof: pids are reused, and in another
PID namespace (a container's) the same number is another process, or none.

| what is known of the marked process            | find_process                             |
| ---------------------------------------------- | ---------------------------------------- |
| it is in another PID namespace                 | NOT_SEEN                                 |
| no process here has its pid                    | ENDED                                    |
| the process with its pid began at another time | ENDED                                    |
| /proc does not show when that process began    | NOT_SEEN: /proc is not of this namespace |
| it began when the mark says                    | a pidfd                                  |
| the mark does not say when it began            | a pidfd                                  |
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from spark_replication.process.descriptors import readable

# The place of field 22 of /proc/<pid>/stat among those after the name, which is in brackets and may hold anything.
_STARTED = 19


class ProcessMark(NamedTuple):
    """What identifies a process. A 0 is not known, since an earlier release has written the mark."""

    pid: int
    #: The PID namespace in which the process has this pid.
    namespace: int = 0
    #: In ticks since the host's start.
    started: int = 0


class Unfound(Enum):
    ENDED = "it has ended"
    NOT_SEEN = "this process can say nothing of it"


def own_mark() -> ProcessMark:
    """The mark of this process. It is right even if /proc is of another namespace: /proc is asked for `self`, never for
    a pid."""
    return ProcessMark(os.getpid(), own_namespace(), started_of("self"))


def own_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def find_process(mark: ProcessMark) -> int | Unfound:
    """A pidfd of that very process, or why there is none. Raises OSError if this process cannot look (too many open
    files, say), which tells nothing about the other one."""
    if mark.namespace not in {0, own_namespace()}:
        return Unfound.NOT_SEEN
    try:
        found = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return Unfound.ENDED
    try:
        unfound = _compared(found, mark)
    except BaseException:
        os.close(found)
        raise
    if unfound is None:
        return found
    os.close(found)
    return unfound


def started_of(shown: str) -> int:
    """When the process that /proc shows by this name began, in ticks since the host's start."""
    told = Path(f"/proc/{shown}/stat").read_bytes()
    return int(told.rpartition(b")")[2].split()[_STARTED])


def _compared(pidfd: int, mark: ProcessMark) -> Unfound | None:
    """None if the pidfd is of the marked process."""
    if not mark.started:
        return None
    try:
        # Ask /proc for the pid again: /proc may be of another namespace, where the process has another pid.
        started = started_of(_shown(pidfd))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return Unfound.ENDED if readable((pidfd,), 0) else Unfound.NOT_SEEN
    return None if started == mark.started else Unfound.ENDED


def _shown(pidfd: int) -> str:
    """The pid that /proc shows the process by; -1 if it has ended, 0 if /proc does not show it."""
    told = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    return next(line.split()[1] for line in told.splitlines() if line.startswith("Pid:"))
