"""The files of a replica's log, looked at from outside: read, never locked, cut or repaired.

A broker may write them meanwhile. The index is read before the data, so that what it says is there; bytes behind the
last entry are no damage: they are of an append under way, or of one that a crash has torn, and nobody was told of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pyarrow as pa
from crc32c import crc32c

from spark_replication.core.epochs import NO_EPOCH
from spark_replication.errors import CorruptLog, CorruptState
from spark_replication.model import Offset
from spark_replication.storage.batches import schema_from_bytes
from spark_replication.storage.broker_directory import IDENTITY_FILE
from spark_replication.storage.files import LocalFiles
from spark_replication.storage.index import ENTRY_BYTES, IndexEntry, decode_entries, whole_prefix
from spark_replication.storage.recovery import (
    EPOCHS_FILE,
    HIGH_WATERMARK_FILE,
    read_epochs,
    read_high_watermark,
    read_log_start,
)
from spark_replication.storage.segment import DATA, INDEX, data_path, index_path, segment_bases

_FILES = LocalFiles(open_files_max=1)


class Verified(msgspec.Struct, kw_only=True):
    """One partition's folder. start, end: of what is sound from the log's start on. problems: where, and what."""

    folder: str
    segments: int = 0
    batches: int = 0
    start: Offset = 0
    end: Offset = 0
    bytes: int = 0
    problems: list[str] = []


def bases(folder: Path) -> list[Offset]:
    return segment_bases(path.name for path in folder.iterdir())


def is_broker_directory(path: Path) -> bool:
    return (path / IDENTITY_FILE).exists()


def partition_folders(path: Path) -> list[Path]:
    """Those of a broker's directory, or the one that `path` is; none if it is neither."""
    if is_broker_directory(path):
        return sorted(folder for folder in path.iterdir() if folder.is_dir() and _holds_log(folder))
    return [path] if _holds_log(path) else []


def _holds_log(folder: Path) -> bool:
    return any(path.suffix in (DATA, INDEX) or path.name == EPOCHS_FILE for path in folder.iterdir())


def entries_of(folder: Path, base: Offset) -> Iterator[IndexEntry]:
    """As they lie there, whole ones only: `verify` says whether they hold."""
    index = index_path(folder, base).read_bytes()
    return decode_entries(index[: len(index) // ENTRY_BYTES * ENTRY_BYTES])


def batches_in(folder: Path, base: Offset) -> Iterator[tuple[IndexEntry, pa.RecordBatch]]:
    """CorruptLog at the first that is not what its entry says."""
    entries = list(entries_of(folder, base))
    path = data_path(folder, base)
    with path.open("rb") as file:
        head = os.pread(file.fileno(), entries[0].position, 0) if entries else b""
        schema = schema_from_bytes(head, str(path)) if entries else None
        for entry in entries:
            if entry.schema_crc not in (0, crc32c(head)):
                raise CorruptLog(f"{path} does not begin with the schema that the entry of {entry.base_offset} names")
            yield entry, _batch(os.pread(file.fileno(), entry.bytes, entry.position), entry, schema)


def _batch(data: bytes, entry: IndexEntry, schema: pa.Schema) -> pa.RecordBatch:
    where = f"the batch at offset {entry.base_offset} (byte {entry.position})"
    if crc32c(data) != entry.crc:
        raise CorruptLog(f"{where} does not have its CRC-32C")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate()
    except (pa.ArrowException, OSError) as error:
        raise CorruptLog(f"{where} is no Arrow batch: {error}") from error
    if batch.num_rows != entry.last_offset - entry.base_offset + 1:
        raise CorruptLog(f"{where} has {batch.num_rows} rows, its entry is of {entry.base_offset}–{entry.last_offset}")
    return batch


def verify(folder: Path) -> Verified:
    """Every entry and its place, every checksum, every batch, and what the small files say of them."""
    found = Verified(folder=str(folder))
    epochs: list[tuple[int, Offset]] = []
    try:
        found.start = found.end = read_log_start(_FILES, folder)
    except CorruptState as error:
        found.problems.append(error.message)
        return found
    places = [base for base in bases(folder) if base >= found.start]  # those below are on their way out
    for base in places:
        try:
            last = base == places[-1]
            _verify_segment(folder, base, found, epochs, is_last=last)
        except (CorruptLog, OSError) as error:
            why = error.message if isinstance(error, CorruptLog) else str(error)
            found.problems.append(f"segment {base:020}: {why}")
            break  # nothing after it continues a sound log
    if not found.problems:
        _verify_state(folder, found, epochs)
    return found


def _verify_segment(
    folder: Path, base: Offset, found: Verified, epochs: list[tuple[int, Offset]], *, is_last: bool
) -> None:
    if base != found.end:
        raise CorruptLog(f"it starts at offset {base}, the log before it ends at {found.end}")
    index = index_path(folder, base).read_bytes()
    data_bytes = data_path(folder, base).stat().st_size
    epoch = epochs[-1][0] if epochs else NO_EPOCH
    prefix = whole_prefix(index, base=base, epoch=epoch, data_bytes=data_bytes)
    if prefix.why and not prefix.kept:
        raise CorruptLog(prefix.why)
    beyond = data_bytes
    found.segments += 1
    for entry, _ in islice(batches_in(folder, base), prefix.kept):
        if not epochs or epochs[-1][0] != entry.leader_epoch:
            epochs.append((entry.leader_epoch, entry.base_offset))
        found.batches += 1
        found.bytes += entry.bytes
        found.end = entry.last_offset + 1
        beyond = data_bytes - entry.position - entry.bytes
    if prefix.why:
        raise CorruptLog(prefix.why)
    if not is_last and (beyond or len(index) % ENTRY_BYTES):
        raise CorruptLog(
            f"{beyond} bytes of data and {len(index) % ENTRY_BYTES} of its index are behind its last entry"
        )


def _verify_state(folder: Path, found: Verified, epochs: list[tuple[int, Offset]]) -> None:
    try:
        history = read_epochs(_FILES, folder).trimmed(found.start)
        known = [(each.epoch, each.start) for each in history if each.start < found.end]
        if known != epochs:
            found.problems.append(f"{EPOCHS_FILE} says {known}, the entries say {epochs}")
        committed = read_high_watermark(_FILES, folder)
        if committed > found.end:
            found.problems.append(f"{HIGH_WATERMARK_FILE} says {committed}, but the log ends at {found.end}")
    except CorruptState as error:
        found.problems.append(error.message)
    except ValueError as error:
        found.problems.append(f"{EPOCHS_FILE}: {error}")
