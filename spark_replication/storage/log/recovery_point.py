"""The offset up to which a log is on the disk: recovery trusts the data below it, and checksums the rest.

recovery_point.json      5c7cfb21 {"v":1,"offset":310}

Invariant: what lies below `offset` was flushed, its index entries and its names too, and was not cut since.
- The point rises after a flush. Its file need not be on the disk: an older one is safe, a torn one counts for nothing.
- The point falls, durably, before anything below it is cut: otherwise what is written in place of the cut would be
  trusted after a loss of power. To lower it the file is removed, which a full disk does not refuse.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from spark_replication.errors import CorruptState
from spark_replication.model import Offset, Value, decode, encode
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.state_files import read_checked, remove_file, write_checked

RECOVERY_POINT_FILE = "recovery_point.json"


class RecoveryPointFile(Value, frozen=True, kw_only=True):
    """recovery_point.json."""

    offset: Offset


class RecoveryPoint:
    """The point of one log. Its file lies in the log's folder and moves with it: so no other log is ever measured by
    it. Not thread-safe."""

    __slots__ = ("_files", "_folder", "offset")

    def __init__(self, folder: Path, files: Files, offset: Offset = 0) -> None:
        self._folder = folder
        self._files = files
        self.offset = offset

    @classmethod
    def read(cls, folder: Path, files: Files) -> RecoveryPoint:
        """The point as stored; at 0 if there is no sound file."""
        path = folder / RECOVERY_POINT_FILE
        try:
            data = read_checked(path, files)
            offset = 0 if data is None else decode(data, RecoveryPointFile, str(path)).offset
        except CorruptState:
            offset = 0
        return cls(folder, files, offset)

    def rise_to(self, offset: Offset) -> None:
        """Raise the point. If the disk refuses, it stays, and the next recovery reads more."""
        if offset > self.offset:
            with suppress(OSError):
                write_checked(self._path(), encode(RecoveryPointFile(offset=offset)), files=self._files)
                self.offset = offset

    def fall_to(self, offset: Offset) -> None:
        """Lower the point, on the disk, before this returns. After an OSError nothing below the old point may be
        cut."""
        if offset < self.offset:
            remove_file(self._path(), files=self._files)
            self.offset = 0
            self.rise_to(offset)

    def _path(self) -> Path:
        return self._folder / RECOVERY_POINT_FILE  # not kept: ten thousand paths are 4 MB
