"""Files that a setting names, read once and whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spark_replication.errors import InvalidConfig

BYTES_MAX = 1 << 20


def read_named(setting: str, path: str, *, secret: bool = False) -> bytes:
    """secret: refused where every user of this host may read it. InvalidConfig, which names the setting: it is not
    there, empty or far too large."""
    try:
        with Path(path).open("rb") as file:
            if secret and os.fstat(file.fileno()).st_mode & stat.S_IRWXO:
                raise InvalidConfig(f"{setting}={path} is open to every user of this host: chmod o-rwx {path}")
            found = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{setting}={path} cannot be read: {error.strerror}") from error
    if not found.strip():
        raise InvalidConfig(f"{setting}={path} is empty")
    if len(found) > BYTES_MAX:
        raise InvalidConfig(f"{setting}={path} is over {BYTES_MAX} bytes: is it the right file?")
    return found
