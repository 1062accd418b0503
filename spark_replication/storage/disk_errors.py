"""Errors of the disk, as errors of ours."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from spark_replication.errors import StorageFailed


class DiskErrors:
    """What is done to files within it, and fails, is StorageFailed. A class, since a generator costs 2 µs a batch."""

    __slots__ = ("_folder", "_what")

    def __init__(self, what: str, folder: Path) -> None:
        self._what = what
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            text = f"{self._what} in {self._folder} failed: {error}. Free space or repair the disk"
            raise StorageFailed(text) from error
