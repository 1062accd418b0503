"""Directories whose content is nobody else's: other users of the host read and lock nothing there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spark_replication.errors import InvalidConfig

OWNER_ALONE = 0o700
ROOT = 0
SHARED = 0o775  # less what the umask takes


def own_directory(path: Path, mode: int = OWNER_ALONE) -> None:
    """Make the directory, and give it this mode. Raises InvalidConfig if another user owns it: who does could change
    everything in it. OSError: the disk, or the user that this process runs as, does not allow it."""
    path.mkdir(parents=True, exist_ok=True)
    _require_ours(path, path.stat())
    path.chmod(mode)


def shared_directory(path: Path) -> None:
    """Make the directory, or take it with the mode that it has, since parts of it may be for others. Raises
    InvalidConfig if another user owns it, other than root, or everybody may write in it and rename what is there.
    OSError: see own_directory."""
    path.mkdir(SHARED, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != ROOT:  # whose are the volumes of containers, as a rule
        _require_ours(path, found)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise InvalidConfig(
            f"every user of this host may write in {path}, and put another file in the place of any that is there: "
            f"chmod o-w {path}"
        )


def _require_ours(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise InvalidConfig(
            f"{path} belongs to user {found.st_uid}, and this process is of user {os.geteuid()}: name another"
        )
