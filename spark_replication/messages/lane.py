"""The frames between a producer and a broker that leads partitions which it writes to: the lane, on the port of
replication.

One connection carries the batches of all topics and partitions, and their answers. The payload of a Put is the batch's
IPC message, without compression.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.envelope import NONE, Message, Part
from spark_replication.messages.records import BatchMetadata
from spark_replication.messages.replication import Nonce
from spark_replication.model import Count

STREAMS_MAX = 1_000  # of a connection

Crc = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class ClientFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="client"):
    """The first frame of a client's connection."""

    #: Empty if the client does not know it.
    cluster_id: str = ""
    #: Set if the client has a token: see HelloFrame.
    nonce: Nonce | msgspec.UnsetType = msgspec.UNSET


class WelcomeFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="welcome"):
    """The broker's first frame to a client that it has let in."""

    #: A larger message is not sent: it would end the connection.
    batch_bytes_max: Count


class StreamFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="stream"):
    """What the batches of one stream have in common. The payload is their schema, as an IPC message."""

    #: Of the connection, from 0 on.
    stream: Count
    topic: str
    topic_id: str


class PutFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="put", omit_defaults=True):
    """A batch. Its metadata names its partition."""

    stream: Count
    #: Of the connection; it names the batch until that is answered.
    number: Count
    #: The CRC-32C of the payload.
    crc: Crc
    batch: BatchMetadata


class PutAnswer(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Where a batch is stored, or why it was refused."""

    number: Count
    base_offset: int = -1
    last_offset: int = -1
    error: str = NONE
    message: str = ""
    retriable: bool = False
    maybe_written: bool = False


class PutAnswersFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="put_answers"):
    """Answers in the order in which they became known."""

    answers: tuple[PutAnswer, ...]
