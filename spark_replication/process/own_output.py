"""The output of a detached process: one file, which its starter has opened for it as standard output and error.

Rules:
- The process rotates the file itself: it puts another file in the place of both descriptors with dup2(2). Every write,
  a library's and faulthandler's too, then goes to the one file or the other: none is lost or cut. To copy the file and
  then truncate it would lose what other threads write between the two steps.
- A process leaves alone whatever is not its own output: a terminal, a pipe, a file elsewhere.
- If another process has renamed the file (a second one that was refused, say), the process goes on in the file at the
  path.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import TextIO

FILE_BYTES_MAX = 16 << 20  # a file of this size is kept as `.1`, and begun anew

_DESCRIPTORS = (1, 2)
_rotating = threading.Lock()


class OwnOutput(logging.StreamHandler[TextIO]):
    """Writes log lines to this process's output, and keeps that small if it is the file at `path`."""

    def __init__(self, stream: TextIO, path: Path) -> None:
        super().__init__(stream)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        keep_small(self._path)


def keep_small(path: Path) -> None:
    """Rotate this process's output if it is the file at `path`, and large. If the disk refuses, the next call tries
    again."""
    with _rotating, contextlib.suppress(OSError):
        ours = [each for each in _DESCRIPTORS if _is_file(each, path)]
        if ours and os.fstat(ours[0]).st_size >= FILE_BYTES_MAX:
            _go_on_in(_begun(path), ours)
        elif left := [each for each in _DESCRIPTORS if _is_file(each, kept(path))]:
            _go_on_in(_opened(path), left)


def rotate_unused(path: Path) -> None:
    """Rotate the output of a process that does not do so itself, before it is started. A predecessor that lives goes on
    in `.1`."""
    with contextlib.suppress(OSError):
        if path.stat().st_size >= FILE_BYTES_MAX:
            path.replace(kept(path))


def kept(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _begun(path: Path) -> int:
    fresh = path.with_name(f"{path.name}.new")
    handle = _opened(fresh)  # first: if the disk has no room for it, everything stays as it is
    try:
        path.replace(kept(path))
        fresh.replace(path)
    except OSError:
        os.close(handle)
        raise
    return handle


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _go_on_in(handle: int, descriptors: list[int]) -> None:
    for each in descriptors:
        os.dup2(handle, each)
    os.close(handle)


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
