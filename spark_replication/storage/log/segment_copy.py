"""The tail of a segment as a segment of its own: a log that starts in the midst of a segment needs one (TB5).

Rules:
- Batches are copied as they are, byte by byte. Of their entries only the position and the running maximum of timestamps
  change, and so does the checksum: every replica that copies the same tail makes the same files.
- The copy is on the disk, names and all, before the log's start is moved to it (storage.log.partition_log).
- A copy whose start was never stored begins within another segment, as no segment of a log does. So the next recovery
  knows it, whole or torn, and removes it (storage.log.scanning).
"""

from __future__ import annotations

from spark_replication.storage.disk.files import Files
from spark_replication.storage.format.entry_arrays import moved
from spark_replication.storage.log.segment import Segment

COPIED_BYTES = 8 << 20  # at a time


def copy_tail(segment: Segment, into: Segment, files: Files) -> None:
    """Fill `into`, which has no batches yet, with those of `segment` from the base of `into` on, where a batch begins.
    It is on the disk before this returns. Raises OSError."""
    while (found := segment.find_stored(into.end, bytes_max=COPIED_BYTES, end=segment.end)) is not None:
        assert found.first_offset == into.end, "a batch is never cut in two"
        entries = moved(found.entries, into.data_bytes, into.timestamp_max_ms)
        into.append(found.data.read(), entries, found.next_offset)
    for path in (into.data_path, into.index_path):
        files.sync(path)
    files.sync_folder(into.folder)
