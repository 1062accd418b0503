"""A log's word that a sync failed, for the next process on the same boot of the host.

After a failed sync nobody knows which bytes are on the disk, and a later sync that succeeds vouches for none of them.
Yet the next process reads all of them from the page cache. So it writes them again before a sync counts for it: then
the kernel takes them for changed, and the sync covers them, too. The file need not be on the disk itself: after a loss
of power, the log is what the disk has.

The disk may refuse this file, too. Then the broker's directory says it, by giving up its start record. A process may
also be killed before it has written the file. So the next one takes every byte above the recovery point for doubtful,
unless nobody flushes the log: then no sync is believed, and none has failed.

sync_failed.json      5c7cfb21 {"v":1,"flushed_end":310}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_replication.errors import CorruptState
from spark_replication.model import Offset, Value, decode, encode
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.state_files import read_checked, write_checked

FAILED_SYNC_FILE = "sync_failed.json"
_WRITTEN_BYTES = 8 << 20  # at a time


class FailedSync(Value, frozen=True, kw_only=True):
    """sync_failed.json."""

    #: What lies below it was on the disk before the sync.
    flushed_end: Offset


def save_failed_sync(files: Files, folder: Path, flushed_end: Offset, distrust: Callable[[], None]) -> None:
    """Leave word that a sync failed. Calls `distrust` if the disk refuses that, too."""
    path, value = folder / FAILED_SYNC_FILE, encode(FailedSync(flushed_end=flushed_end))
    try:
        files.with_reserve(lambda: write_checked(path, value, files=files))
    except OSError:
        distrust()


def read_failed_sync(files: Files, folder: Path) -> Offset | None:
    """The offset up to which the log was on the disk before a sync failed; None if none did. A damaged file vouches for
    nothing, and gives 0."""
    path = folder / FAILED_SYNC_FILE
    try:
        data = read_checked(path, files)
        return None if data is None else decode(data, FailedSync, str(path)).flushed_end
    except CorruptState:
        return 0


def write_again(files: Files, path: Path, position: int) -> None:
    """Write the bytes of the file again, from `position` on."""
    for start in range(position, files.size(path) or 0, _WRITTEN_BYTES):
        files.write(path, files.read(path, _WRITTEN_BYTES, start), start)


def forget_failed_sync(files: Files, folder: Path) -> None:
    """Remove the word: the doubt is settled."""
    files.remove(folder / FAILED_SYNC_FILE)
