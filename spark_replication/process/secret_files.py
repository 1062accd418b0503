"""Makes files that their owner alone may read, for secrets that a process makes for itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_secret(path: Path, secret: str) -> None:
    """Make it whole, so that nobody sees half of it. If it is there, or another process makes it at this time, the
    first one counts."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f"{secret}\n")
    with contextlib.suppress(FileExistsError):
        os.link(made, path)
    made.unlink()
