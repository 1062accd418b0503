"""The file of a log's epoch history: each line has the epochs that began since the line before.

epochs.jsonl      5c7cfb21 {"v":1,"starts":[[0,0],[2,310]]}
                  0a41f2d9 {"v":1,"starts":[[3,512]]}
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.errors import CorruptState
from spark_replication.model import Value, decode, encode
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.line_file import LineFile

EPOCHS_FILE = "epochs.jsonl"
_APPENDED_BYTES_MAX = 4 << 10


class EpochsLine(Value, frozen=True, kw_only=True):
    """One line of epochs.jsonl."""

    #: (epoch, offset at which it starts), rising.
    starts: list[tuple[int, int]]


class EpochsFile:
    """The file of one log. Not thread-safe: whoever has the log has it, too."""

    __slots__ = ("_file", "_files", "_path", "_says")

    def __init__(self, folder: Path, files: Files) -> None:
        self._path = folder / EPOCHS_FILE
        self._files = files
        self._file = LineFile(self._path, files, appended_bytes_max=_APPENDED_BYTES_MAX)
        self._says = EpochHistory()

    def read(self) -> EpochHistory:
        """The history as stored; empty if there is no file. Raises CorruptState if the file is damaged, ValueError if
        its epochs do not rise."""
        says = EpochHistory()
        try:
            for value in self._file.read():
                says = _with(says, decode(value, EpochsLine, str(self._path)).starts)
        except (CorruptState, ValueError):
            self._file.replace_next()
            raise
        self._says = says
        return says

    def save(self, epochs: EpochHistory) -> None:
        """Hand the history to the kernel before this returns. After an OSError the file says what it said before."""
        self._files.with_reserve(lambda: self._store(epochs))
        self._says = epochs

    def _store(self, epochs: EpochHistory) -> None:
        begun = [start for start in epochs if start.epoch > self._says.last_epoch]
        if _with(self._says, begun) == epochs:
            self._file.add(_line(begun), lambda: _line(epochs))
        else:
            self._file.replace(_line(epochs))


def read_epochs(files: Files, folder: Path) -> EpochHistory:
    """See EpochsFile.read."""
    return EpochsFile(folder, files).read()


def _with(history: EpochHistory, starts: Iterable[tuple[int, int]]) -> EpochHistory:
    for epoch, start in starts:
        history = history.begun(epoch, start)
    return history


def _line(starts: Iterable[tuple[int, int]]) -> bytes:
    return encode(EpochsLine(starts=[(epoch, start) for epoch, start in starts]))
