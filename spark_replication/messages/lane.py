"""The frames between clients and brokers: the lane, on the port of replication.

A producer's connection carries the batches of all topics and partitions, and their answers. The payload of a Put is the
batch's IPC message, without compression.

A reader's connection carries questions for records, each of them answered once.

Either may be told that it waits for its quota, between two answers.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from spark_replication.messages.envelope import NONE, VERSION, Message, Part
from spark_replication.messages.quotas import Rate
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.messages.replication import PROVING_VERSION, Nonce
from spark_replication.model import Count, Offset, Port

STREAMS_MAX = 1_000  # of a connection
READS_MAX = 100  # of a connection, that are not answered

Crc = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class ClientFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="client", omit_defaults=True):
    """The first frame of a client's connection. With a nonce it is of PROVING_VERSION."""

    versions: ClassVar[tuple[int, ...]] = (VERSION, PROVING_VERSION)

    #: Empty if the client does not know it.
    cluster_id: str = ""
    #: Whether it reads. A client that does not produces.
    reads: bool = False
    #: Whether members of consumer groups ask their coordinator over it.
    joins: bool = False
    #: Set if the client has a token: see HelloFrame.
    name: str | msgspec.UnsetType = msgspec.UNSET
    port: Port | msgspec.UnsetType = msgspec.UNSET
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


class ThrottledFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="throttled"):
    """The principal has taken more than it may: nothing is read from the connection for so long, and no records go over
    it. What was sent already is kept, and its answers come. Told again if that is not enough."""

    ms: Count
    quota: Rate


class ReadFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="read", omit_defaults=True):
    """A question for the records from the ticket's start on. It is answered once there are any, and at the latest after
    max_wait_ms."""

    #: Of the connection; it names the question until that is answered.
    number: Count
    ticket: ReadTicket
    #: Whether the broker is to look at the checksums before it sends: what came last was damaged.
    checked: bool = False


class ReadAnswerFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="read_answer", omit_defaults=True):
    """Stored bytes follow it on the wire, if records were found: schema, entries, data, of whole batches. The first may
    begin below `offset`, and the last may end beyond the ticket's `to`.

    They are as they lie on the disk, unless the ticket names columns: then the schema and the data have those of these
    columns that the batches have, and the entries describe such data.
    """

    number: Count
    #: Where the read begins: where the ticket's start is.
    offset: Offset = 0
    #: Where it goes on after these records.
    next_offset: Offset = 0
    #: The leader epoch of the record before next_offset; -1 if it is not known.
    last_epoch: int = -1
    high_watermark: Offset = 0
    #: How many columns the topic has, as this broker knows.
    width: Count = 0
    schema_bytes: Count = 0
    entry_bytes: Count = 0
    data_bytes: Count = 0
    error: str = NONE
    message: str = ""
