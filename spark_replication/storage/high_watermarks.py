"""How far a broker's logs are committed, as it checkpoints it: one file for all of them.

    <directory>/high_watermarks.jsonl      1c291ca3 {"v":1,"offsets":{"orders-0.5f2a":17,"orders-1.5f2a":4}}

Rules:
- A save appends one line with what has changed since the last, and a line overrides those before it: it costs what has
  changed, not what there is. Once that is longer than all of them would be, one line of all replaces the file.
- A log that is about to be cut says so at once (`lower`): after a crash it must not look as if it had lost something.
- What is behind the last sound line was being written when the process died, or did not fit: it says nothing, and is
  written over. Any other damage may hide what a log has lost, so that nobody vouches for the logs any longer (I8).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from pathlib import Path

import msgspec

from spark_replication.errors import CorruptState, StorageFailed
from spark_replication.model import Offset, Value, decode, encode
from spark_replication.storage.files import Files
from spark_replication.storage.state_files import checked, read_file, replace_file, unchecked

HIGH_WATERMARKS_FILE = "high_watermarks.jsonl"
_APPENDED_BYTES_MIN = 64 << 10


class HighWatermarksLine(Value, frozen=True, kw_only=True):
    """offsets: by the name of the log's folder."""

    offsets: dict[str, Offset]


class _Found(msgspec.Struct, frozen=True):
    """What the file says. end: of its last sound line."""

    offsets: dict[str, Offset]
    end: int
    whole_bytes: int
    is_damaged: bool


class HighWatermarks:
    """Of one process at a time. A log speaks of itself under its partition's lock; the guard here is taken after it."""

    def __init__(self, directory: Path, files: Files) -> None:
        """StorageFailed if the disk cannot be read."""
        self._path = directory / HIGH_WATERMARKS_FILE
        self._files = files
        self._guard = threading.Lock()
        try:
            found = _read(files, self._path)
        except OSError as error:
            raise StorageFailed(f"{self._path} cannot be read: {error}. Repair the disk, then restart") from error
        self.is_damaged = found.is_damaged  # until `keep` has made it anew
        self._offsets = found.offsets
        self._end = found.end
        self._whole_bytes = found.whole_bytes
        self._unsaved: set[str] = set()

    def of(self, log: str) -> Offset:
        """0 if nothing was ever said of it."""
        return self._offsets.get(log, 0)

    def note(self, log: str, offset: Offset) -> None:
        """Saved with the next `save`."""
        with self._guard:
            self._offsets[log] = offset
            self._unsaved.add(log)

    def lower(self, log: str, offset: Offset) -> None:
        """Handed to the kernel before it returns. OSError: the file says what it said before."""
        with self._guard:
            self._write({log: offset})
            self._offsets[log] = offset
            self._unsaved.discard(log)

    def save(self, *, durable: bool) -> None:
        """What has changed. durable: it is on the disk, name and all, before this returns. StorageFailed: what was not
        saved is saved with the next."""
        with self._guard:
            try:
                if self._unsaved:
                    self._write({log: self._offsets[log] for log in self._unsaved})
                    self._unsaved.clear()
                if durable and self._end:
                    self._files.sync(self._path)
                    self._files.sync_folder(self._path.parent)
            except OSError as error:
                raise StorageFailed(f"{self._path} took no more: {error}. Free space or repair the disk") from error

    def keep(self, logs: Iterable[str]) -> None:
        """These are there, and no others: one that comes under an old name is not to be measured by it. A disk that
        takes nothing is told with the next change."""
        with self._guard:
            self._keep(set(logs))
            self.is_damaged = False

    def forget(self, log: str) -> None:
        """It is there no longer."""
        with self._guard:
            self._keep(self._offsets.keys() - {log})

    def _keep(self, logs: Set[str]) -> None:
        if self.is_damaged or self._offsets.keys() - logs:
            self._offsets = {log: offset for log, offset in self._offsets.items() if log in logs}
            self._unsaved &= logs
            self._end = 0
            with suppress(OSError):
                self._write({})

    def _write(self, changed: Mapping[str, Offset]) -> None:
        line = checked(encode(HighWatermarksLine(offsets=dict(changed))))
        if self._end and self._end + len(line) <= _APPENDED_BYTES_MIN + 2 * self._whole_bytes:
            self._files.write(self._path, line, self._end)
            self._end += len(line)
            return
        whole = checked(encode(HighWatermarksLine(offsets={**self._offsets, **changed})))
        replace_file(self._path, whole, durable=False, files=self._files)
        self._end = self._whole_bytes = len(whole)


def read_high_watermarks(files: Files, directory: Path) -> dict[str, Offset]:
    """By the name of the log's folder, as last saved. CorruptState if the file is damaged."""
    path = directory / HIGH_WATERMARKS_FILE
    found = _read(files, path)
    if found.is_damaged:
        raise CorruptState(f"{path} is damaged: its broker makes it anew when it starts")
    return found.offsets


def _read(files: Files, path: Path) -> _Found:
    data = read_file(path, files=files)
    if data is None:
        return _Found({}, 0, 0, is_damaged=False)
    offsets: dict[str, Offset] = {}
    end = position = whole_bytes = 0
    for line in data.splitlines(keepends=True):
        position += len(line)
        value = unchecked(line)
        if value is None:
            continue
        if end + len(line) != position:  # sound, behind a line that is not
            return _damaged()
        try:
            offsets.update(decode(value, HighWatermarksLine, str(path)).offsets)
        except CorruptState:
            return _damaged()
        end = position
        whole_bytes = whole_bytes or end
    return _Found(offsets, end, whole_bytes, is_damaged=False) if end else _damaged()


def _damaged() -> _Found:
    return _Found({}, 0, 0, is_damaged=True)
