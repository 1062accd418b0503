"""Producers and consumers: what goes beside their batches."""

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

PRODUCER_ID_BITS = 62  # random ones: nobody has to remember which ids were given
KEPT_PRODUCER = 1 << PRODUCER_ID_BITS  # set in the ids of producers that may come back after any time


class BatchMetadata(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What a producer says beside a batch; none of it = acks=all, not idempotent.

    partition: named by each batch of a topic's stream, and by none of a partition's.
    """

    partition: PartitionNumber | None = None
    acks: Literal["all", 0, 1] = "all"
    producer: Count | None = None  # of PRODUCER_ID_BITS, and perhaps KEPT_PRODUCER
    epoch: Epoch = 0
    sequence: Count | None = None
    # Sent again, it may have its rows in another order.
    any_order: bool = False

    def __post_init__(self) -> None:
        require((self.producer is None) == (self.sequence is None), "producer and sequence come together")


class Ack(Part, frozen=True, kw_only=True):
    """number: of the batch in its stream, from 0, where answers come together."""

    number: int | msgspec.UnsetType = msgspec.UNSET
    base_offset: Offset
    last_offset: Offset


class Refusal(Part, frozen=True, kw_only=True):
    number: int | msgspec.UnsetType = msgspec.UNSET
    error: str
    message: str
    retriable: bool
    maybe_written: bool = False


class AnswersTogether(Part, frozen=True, kw_only=True):
    """Of a topic's stream: as they come."""

    answers: tuple[Ack | Refusal, ...]


class ReadTicket(Part, frozen=True, kw_only=True):
    """DoGet. `to` is exclusive; without it the stream ends when caught up, or after max_wait_ms.

    `from` (an offset, "earliest" or "latest") or from_time, in ms since 1970; neither: from 0. What a stream that does
    not begin at an offset gives first is a batch without rows: its base_offset says where it begins.
    any_replica: a follower serves it, too, as far as it knows records to be committed; its leader may know more.
    topic_id: of the topic that is meant; None: of whichever has this name.
    """

    topic: str
    partition: PartitionNumber
    from_offset: Offset | NamedOffset | None = msgspec.field(name="from", default=None)
    from_time: TimeMs | None = None
    to: Offset | None = None
    max_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)] = 0
    columns: tuple[str, ...] | None = None
    any_replica: bool = False
    topic_id: str | None = None

    def __post_init__(self) -> None:
        require(
            self.from_offset is None or self.from_time is None,
            f"it begins at from={self.from_offset!r} and at from_time={self.from_time}: name one of the two",
        )
        require(
            self.to is None or not isinstance(self.from_offset, int) or self.from_offset <= self.to,
            f"from={self.from_offset!r} to={self.to} is no range of offsets: end at `from` or after it",
        )

    @property
    def start(self) -> Start:
        return AtTime(self.from_time) if self.from_time is not None else self.from_offset or 0


class BatchPosition(Part, frozen=True, kw_only=True):
    """What DoGet says beside a batch. timestamp: when its leader appended it, in ms since 1970.

    leader_epoch and timestamp are -1 beside the batch without rows that only says where a stream begins.
    """

    base_offset: Offset
    leader_epoch: int
    timestamp: int
    high_watermark: Offset


class InitProducer(Message, frozen=True, kw_only=True):
    """Asks for a producer id that nobody has; any number of so many random bits does as well."""


class ProducerId(Message, frozen=True, kw_only=True):
    producer: int
    epoch: int = 0
