"""A small file that is mostly appended to: lines, each with its checksum in front, `1c291ca3 {"v":1,…}`.

Rules:
- A change appends a line, which costs a tenth of writing a file beside and renaming it over. Once the file has grown
  well past the size of one line with everything, such a line replaces it.
- Bytes behind the last sound line were being written when the process died, or did not fit: they say nothing, and are
  written over. Any other damage is CorruptState.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_replication.errors import CorruptState
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.state_files import checked, read_file, replace_file, unchecked


class LineFile:
    """Not thread-safe. After an OSError the file says what it said before."""

    __slots__ = ("_appended_bytes_max", "_end", "_files", "_path", "_whole_bytes")

    def __init__(self, path: Path, files: Files, *, appended_bytes_max: int) -> None:
        """The file may grow to `appended_bytes_max` more than twice the size of the last line with everything."""
        self._path = path
        self._files = files
        self._appended_bytes_max = appended_bytes_max
        self._end = 0
        self._whole_bytes = 0

    def read(self) -> list[bytes]:
        """The values in their order; none if there is no file. After a CorruptState the next change replaces the
        file."""
        self._end = 0
        data = read_file(self._path, files=self._files)
        if data is None:
            return []
        values: list[bytes] = []
        end = position = 0
        for line in data.splitlines(keepends=True):
            position += len(line)
            value = unchecked(line)
            if value is None:
                continue
            if end + len(line) != position:
                raise CorruptState(f"{self._path} is damaged: line {len(values) + 1} does not have its checksum")
            if not values:
                self._whole_bytes = len(line)
            values.append(value)
            end = position
        if not values:
            raise CorruptState(f"{self._path} is damaged: it has no line with its checksum")
        self._end = end
        return values

    def add(self, change: bytes, whole: Callable[[], bytes]) -> None:
        """Append `change`, or replace the file by `whole`: everything, with this change."""
        line = checked(change)
        if self._end and self._end + len(line) <= self._appended_bytes_max + 2 * self._whole_bytes:
            self._files.write(self._path, line, self._end)
            self._end += len(line)
        else:
            self.replace(whole())

    def replace(self, whole: bytes) -> None:
        line = checked(whole)
        replace_file(self._path, line, durable=False, files=self._files)
        self._end = self._whole_bytes = len(line)

    def replace_next(self) -> None:
        """Let the next change replace the file: what it says is not what is meant."""
        self._end = 0

    def sync(self) -> None:
        """Bring the file to the disk, name and all. Does nothing if nothing was written, or it is to be replaced."""
        if self._end:
            self._files.sync(self._path)
            self._files.sync_folder(self._path.parent)
