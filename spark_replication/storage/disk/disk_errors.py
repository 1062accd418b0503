"""The disk's errors, translated into ours."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from spark_replication.errors import StorageFailed


class DiskErrors:
    """A context manager that raises StorageFailed for an OSError within it. It is a class, since a generator costs 2 µs
    a batch."""

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
