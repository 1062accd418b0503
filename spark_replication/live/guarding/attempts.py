"""Numbers for the leases of guardians that are no Spark tasks: each start in a directory gets a higher one.

A clock would not do: if it were set back, every broker would refuse its guardian.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from spark_replication.model import Value, decode, encode
from spark_replication.storage.disk.state_files import read_file, replace_file

ATTEMPTS_FILE = "attempts.json"
LOCK_FILE = "attempts.lock"


class AttemptsFile(Value, frozen=True, kw_only=True):
    #: The highest number that anybody got.
    last: int


def next_attempt(directory: Path) -> int:
    """A number that no other process gets, even if two start at one time."""
    path = directory / ATTEMPTS_FILE
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)  # whoever may read it may lock it
        fcntl.flock(handle, fcntl.LOCK_EX)
        data = read_file(path)
        attempt = 1 if data is None else decode(data, AttemptsFile, str(path)).last + 1
        replace_file(path, encode(AttemptsFile(last=attempt)), durable=True)
        return attempt
    finally:
        os.close(handle)
