"""Where the tables lie."""

from __future__ import annotations

import re
from pathlib import Path

from spark_replication.config import Settings

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def path_of(settings: Settings, directory: Path | None = None) -> str:
    """The mirror.path of a cluster. directory: where its data lies; None for data.dir."""
    return settings.mirror_path or str((directory or Path(settings.data_dir)) / "mirror")


DEFAULT_PATH = path_of(Settings())


def mirror_path(named: str | None = None) -> str:
    """The absolute mirror.path of a cluster. named: None for the one below the default data directory. A relative path
    begins at this process's working directory, and executors have another one."""
    path = DEFAULT_PATH if named is None else named
    return path if is_remote(path) else str(Path(path).absolute())


def is_remote(path: str) -> bool:
    return _SCHEME.match(path) is not None
