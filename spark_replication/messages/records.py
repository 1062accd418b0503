"""What producers, consumers and brokers send beside batches."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spark_replication.messages.envelope import Message, Part
from spark_replication.model import (
    AtTime,
    Count,
    Epoch,
    NamedOffset,
    Offset,
    PartitionNumber,
    Start,
    TimeMs,
    require,
)

PARTITION = "_partition"  # the column in which a row names its partition

PRODUCER_ID_BITS = 62  # random bits: nobody has to remember which ids were given
KEPT_PRODUCER = 1 << PRODUCER_ID_BITS  # set in the id of a producer that may come back after any time

SEQUENCE_IN_ANY_ORDER_MAX = (1 << 32) - 1  # an index entry has a digest of the rows above it


class BatchMetadata(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What a producer sends beside a batch. A batch without metadata is sent with acks=all, and is not idempotent."""

    #: Set for each batch of a topic's stream; None for every batch of a partition's stream.
    partition: PartitionNumber | None = None
    acks: Literal["all", 0, 1] = "all"
    producer: Count | None = None  # PRODUCER_ID_BITS, and perhaps KEPT_PRODUCER
    epoch: Epoch = 0
    sequence: Count | None = None
    #: Whether a retry of the batch may have its rows in another order. Its sequence has 32 bits then.
    any_order: bool = False

    def __post_init__(self) -> None:
        require((self.producer is None) == (self.sequence is None), "producer and sequence come together")
        require(
            not self.any_order or (self.sequence or 0) <= SEQUENCE_IN_ANY_ORDER_MAX,
            f"in any order, a sequence is at most {SEQUENCE_IN_ANY_ORDER_MAX}: begin another epoch",
        )


class PutAck(Part, frozen=True, kw_only=True):
    """The place of a batch that was stored."""

    #: The number of the batch in its stream, from 0. Only in AnswersTogether.
    number: int | msgspec.UnsetType = msgspec.UNSET
    base_offset: Offset
    last_offset: Offset


class Refusal(Part, frozen=True, kw_only=True):
    #: See Ack.
    number: int | msgspec.UnsetType = msgspec.UNSET
    error: str
    message: str
    retriable: bool
    maybe_written: bool = False


class AnswersTogether(Part, frozen=True, kw_only=True):
    """Answers to batches of a topic's stream, in the order in which they became known."""

    answers: tuple[PutAck | Refusal, ...]


class ReadTicket(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The ticket of a DoGet. The stream starts at `from` or at from_time. Without either, it starts at offset 0.

    If the stream does not start at an offset, its first batch has no rows: the base_offset of that batch says where the
    stream starts.
    """

    topic: str
    partition: PartitionNumber
    #: An offset, "earliest" or "latest".
    from_offset: Offset | NamedOffset | None = msgspec.field(name="from", default=None)
    #: In ms since 1970.
    from_time: TimeMs | None = None
    #: Exclusive. With None, the stream ends when it has caught up, or after max_wait_ms.
    to: Offset | None = None
    max_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)] = 0
    columns: tuple[str, ...] | None = None
    #: Whether a follower may serve the stream, as far as it knows records to be committed. The leader may know more.
    any_replica: bool = False
    #: The topic that is meant; None for whichever topic has this name.
    topic_id: str | None = None
    #: The leader epoch of the record before the offset `from`, if the reader knows it: the stream is refused with
    #: LOG_TRUNCATED if that record is not there any more.
    last_epoch: Epoch | None = None

    def __post_init__(self) -> None:
        require(
            self.last_epoch is None or isinstance(self.from_offset, int),
            f"last_epoch={self.last_epoch} is of the record before an offset: name that as `from`",
        )
        require(
            self.from_offset is None or self.from_time is None,
            f"it begins at from={self.from_offset!r} and at from_time={self.from_time}: name one of the two",
        )
        require(
            self.to is None or not isinstance(self.from_offset, int) or self.from_offset <= self.to,
            f"from={self.from_offset!r} to={self.to} is no range of offsets: end at `from` or after it",
        )
        columns = self.columns or ()
        require(len(set(columns)) == len(columns), "a column is named twice: name each once")

    @property
    def start(self) -> Start:
        return AtTime(self.from_time) if self.from_time is not None else self.from_offset or 0


class BatchPosition(Part, frozen=True, kw_only=True):
    """What a DoGet sends beside a batch.

    leader_epoch and timestamp are -1 beside the batch without rows that only says where a stream starts.
    """

    base_offset: Offset
    leader_epoch: int
    #: When the leader appended the batch, in ms since 1970.
    timestamp: int
    high_watermark: Offset


class InitProducer(Message, frozen=True, kw_only=True):
    """Ask for a producer id that nobody has. A producer may also draw PRODUCER_ID_BITS random bits itself."""


class ProducerId(Message, frozen=True, kw_only=True):
    producer: int
    epoch: int = 0
