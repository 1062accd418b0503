"""Follower to leader. One connection a pair; each partition's fetch is answered on its own, when there is something.

Frames are a union told apart by `type`; a version that is not known fails before the body is read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec

from spark_replication import decoding
from spark_replication.decoding import UNDECODABLE
from spark_replication.errors import InvalidRequest
from spark_replication.messages.envelope import NONE, Message, Part, Versioned, check_version
from spark_replication.model import (
    OFFSET_MAX,
    BrokerId,
    Count,
    Epoch,
    EpochOrNone,
    Offset,
    PartitionNumber,
    TopicPartition,
)

NONCE_BYTES = 32


class FetchPartition(Part, frozen=True, kw_only=True):
    """I have everything below `offset`; the record before it is of `last_epoch` (-1: my log is empty).

    clean_since: of my registration: what I was a member of since before that, I may have lost (I8).
    """

    topic: str
    partition: PartitionNumber
    topic_id: str
    leader_epoch: Epoch
    offset: Offset
    last_epoch: EpochOrNone
    clean_since: Epoch
    high_watermark: Offset = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Diverging(Part, frozen=True, kw_only=True):
    """Your log and mine part at the end of `epoch`, which is at `end` in mine (epoch -1: below all I know)."""

    epoch: EpochOrNone
    end: Offset


class FetchedPartition(Part, frozen=True, kw_only=True):
    """The answer to one FetchPartition. Stored bytes follow it on the wire: schema, entries, data, as they lie on disk.

    segment_base: the offset that names the segment they lie in; its schema comes along when the data starts there.
    log_start: of the leader's log. Whoever ends below it begins anew there; others need nothing below it.
    producers: for who ends below it, what the leader knows of idempotent producers whose batches lay there.
    """

    topic: str
    partition: PartitionNumber
    topic_id: str
    leader_epoch: Epoch
    error: str = NONE
    message: str = ""
    diverging: Diverging | None = None
    high_watermark: Offset = 0
    log_start: Offset = 0
    offset: Offset = 0
    segment_base: Offset = 0
    schema_bytes: Count = 0
    entry_bytes: Count = 0
    data_bytes: Count = 0
    producers: bytes = b""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class HelloFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """nonce: only of a follower that has a token: both sides are to prove it then (transport.handshake)."""

    cluster_id: str
    broker_id: BrokerId
    broker_epoch: Epoch
    nonce: Nonce | msgspec.UnsetType = msgspec.UNSET


class ChallengeFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="challenge"):
    """A leader's answer to a Hello with a nonce."""

    nonce: Nonce


class ProofFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="proof"):
    """The sender knows the token. First the follower's; the leader's follows only if that one holds."""

    proof: bytes


class FetchFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="fetch"):
    """number: rises on a connection. A follower believes only the answer to a partition's last fetch."""

    number: Count
    partitions: tuple[FetchPartition, ...]


# Of a FetchedFrame that answers nothing: its sender lives, and says so as long as it has nothing else to say. No fetch
# has this number, so that a follower that has not heard of this finds no use for such an answer, and goes on.
ALIVE = -1


class FetchedFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="fetched"):
    """number: of the fetch that this answers."""

    number: Annotated[int, msgspec.Meta(ge=ALIVE, le=OFFSET_MAX)]
    partition: FetchedPartition


class ErrorFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The connection is refused or given up."""

    error: str
    message: str


Frame = HelloFrame | ChallengeFrame | ProofFrame | FetchFrame | FetchedFrame | ErrorFrame
ALIVE_FRAME = FetchedFrame(number=ALIVE, partition=FetchedPartition(topic="", partition=0, topic_id="", leader_epoch=0))
_frame_encoder = msgspec.msgpack.Encoder()


def to_frame(frame: Frame) -> bytes:
    return _frame_encoder.encode(frame)


def from_frame(data: bytes | memoryview) -> Frame:
    try:
        frame: Frame = decoding.from_msgpack(data, Frame)
    except UNDECODABLE as error:
        with suppress(*UNDECODABLE):  # a newer version may have other fields: that it is newer is the better answer
            check_version(decoding.from_msgpack(data, Versioned).v, Message)
        raise InvalidRequest(f"not a replication frame: {error}") from error
    check_version(frame.v, type(frame))
    return frame
