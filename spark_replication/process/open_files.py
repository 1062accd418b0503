"""How many log files a broker keeps open. Those that find no place are opened and closed again with each use."""

from __future__ import annotations

import resource

DESCRIPTORS_MAX = 65_536  # that are asked of the host: a broker of ten thousand replicas needs no more


def open_files_max(wanted: int) -> int:
    """`wanted`, or for 0 half of what this process may open: sockets need the rest. The host's soft limit, which is
    often 1,024, is raised as far as the hard one allows."""
    if wanted:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        soft = highest
    return min(DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft, DESCRIPTORS_MAX) // 2
