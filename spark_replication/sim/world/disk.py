"""A simulated host's disk: the production logs over faulty files, the proofs of a clean start, and images of logs.

Checkers read what a log holds from its files, of a host that is down, too.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
from crc32c import crc32c

from spark_replication.model import TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.sim.world.faulty_files import FaultyFiles, File, Folder
from spark_replication.storage.directory.local_files import LocalLogs
from spark_replication.storage.format.index import (
    ENTRY_BYTES,
    decode_entries,
    encode_entry,
    entry_at,
    number_and_digest,
)
from spark_replication.storage.log.log_start import read_log_start
from spark_replication.storage.log.segment_files import DATA, INDEX, segment_bases
from spark_replication.storage.log.segment_memory import SegmentMemory

Replica = tuple[TopicPartition, str]  # with the topic_id

LOGS = Path("logs")
VERSIONS_MAX = 3
INDEX_CACHE_BYTES = 10 * ENTRY_BYTES  # so few that most indexes are read again
BATCH_CACHE_BYTES = 5  # so few that a producer's first ten batches are kept, and later ones read again


def _schema(columns: int, padding: int = 0) -> pa.Schema:
    fields = [pa.field("content", pa.binary()), *(pa.field(f"later {n}", pa.int8()) for n in range(1, columns))]
    return pa.schema(fields, metadata={"padding": "." * padding})


def _as_long_as_the_widest(columns: int) -> bytes:
    """The schema of so many columns, padded so that segments of every version roll after as many records."""
    wanted = _schema(VERSIONS_MAX).serialize().size
    padded = (bytes(_schema(columns, padding).serialize()) for padding in range(wanted))
    return next(head for head in padded if len(head) == wanted)


# The schema of each version, as the message that its segments begin with.
HEADS = tuple(_as_long_as_the_widest(columns) for columns in range(1, VERSIONS_MAX + 1))
SCHEMAS = tuple(base64.b64encode(head).decode() for head in HEADS)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch of one row."""

    epoch: int
    #: The checksum of the schema that its segment begins with.
    head: int
    #: Who wrote it as what, so that a lost, doubled or resurrected record shows.
    content: bytes
    producer: int
    producer_epoch: int
    sequence: int
    digest: int = 0


class LogImage:
    """The records in one replica's files from offset `start` on, as the kernel has them, without a torn or cut tail.

    One that has rotted is there still: whoever reads it finds out. So is the copy of one (storage.log.segment_copy).
    """

    def __init__(self, files: FaultyFiles, path: Path, folder: Folder) -> None:
        self.folder = folder
        self._files = files
        self._path = path
        self.start = 0
        self.records: list[Record] = []
        #: Up to which offset the records are known to be the committed ones. Checkers raise it, a cut undoes it.
        self.agreed = 0
        self._changes = -1
        self._segments: list[tuple[File, File]] = []  # index and data
        self._cuts: list[int] = []
        self._last = 0  # the segment that is read as far as it goes; those before it are read whole
        self._read = 0  # how many bytes of its index are read
        self._head = 0  # the checksum of its schema
        self._before: dict[int, Record] = {}  # what was there when everything was last read again, by offset

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def since(self, offset: int) -> list[Record]:
        """The records from `offset` on, which is not below `start`."""
        return self.records[offset - self.start :]

    def at(self, offset: int) -> Record | None:
        return self.records[offset - self.start] if self.start <= offset < self.end else None

    def refresh(self) -> None:
        """Read what was appended. After any other change, read everything again."""
        start, segments = self.start, self._segments
        if self._changes != self.folder.changes:
            self._changes = self.folder.changes
            start = read_log_start(self._files, self._path)
            segments = _segments(self.folder, start)
        cuts = [found.cuts for pair in segments for found in pair]
        known = len(self._segments)
        if start != self.start or segments[:known] != self._segments or cuts[: len(self._cuts)] != self._cuts:
            self._before = dict(enumerate(self.records, self.start))
            self.start, self.records, self.agreed, self._last, self._read = start, [], 0, 0, 0
        self._segments, self._cuts = segments, cuts
        while self._last < len(segments):
            index, data = segments[self._last]
            if not self._append(index, data) or self._last + 1 == len(segments):
                break
            self._last, self._read = self._last + 1, 0

    def _append(self, index: File, data: File) -> bool:
        """Read the rest of a segment. False if an entry does not hold: what comes after it is no part of the log."""
        while self._read + ENTRY_BYTES <= len(index.content):
            stored = bytes(index.content[self._read : self._read + ENTRY_BYTES])
            entry = entry_at(stored, 0)
            if self._read == 0 and entry.base_offset < self.end:
                return True  # a copy for a start that was never stored (storage.log.segment_copy): it is left out
            content = bytes(data.content[entry.position : entry.position + entry.bytes])
            if entry.crc != crc32c(content) and (known := self._before.get(entry.base_offset)) is not None:
                content = known.content if _is_rotten(content, known.content) else content
            if encode_entry(entry) != stored or entry.crc != crc32c(content) or entry.base_offset != self.end:
                return False
            if self._read == 0:
                self._head = crc32c(bytes(data.content[: entry.position]))
            numbers = entry.producer, entry.producer_epoch, *number_and_digest(entry.sequence)
            self.records.append(Record(entry.leader_epoch, self._head, content, *numbers))
            self._read += ENTRY_BYTES
        return True


def _is_rotten(content: bytes, before: bytes) -> bool:
    """Whether one byte is another. A torn write leaves more."""
    return len(content) == len(before) and sum(one != other for one, other in zip(content, before, strict=True)) == 1


def _segments(folder: Folder, start: int) -> list[tuple[File, File]]:
    """Index and data of each segment that has both. Segments below `start` are left out: they are being removed."""
    pairs = []
    for base in segment_bases(folder.names):
        index, data = (folder.names.get(f"{base:020}{suffix}") for suffix in (INDEX, DATA))
        if base >= start and isinstance(index, File) and isinstance(data, File):
            pairs.append((index, data))
    return pairs


class Disk:
    """The disk of a host. A loss of power keeps both of its proofs."""

    def __init__(self) -> None:
        self.files = FaultyFiles()
        self.files.make_folder(LOGS)
        self.files.write_back()
        #: The start record: boot id and broker epoch.
        self.started: tuple[str, int] | None = None
        self.clean_shutdown: int | None = None
        self.has_rotted = False
        self._images: dict[Replica, tuple[int, LogImage | None]] = {}  # each as of so many changes of the files

    def logs(self, now_ms: Callable[[], int]) -> LocalLogs:
        """The logs as one process opens them."""
        memory = SegmentMemory(index_bytes_max=INDEX_CACHE_BYTES, batch_bytes_max=BATCH_CACHE_BYTES)
        return LocalLogs(
            LOGS,
            files=self.files,
            memory=memory,
            now_ms=now_ms,
            before_cut=self.drop_proofs,
            distrust=self.drop_proofs,
        )

    def rot(self, replica: Replica, base: int, pick: int) -> None:
        """Change a byte of the segment's batches, whichever `pick` says."""
        path = LOGS / f"{replica[0]}.{replica[1]}" / f"{base:020}{DATA}"
        head, size = len(HEADS[0]), self.files.size(path)
        assert size is not None, "the log has this segment"
        self.files.rot(path, head + pick % (size - head))
        self.has_rotted = True

    def drop_proofs(self) -> None:
        self.started = self.clean_shutdown = None

    def image(self, replica: Replica) -> LogImage | None:
        """The present records of a replica. None if there is no such log."""
        changes, image = self._images.get(replica, (-1, None))
        if changes == self.files.changes:
            return image
        logs = self.files.root.names.get(LOGS.name)
        folder = logs.names.get(f"{replica[0]}.{replica[1]}") if isinstance(logs, Folder) else None
        if not isinstance(folder, Folder):
            image = None
        else:
            if image is None or image.folder is not folder:
                image = LogImage(self.files, LOGS / f"{replica[0]}.{replica[1]}", folder)
            image.refresh()
        self._images[replica] = self.files.changes, image
        return image


def contents_of(found: LogSlice) -> list[bytes]:
    """The bytes that clients wrote, a batch each."""
    entries = list(decode_entries(found.entries))
    start = entries[0].position
    return [bytes(found.data[each.position - start : each.position - start + each.bytes]) for each in entries]
