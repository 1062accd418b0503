"""The files of a replica's log, and whether they hold. They are read by storage.directory.stored_log, but without a
memory map: a failing disk is to be reported, and would end a process that has mapped it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.errors import CorruptLog, CorruptState, StorageFailed
from spark_replication.model import Offset
from spark_replication.storage.directory.broker_directory import IDENTITY_FILE
from spark_replication.storage.directory.stored_log import StoredLog, StoredSegment, bases_in, segments_in
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.format.index import ENTRY_BYTES, IndexEntry, decode_entries
from spark_replication.storage.log.epochs_file import EPOCHS_FILE, read_epochs
from spark_replication.storage.log.high_watermarks import HIGH_WATERMARKS_FILE, read_high_watermarks
from spark_replication.storage.log.segment_files import DATA, INDEX, index_path

_FILES = LocalFiles(open_files_max=1)


class Verified(msgspec.Struct, kw_only=True):
    """The findings about one partition's folder."""

    folder: str
    segments: int = 0
    batches: int = 0
    #: The start of the log.
    start: Offset = 0
    #: Up to which offset the log is sound.
    end: Offset = 0
    bytes: int = 0
    #: Where each problem is, and what it is.
    problems: list[str] = []


def is_broker_directory(path: Path) -> bool:
    return (path / IDENTITY_FILE).exists()


def partition_folders(path: Path) -> list[Path]:
    """The partition folders of a broker's directory, or `path` itself if it is one; none if it is neither."""
    if is_broker_directory(path):
        return sorted(folder for folder in path.iterdir() if folder.is_dir() and _holds_log(folder))
    return [path] if _holds_log(path) else []


def _holds_log(folder: Path) -> bool:
    return any(path.suffix in (DATA, INDEX) or path.name == EPOCHS_FILE for path in folder.iterdir())


def entries_of(folder: Path, base: Offset) -> Iterator[IndexEntry]:
    """The whole entries of a segment's index, unchecked: `verify` says whether they hold."""
    index = index_path(folder, base).read_bytes()
    return decode_entries(index[: len(index) // ENTRY_BYTES * ENTRY_BYTES])


def batches_in(folder: Path, base: Offset) -> Iterator[tuple[IndexEntry, pa.RecordBatch]]:
    """The batches of a segment. Raises CorruptLog at the first that is not what its entry says."""
    segment = StoredSegment(folder, base, epoch=NO_EPOCH, mapped=False)
    yield from segment.batches(verify=True)
    segment.check_whole()


def verify(folders: Sequence[Path]) -> Iterator[Verified]:
    """Verify folders of one directory: every entry and its place, every checksum, every batch, and what the small files
    say of them."""
    committed: Mapping[str, Offset] = {}
    damage = ""
    try:
        committed = read_high_watermarks(_FILES, folders[0].parent) if folders else {}
    except CorruptState as error:
        damage = error.message
    for folder in folders:
        verified = _verified(folder, committed.get(folder.name, 0))
        if damage:
            verified.problems.append(damage)
        yield verified


def _verified(folder: Path, committed: Offset) -> Verified:
    found = Verified(folder=str(folder))
    epochs: list[tuple[int, Offset]] = []
    try:
        found.start = found.end = StoredLog(folder, mapped=False).log_start
        places = [base for base in bases_in(folder) if base >= found.start]  # segments below are being removed
        for segment in segments_in(folder, places, found.start, mapped=False):
            _verify_segment(segment, found, epochs, is_last=segment.base == places[-1])
    except (CorruptLog, CorruptState, StorageFailed) as error:
        found.problems.append(error.message)  # nothing after this continues a sound log
        return found
    _verify_state(folder, found, epochs, committed)
    return found


def _verify_segment(
    segment: StoredSegment, found: Verified, epochs: list[tuple[int, Offset]], *, is_last: bool
) -> None:
    found.segments += 1
    for entry, _ in segment.batches(verify=True):
        if not epochs or epochs[-1][0] != entry.leader_epoch:
            epochs.append((entry.leader_epoch, entry.base_offset))
        found.batches += 1
        found.bytes += entry.bytes
        found.end = entry.last_offset + 1
    segment.check_whole()
    data_behind, index_behind = segment.bytes_behind
    if not is_last and (data_behind or index_behind):
        raise CorruptLog(
            f"segment {segment.base:020}: {data_behind} bytes of data and {index_behind} of its index are behind its "
            "last entry"
        )


def _verify_state(folder: Path, found: Verified, epochs: list[tuple[int, Offset]], committed: Offset) -> None:
    if committed > found.end:
        found.problems.append(f"{HIGH_WATERMARKS_FILE} says {committed}, but the log ends at {found.end}")
    try:
        history = read_epochs(_FILES, folder).trimmed(found.start)
        known = [(each.epoch, each.start) for each in history if each.start < found.end]
        if known != epochs:
            found.problems.append(f"{EPOCHS_FILE} says {known}, the entries say {epochs}")
    except CorruptState as error:
        found.problems.append(error.message)
    except ValueError as error:
        found.problems.append(f"{EPOCHS_FILE}: {error}")
