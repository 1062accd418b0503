"""Replicas on this host: which addresses are here, and what the files of a replica hold.

The files are read, not mapped. So a disk that fails, or a file that is cut meanwhile, is an error, and the rest comes
over the network. With a map, the kernel would end the process.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from spark_replication.client.reading.log_batch import LogBatch, log_batches
from spark_replication.messages.ranges import FoundRange
from spark_replication.storage.directory.replica_folder import is_here
from spark_replication.storage.directory.stored_log import StoredLog


def is_nearby(address: str) -> bool:
    """Whether this address (host:port) seems to be on this host. Only what a replica says about its files is sure."""
    return _is_this_host(address.rpartition(":")[0].strip("[]"))


@lru_cache(1_000)
def _is_this_host(host: str) -> bool:
    """Whether a socket can be bound to the host's address."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as each:
                each.bind(address)
    except (OSError, UnicodeError):
        return False
    return bool(found)


def has_files(found: FoundRange, files_uid: int | None) -> bool:
    """Whether the range holds anything, and its files are on this host and belong to that user, who runs the broker.
    None: nobody knows who does, so no folder is believed to be the broker's."""
    if found.folder is None or files_uid is None or found.start >= found.end:
        return False
    return is_here(found.folder, files_uid)


def from_files(found: FoundRange, columns: Sequence[str] | None, newest: pa.Schema) -> Iterator[LogBatch]:
    """Read the whole range from the files. `newest` is the topic's schema."""
    assert found.folder is not None
    log = StoredLog(Path(found.folder.path), mapped=False)
    stored = log.read(found.start, found.end, end=found.end, columns=columns, newest=newest, verify=True)
    return log_batches(found.topic_partition, stored, found.high_watermark)
