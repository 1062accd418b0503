"""What the engines need of the outside: each a Protocol with a real adapter (zk, storage, transport) and one in sim.

An adapter decides nothing. It answers through `then`, exactly once, on any thread: the caller hands the answer on to
its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from spark_replication.config import TopicSettings
from spark_replication.core.controller.news import News
from spark_replication.core.law.writes import Group, GroupAnswer, IsrAnswer, IsrWrite
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.retention import SegmentSize
from spark_replication.core.tables.table import RowRange, TableVersion
from spark_replication.errors import StorageFailed
from spark_replication.messages.commands import Command
from spark_replication.messages.ranges import Piece
from spark_replication.model import (
    BrokerId,
    Epoch,
    Offset,
    PartitionNumber,
    Registration,
    ReplicaOf,
    TableOrigin,
    TimeMs,
    TopicPartition,
)


class ControllerStore(Protocol):
    """ZooKeeper for the controller of one epoch: every multi() checks that epoch (C1)."""

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        """Store each group whole or not at all, with several groups in a multi(). There is one answer a group, in the
        order of the groups."""


class CommandSender(Protocol):
    """Sends commands to brokers: batched per broker, by a pool, and retried while that life of the broker goes on."""

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None: ...

    def gone(self, broker: BrokerId) -> None:
        """That life of the broker has ended: drop the commands that wait for it."""


class IsrStore(Protocol):
    """ZooKeeper for a leader."""

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None: ...


class PreparedBatch(msgspec.Struct, frozen=True):
    """A producer's batch, serialised once and outside any lock."""

    rows: int
    #: The bytes that disks and followers get.
    message: bytes | memoryview
    crc: int
    #: The schema message that the batch was serialised with. The segment that takes the batch begins with it.
    schema: bytes
    producer: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    #: Of the rows, if a retry may have them in another order (storage.format.row_digest); else 0.
    digest: int = 0


class BatchPlace(msgspec.Struct, frozen=True):
    """Where an idempotent producer's batch is stored."""

    producer: int
    producer_epoch: int
    sequence: int
    base_offset: Offset
    last_offset: Offset
    #: The CRC of the batch's message.
    crc: int = 0
    #: When the leader appended the batch.
    timestamp_ms: int = 0
    #: See PreparedBatch. 0 also if an older program stored the batch.
    digest: int = 0


class DamagedBatch(msgspec.Struct, frozen=True):
    """A stored batch that its disk does not give back as it was written (D1)."""

    base_offset: Offset
    last_offset: Offset
    #: The file that has it, and where in that file it begins.
    file: str
    position: int
    #: The length of its message, and the CRC-32C that its entry names: no other bytes may take its place.
    bytes: int
    crc: int
    #: What the disk did instead.
    why: str

    def __str__(self) -> str:
        return f"offsets {self.base_offset} to {self.last_offset}, at byte {self.position} of {self.file}: {self.why}"


class LogSlice(msgspec.Struct, frozen=True):
    """Whole batches of one segment, as stored: the index entries and the bytes, with one entry a batch."""

    #: At or below the offset that was asked for: a read may start within a batch.
    first_offset: Offset
    #: The offset after the last batch.
    next_offset: Offset
    segment_base: Offset
    entries: bytes | memoryview
    data: bytes | memoryview
    #: The segment's schema message. It is sent with the first batch of the segment only, so a follower's slice of later
    #: batches has none.
    schema: bytes | memoryview = b""

    @property
    def head(self) -> bytes | memoryview:
        """The schema that a follower needs: all of it if the slice begins the segment, nothing otherwise."""
        return self.schema if self.first_offset == self.segment_base else b""

    def loaded(self) -> LogSlice:
        """Return self: the data is in memory already."""
        return self

    def kept(self) -> LogSlice:
        """A copy with bytes of its own. Views would not last: the buffer beneath them is used again."""
        entries, data, schema = bytes(self.entries), bytes(self.data), bytes(self.schema)
        return LogSlice(self.first_offset, self.next_offset, self.segment_base, entries, data, schema)


class StoredBytes(Protocol):
    """A range of a log's file that was not read yet. It is used without the partition's lock, so the range may have
    been cut and rewritten meanwhile: the checksums of the entries reveal that."""

    def __len__(self) -> int: ...

    def read(self) -> bytes:
        """Read the whole range, or raise OSError."""

    @property
    def is_cached(self) -> bool:
        """Whether the range can be read without waiting for the disk, judged by its first and its last byte."""

    def warm(self) -> None:
        """Wait for the disk, so that no later reader has to. An error is ignored: the reader meets it again."""

    def send_to(self, connection: int, position: int) -> int:
        """Send from this position of the range on, from the kernel straight to a connection's descriptor. Returns how
        many bytes were sent, 0 if nothing more can be read. BlockingIOError if the connection takes nothing at
        present."""

    def read_into(self, room: memoryview, position: int) -> int:
        """Read from this position of the range on. Returns how many bytes were read, 0 if nothing more can be read."""


class StoredSlice(msgspec.Struct, frozen=True):
    """A LogSlice whose data is still in the file."""

    first_offset: Offset
    next_offset: Offset
    segment_base: Offset
    entries: bytes
    data: StoredBytes
    schema: bytes = b""

    @property
    def head(self) -> bytes:
        """See LogSlice."""
        return self.schema if self.first_offset == self.segment_base else b""

    def loaded(self) -> LogSlice:
        """Read the data. StorageFailed if the disk fails, or the file has become shorter."""
        try:
            data = self.data.read()
        except OSError as error:
            raise StorageFailed(
                f"offsets {self.first_offset} to {self.next_offset - 1} could not be read: {error}. Repair the disk"
            ) from error
        return LogSlice(self.first_offset, self.next_offset, self.segment_base, self.entries, data, self.schema)


Records = LogSlice | StoredSlice  # batches that a log still has in memory, or batches in its file


class Flush(Protocol):
    """The part of a log that is to reach the disk. It is taken under the partition's lock, and performed outside it."""

    def perform(self) -> None:
        """Flush data, then index, then names. After StorageFailed, nobody knows what is on the disk."""


class Flusher(Protocol):
    """A few threads that wait for disks."""

    def flush(self, flush: Flush, ended: Callable[[StorageFailed | None], None]) -> None:
        """Perform a flush, and then call `ended` once, with the error or None."""


class ReplicaLog(Protocol):
    """One replica's log. It is not thread-safe: the holder of its partition holds it, too.

    Invariants:
    - log_start <= high_watermark checkpoint <= log_end, after recovery, too.
    - Everything below log_end has been handed to the kernel, data first, then index entry (F0).
    - epochs cover [log_start, log_end).
    - Only `forget`, `drop_below` and `begin_anew` move log_start. It is on the disk before anything below it goes.
    - A method that meets a full or failing disk raises StorageFailed, and has changed nothing that is served.
    """

    @property
    def log_start(self) -> Offset: ...
    @property
    def log_end(self) -> Offset: ...
    @property
    def epochs(self) -> EpochHistory: ...
    @property
    def high_watermark(self) -> Offset:
        """The last checkpoint of the high watermark."""

    def append(self, batch: PreparedBatch, *, leader_epoch: int, timestamp_ms: int) -> BatchPlace:
        """Append a batch at the log's end, as leader, in a segment of the batch's schema."""

    def append_slice(self, records: LogSlice) -> Iterable[BatchPlace]:
        """Append the same bytes at the log's end, as follower (F2). CorruptLog if a checksum fails or the offsets do
        not continue the log."""

    def find(self, offset: Offset, *, bytes_max: int, end: Offset) -> Records | None:
        """Find batches from the one that holds `offset` up to the last that ends at or before `end`: at least one if
        there is any, whatever its size. None if there is none. OffsetOutOfRange below log_start or above log_end."""

    def find_stored(self, offset: Offset, *, bytes_max: int) -> StoredSlice | None:
        """As `find` up to the log's end, but always in the file. None at or above the end, and below log_start."""

    def damaged(self, start: Offset, end: Offset) -> Sequence[DamagedBatch]:
        """Read the batches of [start, end) from their files, each by itself. Return those that are not there as they
        were written. What the log does not have is no damage."""

    def mend(self, batch: DamagedBatch, data: bytes) -> None:
        """Write the bytes of a damaged batch again, in their place. InvalidRequest if they are not its bytes, or the
        log has no such batch (any longer): then nothing is written."""

    def offset_of_time(self, timestamp_ms: int) -> Offset:
        """The first offset whose batch was appended at this time or later; log_end if there is none."""

    def time_of(self, offset: Offset) -> TimeMs:
        """When the batch that holds `offset` was appended. It is in the log."""

    def bytes_from(self, offset: Offset) -> int:
        """The bytes of the batches from `offset` on, which a reader there lacks, or a little more."""

    def pieces(self, start: Offset, end: Offset, piece_bytes: int) -> tuple[Piece, ...]:
        """Cut [start, end) into pieces of about `piece_bytes`."""

    def batch_start(self, offset: Offset) -> Offset:
        """Where the batch that holds `offset` begins. It is in the log."""

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch at the log's end. It is on the disk before this returns (F3)."""

    def truncate(self, end: Offset) -> None:
        """Remove everything from `end` on, and the epochs that start there. A batch that spans `end` is removed whole.
        `end` is not below log_start."""

    def segments(self) -> Sequence[SegmentSize]:
        """The segments, oldest first. They are contiguous, and none is empty."""

    def forget(self, before: Offset) -> None:
        """Forget the segments that lie below `before` as a whole, except the last one. `before` is not above the high
        watermark. Some of their files may stay for `remove_leftover`."""

    def drop_below(self, offset: Offset) -> None:
        """Remove everything below `offset`, where a batch begins or the log ends, and which is above log_start. The log
        starts there, with a segment of its own. The epoch history is kept from there on. Some files may stay for
        `remove_leftover`. After StorageFailed the log is as it was."""

    @property
    def has_leftover(self) -> bool:
        """Whether there are files for `remove_leftover`. May be asked without having the partition."""

    def remove_leftover(self) -> None:
        """Remove some files of segments that the log has dropped as its start moved: so few that nobody waits for
        long."""

    def begin_anew(self, log_start: Offset) -> None:
        """Remove everything, and begin an empty log at `log_start`, without an epoch."""

    def configure(self, settings: TopicSettings) -> None:
        """Apply the settings that say when a new segment begins."""

    def checkpoint(self, high_watermark: Offset) -> None:
        """Note the high watermark. The next ReplicaLogs.save_high_watermarks stores it."""

    def places(self, newest: int) -> Iterable[BatchPlace]:
        """The batches of idempotent producers, oldest first, read from the index to rebuild what is known of them: at
        least the newest `newest` of each producer."""

    def save_producers(self, known: bytes) -> None:
        """Store what is known of producers beside the log, on the disk before this returns. It stays when the log is
        cut, trimmed or begun anew."""

    def saved_producers(self) -> bytes:
        """What save_producers stored last; empty if there is nothing, or it cannot be read."""

    @property
    def flushed_end(self) -> Offset:
        """Everything below this offset is on the disk, with its index entries and its names."""

    def begin_flush(self) -> Flush | None:
        """Begin a flush of everything that is not on the disk; None if everything is. There is one flush at a time, and
        the log goes on meanwhile."""

    def end_flush(self, failed: StorageFailed | None) -> None:
        """End the flush that was performed. If it failed, the log is offline."""

    def flush(self) -> None:
        """Flush everything before this returns."""

    def close(self) -> None: ...


class TableSealer(Protocol):
    """The controller's way to topics' tables (TB5)."""

    def seal(
        self, topic: str, topic_id: str, epochs: Mapping[PartitionNumber, Epoch], restores: TableOrigin | None
    ) -> None:
        """Name these leader epochs in the topic's table, after it was taken over if it is another's that the topic
        `restores`. Never blocks. What came of it is an event, TableAnswered, if anything did: the controller asks
        again."""


class NoTables:
    """The TableSealer of a controller whose topics have no tables."""

    def seal(
        self, topic: str, topic_id: str, epochs: Mapping[PartitionNumber, Epoch], restores: TableOrigin | None
    ) -> None: ...


class UploadedFile(Protocol):
    """A file that a writer has put beside a topic's table. It is no part of the table before a commit adds it, and an
    orphan if none does."""

    @property
    def path(self) -> str: ...


class TopicTable(Protocol):
    """The table of one topic, whoever else writes it meanwhile.

    A commit or a seal is stored whole or not at all. TableChanged: it was not, and never will be, since another one of
    the same partition was stored after `on`. StorageFailed: nobody knows, so that only `load` tells.
    """

    def load(self) -> TableVersion:
        """The last version."""

    def commit(self, on: TableVersion, added: Sequence[RowRange], files: Sequence[UploadedFile]) -> TableVersion:
        """Add the files, which hold just these rows. Each range `continues` the version `on`. Returns the version that
        the commit has made."""

    def seal(self, on: TableVersion, epochs: Mapping[PartitionNumber, Epoch]) -> TableVersion:
        """Name these leader epochs, each above the one that `on` has. The table is made if there is none."""

    def take_over(self, origin: TableOrigin) -> TableVersion:
        """Make it this topic's, with what `origin` has given it, `carried_over`, in one commit, after which whoever
        writes for the origin is refused (TB7). If it is this topic's already, nothing is done. WrongCluster: it is
        neither's. Returns the last version."""


class GroupRows(Protocol):
    """The rows of the groups' log: of each its group, if it is of one, and what has changed, as JSON."""

    def encode(self, rows: Sequence[tuple[str | None, bytes]]) -> Sequence[PreparedBatch]:
        """As many batches as they need, in their order."""

    def decode(self, records: LogSlice) -> Iterable[tuple[Offset, str]]:
        """The offset and the JSON of each row. CorruptLog if these are no such rows."""


class ReplicaLogs(Protocol):
    """A broker's log directory."""

    def open(self, partition: TopicPartition, topic_id: str, settings: TopicSettings) -> ReplicaLog:
        """Open and recover the replica's log. It is made if it is not there."""

    def save_high_watermarks(self, *, durable: bool) -> None:
        """Hand the high watermarks that the logs have noted to the kernel, or with `durable` to the disk. After
        StorageFailed the older ones are safe, too, and the next save stores all."""

    def found(self) -> Iterable[tuple[TopicPartition, str]]:
        """The partitions, each with its topic_id, that have a directory."""

    def quarantine(self, partition: TopicPartition, topic_id: str, *, asked: bool) -> None:
        """Take a replica's files out of service. They are deleted later: soon if somebody asked for that, otherwise
        much later. Close an open log first."""


class FollowerLinks(Protocol):
    """The engine's side of replication: which fetches to answer, and which partitions to fetch."""

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        """Take the answer to this follower's waiting fetch: there is one."""

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        """Begin to fetch this partition from this leader."""

    def unfollow(self, partition: TopicPartition) -> None: ...

    def together(self) -> AbstractContextManager[None]:
        """What this thread says within may be told a moment later, though not much: the thread may wait for a disk."""


class FailureReports(Protocol):
    def failed(self, replica: ReplicaOf, error: StorageFailed) -> None:
        """Report to the controller, if there is one, that the disk refuses what this replica must keep. Never blocks.
        Each further failure is reported again."""


class MirrorFeed(Protocol):
    """The controller's way to the mirror: each change is reported once it is in ZooKeeper and its brokers know. Never
    blocks (M4)."""

    @property
    def wants_all(self) -> bool:
        """Whether the mirror may have missed something, and needs everything."""

    def tell(self, news: News) -> None: ...

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        """The leader answered that it leads at this epoch."""


class NoMirror:
    """The MirrorFeed of a controller without a mirror."""

    wants_all = False

    def tell(self, news: News) -> None: ...
    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None: ...
