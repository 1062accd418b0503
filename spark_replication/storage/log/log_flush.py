"""A flush of one log: what of it goes to the disk, as it was when the flush was asked for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from spark_replication.errors import StorageFailed
from spark_replication.model import Offset
from spark_replication.storage.disk.files import Files


class LogFlush:
    """A ports.Flush."""

    def __init__(self, files: Files, paths: list[Path], folders: list[Path], end: Offset, bytes: int) -> None:
        #: How far the log is on the disk once the flush was performed. Changes under the partition's lock.
        self.end = end
        #: The size of the log's last segment as the flush began; 0 if the log was cut since.
        self.bytes = bytes
        #: Whose names it takes to the disk.
        self.folders = folders
        self._files = files
        self._paths = paths

    def perform(self) -> None:
        try:
            for path in self._paths:
                with suppress(FileNotFoundError):  # the segment was cut off, or forgotten, meanwhile
                    self._files.sync(path)
            for folder in self.folders:
                self._files.sync_folder(folder)
        except OSError as error:
            raise StorageFailed(f"{error.filename or self._paths} could not be flushed: {error}") from error
