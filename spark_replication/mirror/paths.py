"""Where the tables lie, for those who read them."""

from __future__ import annotations

import re
from pathlib import Path

from spark_replication.config import Settings

DEFAULT_PATH = str(Path(Settings().data_dir) / "mirror")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def mirror_path(named: str | None = None) -> str:
    """The mirror.path of a cluster; None: below the default data directory. A relative path begins at this process's
    working directory, and is made absolute: executors have another one."""
    path = DEFAULT_PATH if named is None else named
    return path if _SCHEME.match(path) else str(Path(path).absolute())
