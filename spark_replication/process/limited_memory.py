"""A bound on what this process takes of memory, files that it maps aside.

Past it the kernel refuses: Python raises MemoryError, and native code, such as gRPC's, ends the process.
"""

from __future__ import annotations

import resource


def limit_memory(bytes_max: int) -> None:
    """0: no limit."""
    if bytes_max:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
