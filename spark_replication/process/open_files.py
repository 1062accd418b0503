"""How many log files a broker keeps open. Files beyond that number are closed, and opened again when they are used."""

from __future__ import annotations

import resource

DESCRIPTORS_MAX = 65_536  # no more is asked of the host: a broker of ten thousand replicas needs no more


def open_files_max(wanted: int) -> int:
    """`wanted`; if that is 0, half of the files that this process may open, since sockets need the rest. The soft
    limit, often 1,024, is raised as far as the hard one allows."""
    if wanted:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        soft = highest
    return min(DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft, DESCRIPTORS_MAX) // 2
