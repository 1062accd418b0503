"""A disk of a few megabytes that a test may fill: a tmpfs, where this machine lets us mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_FILLER = "filler"
_CHUNK = 1 << 16


@contextmanager
def small_disk(mounted: Path, size_bytes: int) -> Iterator[Path]:
    """Skips the test, with the reason, where mounting is refused."""
    mounted.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mounted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here: a disk cannot be filled")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def fill(mounted: Path) -> None:
    """To the last byte."""
    with (mounted / _FILLER).open("ab", buffering=0) as filler:
        for chunk in (_CHUNK, 512, 1):
            with suppress(OSError):
                while filler.write(bytes(chunk)) == chunk:
                    pass


def leave(mounted: Path) -> None:
    """What `fill` took."""
    (mounted / _FILLER).unlink()
