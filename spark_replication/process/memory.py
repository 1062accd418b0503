"""Memory: a limit for the process, and when Python, and the C library, give back what is unused."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

# A bound on what this process takes of memory, files that it maps aside.
#
# Past it the kernel refuses: Python raises MemoryError, and native code, such as gRPC's, ends the process.

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


# Keeps the memory of one batch for the next.
#
# gRPC takes memory from the C library for each message, and frees it. By default glibc soon gives it back to the
# kernel, and asks for it again, page by page. The kernel clears each page: that took up to half of the processor time
# of a stream of batches, at either end.

KEPT_BYTES = 64 << 20  # free at the end of each of the heaps that glibc has for threads; more goes back
PIECE_BYTES_MAX = 32 << 20  # a larger piece goes back at once; glibc takes no higher value

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_SET_BY_PEOPLE = frozenset({"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"})


@cache
def keep_freed_memory() -> bool:
    """Make this process keep the memory that it frees. Returns False if a person has set how much to keep, or the C
    library refuses."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _SET_BY_PEOPLE & os.environ.keys():
        return False
    return all([mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES), mallopt(_M_MMAP_THRESHOLD, PIECE_BYTES_MAX)])


# A block without the cyclic garbage collector.
#
# While a process makes tens of thousands of values at once, none of which is garbage before it is done, the collector
# would look through all that the process holds again and again. That took a third of the time.


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the collector off for the whole process: so only around code that computes, and waits for nothing. Values
    without cycles are freed as ever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Python's collector of cycles, for a process that holds much and keeps it.
#
# Python looks through everything that a process holds whenever that has grown by a quarter, and all threads stand still
# meanwhile: 0.2 to 0.5 s in a broker or a controller of 10,000 partitions, mostly in the middle of an election, which
# makes so many values. Here a value that such a look has passed is not looked at again until an hour has gone by.

#: How long garbage that is part of a cycle may stay, once it has lived through a look.
EVERYTHING_S = 3_600.0

_OLDEST = 2  # Python's oldest generation: a collection of it is a look through everything that is not frozen


class Collecting:
    """The collector of this process looks at what is new, and once an hour at everything, from `start` to `stop`."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._everything_s = clock_s()  # the time of the last look at everything

    def start(self) -> None:
        """Look at everything now, before anything is served: what imports have left takes 20 ms."""
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._looks)

    def stop(self) -> None:
        gc.callbacks.remove(self._looks)
        gc.unfreeze()

    def _looks(self, phase: str, about: Mapping[str, int]) -> None:
        if about["generation"] < _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock_s() >= self._everything_s + EVERYTHING_S:
            self._everything_s = self._clock_s()
            gc.unfreeze()
