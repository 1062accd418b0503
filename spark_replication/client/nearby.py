"""Replicas on this host: which of some addresses are here, and what their files hold.

The files are read, not mapped: a disk that fails, or a file that is cut meanwhile, is then an error, and the rest comes
over the network. A map would end the process.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from spark_replication.client.log_batch import LogBatch, log_batches
from spark_replication.messages.ranges import FoundRange
from spark_replication.storage.replica_folder import is_here
from spark_replication.storage.stored_log import StoredLog


def is_nearby(address: str) -> bool:
    """host:port. On this host, as far as that can be seen: what a replica tells of its files says it for sure."""
    return _is_this_host(address.rpartition(":")[0].strip("[]"))


@lru_cache(1_000)
def _is_this_host(host: str) -> bool:
    """A socket can be bound to its address."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as each:
                each.bind(address)
    except (OSError, UnicodeError):
        return False
    return bool(found)


def has_files(found: FoundRange) -> bool:
    """Of the range, for this process to look at."""
    return found.folder is not None and found.start < found.end and is_here(found.folder)


def from_files(found: FoundRange, columns: Sequence[str] | None, newest: pa.Schema) -> Iterator[LogBatch]:
    """The whole range, of the files where they are here. newest: the topic's schema."""
    assert found.folder is not None
    log = StoredLog(Path(found.folder.path), mapped=False)
    stored = log.read(found.start, found.end, end=found.end, columns=columns, newest=newest, verify=True)
    return log_batches(stored, found.high_watermark)
