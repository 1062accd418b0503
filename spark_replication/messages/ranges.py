"""What a reader asks before it reads: which offsets a partition has, and where a range of them is best cut."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.envelope import NONE, Message, Part
from spark_replication.model import (
    AtTime,
    Count,
    Epoch,
    NamedOffset,
    Offset,
    PartitionNumber,
    Start,
    TimeMs,
    TopicPartition,
    require,
)

PRODUCERS_MAX = 16  # that are asked about with one range


class WantedRange(Part, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    partition: PartitionNumber
    #: Where the range starts: at `from_time` if that is set, otherwise here. See ReadTicket.
    start: Offset | NamedOffset = 0
    from_time: TimeMs | None = None
    #: Exclusive; None for the high watermark.
    to: Offset | None = None
    #: About how large each piece is to be; 0 for no pieces.
    piece_bytes: Count = 0
    #: The leader epoch of the record before `start`, if the asker knows it: see FoundRange.cut.
    last_epoch: Epoch | None = None
    #: Whether an end will do that a new leader knows of, though more may be committed. Otherwise it answers with
    #: OFFSET_NOT_AVAILABLE.
    may_lag: bool = False
    #: Of which producers to tell what is stored.
    producers: Annotated[tuple[Count, ...], msgspec.Meta(max_length=PRODUCERS_MAX)] = ()
    #: Whether to say when the record at `start` was appended.
    timed: bool = False
    #: Whether to say where the files are. A follower answers, too, as far as it knows records to be committed.
    files: bool = False

    def __post_init__(self) -> None:
        require(
            self.to is None or not isinstance(self.start, int) or self.start <= self.to,
            f"from {self.start!r} to {self.to} is no range of offsets: end at the start or after it",
        )

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def beginning(self) -> Start:
        return self.start if self.from_time is None else AtTime(self.from_time)


class KnownAppends(Part, frozen=True, kw_only=True):
    """What a partition knows of a producer that numbers its batches: those of its newest epoch, committed or not."""

    producer: Count
    epoch: Epoch
    last_sequence: Count
    #: How many rows each of the newest batches has, up to last_sequence. At least one.
    rows: tuple[Count, ...]


class DescribeRanges(Message, frozen=True, kw_only=True):
    """Describe ranges of partitions: their offsets, their bytes, and where they are best cut."""

    ranges: tuple[WantedRange, ...]


class Piece(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Whole stored batches of a range, from the end of the piece before on."""

    end: Offset
    #: The size of the batches as they are stored.
    bytes: Count
    #: The leader epoch of the record before `end`; -1 if it is not known.
    last_epoch: int = -1


class ReplicaFolder(Part, frozen=True, kw_only=True):
    """Where a replica's files are. During one boot of a host, device and inode name one folder only."""

    path: str
    boot_id: str
    device: Count
    inode: Count


class FoundRange(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The range [start, end) of one partition."""

    topic: str
    partition: PartitionNumber
    topic_id: str = ""
    #: The epoch at which the answering replica leads; -1 if it does not.
    leader_epoch: int = -1
    log_start: Offset = 0
    high_watermark: Offset = 0
    #: An offset that was asked for is returned as it is, even below log_start.
    start: Offset = 0
    #: At most the high watermark.
    end: Offset = 0
    #: The leader epochs of the records before `start` and before `end`; -1 where they are not known.
    start_epoch: int = -1
    end_epoch: int = -1
    #: When the first committed record from `start` on was appended, if `timed` was asked for; None if there is none.
    start_ms: TimeMs | None = None
    #: Where this log parts from the one that the asker has read up to `start`; None if it does not. The records from
    #: there to `start` are gone, and others may have their offsets.
    cut: Offset | None = None
    #: Whether more may be committed than the high watermark says: see WantedRange.may_lag.
    lags: bool = False
    #: About how large the range is as it is stored.
    bytes: Count = 0
    pieces: tuple[Piece, ...] = ()
    #: Of the producers that were asked about, those that the partition knows.
    known: tuple[KnownAppends, ...] = ()
    #: The folder of the replica that answers, if `files` was asked for and the broker knows it.
    folder: ReplicaFolder | None = None
    #: The error code if this range could not be described, else NONE.
    error: str = NONE
    message: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class FoundRanges(Message, frozen=True, kw_only=True):
    """The answer to DescribeRanges, in the order of the request."""

    ranges: tuple[FoundRange, ...] = msgspec.field(default=())
