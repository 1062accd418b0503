"""Who plans a read, and the leaders: which offsets there are, and where a range of them is best cut."""

from __future__ import annotations

import msgspec

from spark_replication.messages.envelope import NONE, Message, Part
from spark_replication.model import (
    AtTime,
    Count,
    NamedOffset,
    Offset,
    PartitionNumber,
    Start,
    TimeMs,
    TopicPartition,
    require,
)


class WantedRange(Part, frozen=True, kw_only=True):
    """`start` and from_time as a ReadTicket has them; `to` is exclusive, None: the high watermark.

    files: for who would read them from there. Any replica tells it, as far as it knows records to be committed."""

    topic: str
    partition: PartitionNumber
    start: Offset | NamedOffset = 0
    from_time: TimeMs | None = None
    to: Offset | None = None
    # Of a piece, about. 0: no pieces are asked for.
    piece_bytes: Count = 0
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


class DescribeRanges(Message, frozen=True, kw_only=True):
    ranges: tuple[WantedRange, ...]


class Piece(Part, frozen=True, kw_only=True):
    """Of a range: whole stored batches, from where the piece before it ends. bytes: as they are stored."""

    end: Offset
    bytes: Count


class ReplicaFolder(Part, frozen=True, kw_only=True):
    """Of one boot of a host, and there the only one of its device and inode."""

    path: str
    boot_id: str
    device: Count
    inode: Count


class FoundRange(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The range is [start, end): an offset that was asked for stays as it is, even below log_start. `end` is at most
    the high watermark. bytes: about what it takes as it is stored. folder: of the replica that tells it, if its files
    were asked for and it knows where they are."""

    topic: str
    partition: PartitionNumber
    topic_id: str = ""
    log_start: Offset = 0
    high_watermark: Offset = 0
    start: Offset = 0
    end: Offset = 0
    bytes: Count = 0
    pieces: tuple[Piece, ...] = ()
    folder: ReplicaFolder | None = None
    # NONE, or why this one cannot be told.
    error: str = NONE
    message: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class FoundRanges(Message, frozen=True, kw_only=True):
    """The answer to DescribeRanges, in its order."""

    ranges: tuple[FoundRange, ...] = msgspec.field(default=())
