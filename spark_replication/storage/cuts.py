"""What was cut off one log, and is not known to be off the disk yet: truncations, undone appends, recovery's cuts.

Rules:
- A cut is on the disk before anything is written in its place, whatever `flush` says. Without that a loss of power may
  bring the old end back with new records over it or behind it, all of them sound: a log that nobody ever had.
- A process that is killed before that leaves word: an empty file beside the log, made before a cut and removed after
  the sync. It need not be on the disk itself: after a loss of power only what is on the disk counts, and nothing is cut
  that could come back.
- One sync answers for all cuts since the last: of the last segment, which may have become shorter, and of the folder,
  for the segments that went.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from spark_replication.storage.files import Files

CUT_FILE = "cut_not_synced"


class Cuts:
    """Not thread-safe: its log's. pending: something was cut since the last sync."""

    __slots__ = ("_files", "_folder", "pending")

    def __init__(self, folder: Path, files: Files, *, pending: bool) -> None:
        self._folder = folder
        self._files = files
        self.pending = pending

    def begin(self) -> None:
        """Before a cut. OSError: it must not be made."""
        if not self.pending:
            self._files.with_reserve(lambda: self._files.create(self._folder / CUT_FILE, b""))
            self.pending = True

    def sync(self, last_segment: Iterable[Path]) -> None:
        """Before a write. OSError: nobody knows what is on the disk."""
        for path in last_segment:
            self._files.sync(path)
        self._files.sync_folder(self._folder)
        self.pending = False
        with suppress(OSError):  # should the file stay, the next process syncs once more
            self._files.remove(self._folder / CUT_FILE)
