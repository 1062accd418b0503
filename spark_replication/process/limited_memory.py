"""A bound on what this process takes of memory, files that it maps aside.

Past it the kernel refuses: Python raises MemoryError, and native code, such as gRPC's, ends the process.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

NO_LIMIT = -1
HALF = 0  # of what there is
HALF_BYTES_MIN = 1 << 30  # a broker at rest takes 0.4 GB, most of it stacks and other room that it does not touch

# What a container may take, as it is seen from within: cgroups of version 2, and of version 1.
_CONTAINERS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def limit_memory(bytes_max: int) -> None:
    """bytes_max: or NO_LIMIT, or HALF."""
    if bytes_max == NO_LIMIT:
        return
    soft = bytes_max or max(memory_bytes() // 2, HALF_BYTES_MIN)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def memory_bytes() -> int:
    """What this host has, or its container may take, if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CONTAINERS:
        with suppress(OSError, ValueError):  # no such cgroup, or it says "max"
            found.append(int(file.read_text()))
    return min(found)
