"""A disk that fills up, or refuses, when the test says so."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from spark_replication.ports import StoredBytes
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.format.index import Buffer


class Crash(Exception):
    """The process is gone: what is on the disk is what a new one finds."""


class FailingRange:
    """ports.StoredBytes that fails when it is read, as its file does then."""

    def __init__(self, files: FailingFiles, path: Path, found: StoredBytes) -> None:
        self._files = files
        self._path = path
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    def read(self) -> bytes:
        self._files.check("read", self._path)
        return self._found.read()

    @property
    def is_cached(self) -> bool:
        return self._found.is_cached

    def warm(self) -> None:
        self._found.warm()

    def send_to(self, connection: int, position: int) -> int:
        return 0 if self._fails() else self._found.send_to(connection, position)

    def read_into(self, room: memoryview, position: int) -> int:
        return 0 if self._fails() else self._found.read_into(room, position)

    def _fails(self) -> bool:
        try:
            self._files.check("read", self._path)
        except OSError:
            return True
        return False


class FailingFiles(LocalFiles):
    """room: how many bytes may still be written; None: as many as anybody likes. What fits is written, as kernels do.

    refused: (operation, end of the file's name) that fail with EIO, before they have done anything.
    changes_left: until the process crashes in the midst of a change; None: it lives. A write is then half done.
    """

    def __init__(self) -> None:
        super().__init__(open_files_max=10)
        self.room: int | None = None
        self.refused: set[tuple[str, str]] = set()
        self.changes_left: int | None = None

    def refuse(self, operation: str, *endings: str) -> None:
        self.refused |= {(operation, ending) for ending in endings or ("",)}

    def heal(self) -> None:
        self.room = None
        self.refused.clear()

    def create(self, path: Path, data: Buffer) -> None:
        self.check("create", path)
        self._crash(lambda: super(FailingFiles, self).create(path, data[: len(data) // 2]))
        super().create(path, data[: self._room_for(data)])
        self._take(data, path)

    def write(self, path: Path, data: Buffer, position: int) -> None:
        self.check("write", path)
        self._crash(lambda: super(FailingFiles, self).write(path, data[: len(data) // 2], position))
        super().write(path, data[: self._room_for(data)], position)
        self._take(data, path)

    def read(self, path: Path, length: int, position: int) -> bytes:
        self.check("read", path)
        return super().read(path, length, position)

    def read_whole(self, path: Path) -> bytes:
        self.check("read_whole", path)
        return super().read_whole(path)

    def stored(self, path: Path, length: int, position: int) -> StoredBytes:
        return FailingRange(self, path, super().stored(path, length, position))

    def truncate(self, path: Path, size: int) -> None:
        self.check("truncate", path)
        self._crash(lambda: None)
        super().truncate(path, size)

    def sync(self, path: Path) -> None:
        self.check("sync", path)
        super().sync(path)

    def sync_folder(self, folder: Path) -> None:
        self.check("sync_folder", folder)
        super().sync_folder(folder)

    def remove(self, path: Path) -> None:
        self.check("remove", path)
        self._crash(lambda: None)
        super().remove(path)

    def remove_folder(self, folder: Path) -> None:
        self.check("remove_folder", folder)
        super().remove_folder(folder)

    def replace(self, path: Path, target: Path) -> None:
        self._crash(lambda: None)
        super().replace(path, target)

    def _crash(self, half: Callable[[], None]) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                half()
                raise Crash

    def check(self, operation: str, path: Path) -> None:
        if any(operation == refused and path.name.endswith(ending) for refused, ending in self.refused):
            raise OSError(errno.EIO, "Input/output error", str(path))

    def _room_for(self, data: Buffer) -> int:
        return len(data) if self.room is None else min(self.room, len(data))

    def _take(self, data: Buffer, path: Path) -> None:
        fitting, missing = self._room_for(data), len(data) - self._room_for(data)
        if self.room is not None:
            self.room -= fitting
        if missing:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
