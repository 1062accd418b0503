"""The login of an embedded ZooKeeper: a file in its directory. Whoever may read that may change what is stored."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from msgspec.structs import replace

from spark_replication.config import Settings

LOGIN_FILE = "login"
USER = "spark_replication"


def with_own_login(settings: Settings, directory: Path) -> Settings:
    """The settings of a cluster whose ZooKeeper is to live in this directory: with security, strangers are kept from
    ZooKeeper, too. What belongs to a login once does so when there is no security any more."""
    path = directory / LOGIN_FILE
    is_made = path.exists()
    if settings.zookeeper_auth_file or (settings.security_mode == "none" and not is_made):
        return settings
    if not is_made:
        _make(path)
    return replace(settings, zookeeper_auth_file=str(path))


def _make(path: Path) -> None:
    """Make it whole, so that nobody sees half of it. If another process does so at this time, the first one counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{LOGIN_FILE}.{os.getpid()}")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f"{USER}:{secrets.token_urlsafe(32)}\n")
    with contextlib.suppress(FileExistsError):
        os.link(made, path)
    made.unlink()
