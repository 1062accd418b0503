"""What the outside must provide: each a Protocol with a real adapter (zk, storage, transport) and one in sim.

An adapter decides nothing. An answer comes through `then`, exactly once, on any thread: who asked hands it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from spark_replication.config import TopicSettings
from spark_replication.core.controller.news import News
from spark_replication.core.law.writes import Group, GroupAnswer, IsrAnswer, IsrWrite
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.retention import SegmentSize
from spark_replication.errors import StorageFailed
from spark_replication.messages.commands import Command
from spark_replication.messages.ranges import Piece
from spark_replication.model import BrokerId, Offset, Registration, ReplicaOf, TopicPartition


class ControllerStore(Protocol):
    """ZooKeeper, as the holder of one controller epoch writes it: every multi() checks that epoch (C1)."""

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        """Store each group whole or not at all, several to a multi(). One answer a group, in their order."""


class CommandSender(Protocol):
    """The way to the brokers. Batched per broker, sent by a pool, retried while that life of the broker goes on."""

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None: ...

    def gone(self, broker: BrokerId) -> None:
        """That life has ended: what waits for it is for nobody."""


class IsrStore(Protocol):
    """ZooKeeper, as a leader writes it."""

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None: ...


class PreparedBatch(msgspec.Struct, frozen=True):
    """A producer's batch, serialised once and outside any lock: `message` is what disks and followers get.

    schema: the message of the schema that it was serialised with, and that the segment begins with which takes it.
    any_order: see messages.records.BatchMetadata.
    """

    rows: int
    message: bytes | memoryview
    crc: int
    schema: bytes
    producer: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    any_order: bool = False


class BatchPlace(msgspec.Struct, frozen=True):
    """Where an idempotent producer's batch lies. crc: of its message. timestamp_ms: when its leader appended it."""

    producer: int
    producer_epoch: int
    sequence: int
    base_offset: Offset
    last_offset: Offset
    crc: int = 0
    timestamp_ms: int = 0


class LogSlice(msgspec.Struct, frozen=True):
    """Whole batches of one segment, as stored: index entries and bytes belong together, one entry a batch.

    first_offset is at or below what was asked for (a read may start within a batch); next_offset comes after the last.
    schema: the segment's schema message. It goes over the wire with the segment's first batch only, so that what a
    follower gets of later ones has none.
    """

    first_offset: Offset
    next_offset: Offset
    segment_base: Offset
    entries: bytes | memoryview
    data: bytes | memoryview
    schema: bytes | memoryview = b""

    @property
    def head(self) -> bytes | memoryview:
        """What a follower needs of the schema: all of it to begin the segment, nothing to go on with it."""
        return self.schema if self.first_offset == self.segment_base else b""

    def loaded(self) -> LogSlice:
        """Itself: its data is in memory."""
        return self

    def kept(self) -> LogSlice:
        """With bytes of its own, of which views will not do: the buffer beneath them is used again."""
        entries, data, schema = bytes(self.entries), bytes(self.data), bytes(self.schema)
        return LogSlice(self.first_offset, self.next_offset, self.segment_base, entries, data, schema)


class StoredBytes(Protocol):
    """A range of a log's file that nobody has read yet. It is used without the partition's lock: by then the range may
    have been cut away, and written anew. The checksums of its entries tell."""

    def __len__(self) -> int: ...

    def read(self) -> bytes:
        """All of it, or OSError."""

    @property
    def is_cached(self) -> bool:
        """It is read without waiting for the disk, as far as its first and its last byte can tell."""

    def warm(self) -> None:
        """Wait for the disk, so that nobody else has to. Whatever fails is met again by who reads."""

    def send_to(self, connection: int, position: int) -> int:
        """From a position in it, to a connection's descriptor, without a way through this process. How much went: at
        least something, but 0 where nothing more can be read. BlockingIOError: the connection takes nothing now."""


class StoredSlice(msgspec.Struct, frozen=True):
    """A LogSlice whose data is still in its file."""

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
        """StorageFailed if the disk fails, or the file has become shorter."""
        try:
            data = self.data.read()
        except OSError as error:
            raise StorageFailed(
                f"offsets {self.first_offset} to {self.next_offset - 1} could not be read: {error}. Repair the disk"
            ) from error
        return LogSlice(self.first_offset, self.next_offset, self.segment_base, self.entries, data, self.schema)


Records = LogSlice | StoredSlice  # of what a log still has in memory, or of what lies in its file


class Flush(Protocol):
    """What of a log is to reach the disk: taken under its partition's lock, performed outside it."""

    def perform(self) -> None:
        """Data, then index, then names. StorageFailed: nobody knows what is on the disk."""


class Flusher(Protocol):
    """A few threads that wait for disks."""

    def flush(self, flush: Flush, ended: Callable[[StorageFailed | None], None]) -> None:
        """Perform it, and then say once how it ended."""


class ReplicaLog(Protocol):
    """One replica's log. Not thread-safe: who has its partition has it, too.

    Invariants: log_start <= high_watermark checkpoint <= log_end, after recovery too; what lies below log_end has been
    handed to the kernel, data first, then index entry (F0); epochs cover [log_start, log_end). log_start moves by
    `forget` and `begin_anew` alone, and is on the disk before anything below it goes.
    Every method that meets a full or failing disk raises StorageFailed and has changed nothing that is served.
    """

    @property
    def log_start(self) -> Offset: ...
    @property
    def log_end(self) -> Offset: ...
    @property
    def epochs(self) -> EpochHistory: ...
    @property
    def high_watermark(self) -> Offset:
        """As last checkpointed."""

    def append(self, batch: PreparedBatch, *, leader_epoch: int, timestamp_ms: int) -> BatchPlace:
        """At the end, as leader; in a segment of its schema."""

    def append_slice(self, records: LogSlice) -> Iterable[BatchPlace]:
        """At the end, as follower, the same bytes (F2); CorruptLog if a checksum fails or offsets do not continue."""

    def find(self, offset: Offset, *, bytes_max: int, end: Offset) -> Records | None:
        """Batches from the one that holds `offset` to the last that ends at or before `end`; at least one if there is
        any, whatever its size. None: nothing there. OffsetOutOfRange below log_start or above log_end."""

    def offset_of_time(self, timestamp_ms: int) -> Offset:
        """Of the first batch, in the order of offsets, that was appended at this time or later; log_end if none was."""

    def bytes_from(self, offset: Offset) -> int:
        """How many bytes of batches, or a little more, a reader at `offset` has not got yet."""

    def pieces(self, start: Offset, end: Offset, piece_bytes: int) -> tuple[Piece, ...]:
        """[start, end) in pieces of about so many bytes."""

    def begin_epoch(self, epoch: int) -> None:
        """On disk before it returns: `epoch` starts at the log's end (F3)."""

    def truncate(self, end: Offset) -> None:
        """Forget everything from `end` on, and epochs that start there. A batch that spans `end` goes whole. `end` is
        not below log_start."""

    def segments(self) -> Sequence[SegmentSize]:
        """Oldest first, contiguous; none of them empty."""

    def forget(self, before: Offset) -> None:
        """Forget the segments that lie below `before` as a whole, but for the last. `before` is not above the high
        watermark."""

    def begin_anew(self, log_start: Offset) -> None:
        """Forget everything: an empty log that starts there, in no epoch."""

    def configure(self, settings: TopicSettings) -> None:
        """When to begin a segment, from now on."""

    def checkpoint(self, high_watermark: Offset) -> None:
        """Noted: the next ReplicaLogs.save_high_watermarks makes it last."""

    def places(self, newest: int) -> Iterable[BatchPlace]:
        """The idempotent producers' batches, oldest first: from the index, to rebuild what is known of them. Of each
        producer the newest so many, at least."""

    def save_producers(self, known: bytes) -> None:
        """On the disk before it returns, beside the log: it stays when the log is cut, trimmed or begun anew."""

    def saved_producers(self) -> bytes:
        """As saved last; empty: never, or it cannot be read."""

    @property
    def flushed_end(self) -> Offset:
        """What lies below it is on the disk, with its index and its names."""

    def begin_flush(self) -> Flush | None:
        """Of everything that is not on the disk; None: it all is. One at a time; meanwhile the log goes on."""

    def end_flush(self, failed: StorageFailed | None) -> None:
        """It was performed; failed: the log is offline."""

    def flush(self) -> None:
        """All of it, before it returns."""

    def close(self) -> None: ...


class ReplicaLogs(Protocol):
    """A broker's log directory."""

    def open(self, partition: TopicPartition, topic_id: str, settings: TopicSettings) -> ReplicaLog:
        """The replica's log, recovered; made if it is not there."""

    def save_high_watermarks(self, *, durable: bool) -> None:
        """What the logs have noted: with the kernel, or if durable on the disk. StorageFailed: older ones are safe,
        too, and the next save says it all."""

    def found(self) -> Iterable[tuple[TopicPartition, str]]:
        """The partitions, with topic_id, whose directories are there."""

    def quarantine(self, partition: TopicPartition, topic_id: str, *, asked: bool) -> None:
        """Out of service, not deleted yet: soon if somebody asked for that, else much later. Of an open log: close it
        first."""


class FollowerLinks(Protocol):
    """Replication, from the engine's side: who is to be answered, and what is to be fetched."""

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        """There is something for this follower's waiting fetch: come and take it."""

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        """Fetch this partition from that leader, from now on."""

    def unfollow(self, partition: TopicPartition) -> None: ...


class FailureReports(Protocol):
    def failed(self, replica: ReplicaOf, error: StorageFailed) -> None:
        """The disk refuses what this replica must keep: let the controller know, if there is one. Never blocks; said
        again with each further failure."""


class MirrorFeed(Protocol):
    """Where the controller says what changed, once it is in ZooKeeper and its brokers know. Never blocks (M4)."""

    @property
    def wants_all(self) -> bool:
        """It may have missed something: it is to be told everything."""

    def tell(self, news: News) -> None: ...

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        """The leader answered that it leads at this epoch."""


class NoMirror:
    """A MirrorFeed of a controller whose tables nobody reads."""

    wants_all = False

    def tell(self, news: News) -> None: ...
    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None: ...
