"""The frames between a follower and its leader. Each pair of brokers has one connection, opened by the follower.

Each partition's fetch is answered on its own, once the leader has something for it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from spark_replication.messages.envelope import NONE, VERSION, Message, Part
from spark_replication.model import (
    OFFSET_MAX,
    BrokerId,
    Count,
    Epoch,
    EpochOrNone,
    Offset,
    PartitionNumber,
    Port,
    TopicPartition,
)

NONCE_BYTES = 32
SALT_BYTES = 16
SALTS_MAX = 4  # of a file: whoever proves a token may have to try each
SIGNATURE_BYTES = 64
#: scrypt's n is 2 to the power of this. Less is quick to guess against. More takes memory of a client, 1 KiB times n,
#: at the word of a server that has proven nothing.
COST_MIN, COST_MAX = 14, 16

#: Of the messages by which somebody proves to know a token. 1 had no signatures.
PROVING_VERSION = 2


class FetchPartition(Part, frozen=True, kw_only=True):
    """Ask for the records from `offset` on. The follower has everything below `offset`."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    leader_epoch: Epoch
    offset: Offset
    #: The leader epoch of the record before `offset`; -1 if the follower's log is empty.
    last_epoch: EpochOrNone
    #: The clean_since of the follower's registration. A membership that began before it is void: the follower may have
    #: lost records since (I8).
    clean_since: Epoch
    #: How far the follower serves consumers by what this leader has told it; 0 if it serves nothing yet. The leader
    #: answers a fetch at once if its own high watermark is above this.
    high_watermark: Offset = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Diverging(Part, frozen=True, kw_only=True):
    """Where the follower's log parts from the leader's: at the end of `epoch`."""

    #: -1 if the logs part below all epochs that the leader knows.
    epoch: EpochOrNone
    #: Where `epoch` ends in the leader's log.
    end: Offset


class FetchedPartition(Part, frozen=True, kw_only=True):
    """The answer to one FetchPartition. Stored bytes follow it on the wire: schema, entries, data, as they lie on
    disk."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    leader_epoch: Epoch
    error: str = NONE
    message: str = ""
    diverging: Diverging | None = None
    high_watermark: Offset = 0
    #: The start of the leader's log. A follower whose log ends below it begins anew there; every other follower may
    #: forget what lies below it.
    log_start: Offset = 0
    offset: Offset = 0
    #: The base offset of the segment that holds the stored bytes. The schema is sent only with data that starts there.
    segment_base: Offset = 0
    schema_bytes: Count = 0
    entry_bytes: Count = 0
    data_bytes: Count = 0
    #: For a follower that begins at log_start: what the leader knows of idempotent producers whose batches lay below.
    producers: bytes = b""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Salt(Part, frozen=True, kw_only=True):
    """What scrypt is to make a token's keys with."""

    value: Annotated[bytes, msgspec.Meta(min_length=SALT_BYTES, max_length=SALT_BYTES)]
    cost: Annotated[int, msgspec.Meta(ge=COST_MIN, le=COST_MAX)]


Salts = Annotated[tuple[Salt, ...], msgspec.Meta(max_length=SALTS_MAX)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
Signatures = Annotated[tuple[Signature, ...], msgspec.Meta(max_length=SALTS_MAX)]


class HelloFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """The first frame of a connection: says which broker the follower is. With a nonce it is of PROVING_VERSION."""

    versions: ClassVar[tuple[int, ...]] = (VERSION, PROVING_VERSION)

    cluster_id: str
    broker_id: BrokerId
    broker_epoch: Epoch
    #: Set if the follower has a token: then both sides prove that they know it (transport.proofs.handshake).
    #: Whose token it is.
    name: str | msgspec.UnsetType = msgspec.UNSET
    #: The leader's, as the follower dialled it: what passes a connection on has another.
    port: Port | msgspec.UnsetType = msgspec.UNSET
    nonce: Nonce | msgspec.UnsetType = msgspec.UNSET


class ChallengeFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="challenge"):
    """The leader's answer to a Hello with a nonce."""

    versions: ClassVar[tuple[int, ...]] = (PROVING_VERSION,)

    v: int = PROVING_VERSION
    nonce: Nonce
    #: Whether the leader has a token of that name itself.
    in_clear: bool = True
    #: Of the verifiers that it has of that name.
    salts: Salts = ()


class ProofFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="proof"):
    """Proves that the sender knows the token. The follower sends it first, and the leader only after a valid proof."""

    versions: ClassVar[tuple[int, ...]] = (PROVING_VERSION,)

    v: int = PROVING_VERSION
    #: By the token, or the leader's by the server key of a verifier. Empty if the leader has no such token.
    proof: bytes = b""
    #: The follower's, by the private key of each salt.
    signatures: Signatures = ()


class FetchFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="fetch"):
    """Fetches of a follower. It accepts only the answer to a partition's last fetch."""

    #: Rises with each frame of a connection.
    number: Count
    partitions: tuple[FetchPartition, ...]


# The number of a FetchedFrame that answers nothing: a leader with nothing else to send shows that it is alive. No fetch
# has this number, so that an older follower ignores such a frame.
ALIVE = -1


class FetchedFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="fetched"):
    """The answer to the fetch of one partition."""

    #: The number of the fetch that this answers, or ALIVE.
    number: Annotated[int, msgspec.Meta(ge=ALIVE, le=OFFSET_MAX)]
    partition: FetchedPartition


class ErrorFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The connection is refused or given up, and why."""

    error: str
    message: str


ALIVE_FRAME = FetchedFrame(number=ALIVE, partition=FetchedPartition(topic="", partition=0, topic_id="", leader_epoch=0))
