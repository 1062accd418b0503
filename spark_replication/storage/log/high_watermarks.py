"""The high watermarks that a broker has checkpointed for its logs: one file for all of them.

    <directory>/high_watermarks.jsonl      1c291ca3 {"v":1,"offsets":{"orders-0.5f2a":17,"orders-1.5f2a":4}}

Rules:
- A save appends one line with what has changed since the last save, and a line overrides those before it: a save costs
  what has changed, not what there is.
- A log that is about to be cut lowers its high watermark here first (`lower`): after a crash it must not look as if it
  had lost something.
- Damage to the file may hide what a log has lost: then nobody vouches for the logs (I8).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path

from spark_replication.errors import CorruptState, StorageFailed
from spark_replication.model import Offset, Value, decode, encode
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.line_file import LineFile

HIGH_WATERMARKS_FILE = "high_watermarks.jsonl"
_APPENDED_BYTES_MAX = 64 << 10


class HighWatermarksLine(Value, frozen=True, kw_only=True):
    """One line of high_watermarks.jsonl."""

    #: By the name of the log's folder.
    offsets: dict[str, Offset]
    #: Logs that are gone: what the lines before say of them is void.
    gone: tuple[str, ...] = ()


class HighWatermarks:
    """The file, for one process at a time. Whoever has a partition speaks for its log; the lock here is taken after the
    partition's."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Read the file. One that the disk cannot give back counts as damaged, too: one bad block keeps no broker from
        starting."""
        self._path = directory / HIGH_WATERMARKS_FILE
        self._files = files
        self._file = LineFile(self._path, files, appended_bytes_max=_APPENDED_BYTES_MAX)
        self._guard = threading.Lock()
        self._offsets: dict[str, Offset] = {}
        self._unsaved: set[str] = set()
        #: Whether the file is damaged, until `keep` has made it anew.
        self.is_damaged = False
        try:
            self._offsets = _read(self._file, self._path)
        except (CorruptState, OSError):
            self._file.replace_next()
            self.is_damaged = True

    def of(self, log: str) -> Offset:
        """The high watermark of a log; 0 if none was ever noted."""
        return self._offsets.get(log, 0)

    def note(self, log: str, offset: Offset) -> None:
        """Note a high watermark for the next `save`."""
        with self._guard:
            self._offsets[log] = offset
            self._unsaved.add(log)

    def lower(self, log: str, offset: Offset) -> None:
        """Hand a lower high watermark to the kernel before this returns. After an OSError the file says what it said
        before."""
        with self._guard:
            self._files.with_reserve(lambda: self._write({log: offset}))
            self._offsets[log] = offset
            self._unsaved.discard(log)

    def save(self, *, durable: bool) -> None:
        """Write what has changed: with `durable` to the disk, name and all, before this returns. After a StorageFailed
        the next save writes what this one has not."""
        with self._guard:
            try:
                if self._unsaved:
                    self._write({log: self._offsets[log] for log in self._unsaved})
                    self._unsaved.clear()
                if durable:
                    self._file.sync()
            except OSError as error:
                raise StorageFailed(f"{self._path} took no more: {error}. Free space or repair the disk") from error

    def keep(self, logs: Iterable[str]) -> None:
        """Forget all logs but these: a later log under an old name must not be measured by the old one's. If the disk
        refuses, the next change writes it."""
        with self._guard:
            self._keep(set(logs))
            self.is_damaged = False

    def forget(self, log: str) -> None:
        """Forget a log that is gone: a later log under its name must not be measured by the old one's."""
        with self._guard:
            self._unsaved.discard(log)
            if self._offsets.pop(log, None) is not None:
                try:
                    self._file.add(_line({}, gone=(log,)), lambda: _line(self._offsets))
                except OSError:
                    self._file.replace_next()

    def _keep(self, logs: Set[str]) -> None:
        if self.is_damaged or self._offsets.keys() - logs:
            self._offsets = {log: offset for log, offset in self._offsets.items() if log in logs}
            self._unsaved &= logs
            self._file.replace_next()
            with suppress(OSError):
                self._write({})

    def _write(self, changed: dict[str, Offset]) -> None:
        self._file.add(_line(changed), lambda: _line({**self._offsets, **changed}))


def read_high_watermarks(files: Files, directory: Path) -> dict[str, Offset]:
    """The high watermarks as last saved, by the name of the log's folder. Raises CorruptState if the file is
    damaged."""
    path = directory / HIGH_WATERMARKS_FILE
    return _read(LineFile(path, files, appended_bytes_max=0), path)


def _read(file: LineFile, path: Path) -> dict[str, Offset]:
    offsets: dict[str, Offset] = {}
    for value in file.read():
        line = decode(value, HighWatermarksLine, str(path))
        for log in line.gone:
            offsets.pop(log, None)
        offsets.update(line.offsets)
    return offsets


def _line(offsets: dict[str, Offset], gone: tuple[str, ...] = ()) -> bytes:
    return encode(HighWatermarksLine(offsets=offsets, gone=gone))
