"""Keeps the memory of one batch for the next.

gRPC takes memory from the C library for each message, and frees it. By default glibc soon gives it back to the kernel,
and asks for it again, page by page. The kernel clears each page: that took up to half of the processor time of a stream
of batches, at either end.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

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
