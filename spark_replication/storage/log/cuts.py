"""The cuts of one log that are not known to be on the disk yet: truncations, undone appends, recovery's cuts.

Rules:
- A cut is on the disk before anything is written in its place, whatever `flush` says. Otherwise a loss of power could
  bring the old end back with new records over it or behind it, all of them sound: a log that nobody ever had.
- A process that is killed before the sync leaves word: an empty file in the log's folder, made before a cut and removed
  after the sync. That file need not be on the disk: after a loss of power the log is read from the disk, and each cut
  that it shows is there.
- One sync covers all cuts since the last: it syncs the last segment, which may have become shorter, and the folder, for
  the segments that went.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from spark_replication.storage.disk.files import Files

CUT_FILE = "cut_not_synced"


class Cuts:
    """The cuts of one log. Not thread-safe: whoever has the log has them, too."""

    __slots__ = ("_files", "_folder", "pending")

    def __init__(self, folder: Path, files: Files, *, pending: bool) -> None:
        self._folder = folder
        self._files = files
        #: Whether anything was cut since the last sync.
        self.pending = pending

    def begin(self) -> None:
        """Leave word, before a cut is made. After an OSError it must not be made."""
        if not self.pending:
            self._files.with_reserve(lambda: self._files.create(self._folder / CUT_FILE, b""))
            self.pending = True

    def sync(self, last_segment: Iterable[Path]) -> None:
        """Bring all cuts to the disk, before a write. After an OSError nobody knows what is on the disk."""
        for path in last_segment:
            self._files.sync(path)
        self._files.sync_folder(self._folder)
        self.pending = False
        with suppress(OSError):  # should the file stay, the next process syncs once more
            self._files.remove(self._folder / CUT_FILE)
