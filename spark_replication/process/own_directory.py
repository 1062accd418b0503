"""Directories whose content is nobody else's: other users of the host read and lock nothing there."""

from __future__ import annotations

import os
from pathlib import Path

from spark_replication.errors import InvalidConfig

OWNER_ALONE = 0o700


def own_directory(path: Path, mode: int = OWNER_ALONE) -> None:
    """Make the directory, and give it this mode. Raises InvalidConfig if another user owns it: who does could change
    everything in it. OSError: the disk, or the user that this process runs as, does not allow it."""
    path.mkdir(parents=True, exist_ok=True)
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise InvalidConfig(f"{path} belongs to user {owner}, and this process is of user {os.geteuid()}: name another")
    path.chmod(mode)
