"""The disk's errors, translated into ours."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from spark_replication.errors import StorageFailed


def failed(what: str, folder: Path, error: OSError) -> StorageFailed:
    return StorageFailed(f"{what} in {folder} failed: {error}. Free space or repair the disk")


class DiskErrors:
    """A context manager that raises StorageFailed for an OSError within it. What each row passes has a `try` instead:
    this costs four calls."""

    def __init__(self, what: str, folder: Path) -> None:
        self._what = what
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise failed(self._what, self._folder, error) from error
