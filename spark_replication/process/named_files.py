"""Files that a setting names, read once and whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spark_replication.errors import InvalidConfig

BYTES_MAX = 1 << 20


def read_named(setting: str, path: str, *, secret: bool = False) -> bytes:
    """The content of the file that `setting` names. Raises InvalidConfig, which names the setting, if the file cannot
    be read, is empty or far too large, or is `secret` and open to every user of this host."""
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
