"""What a controller tells its mirror: what is stored, and was announced to the brokers before (M4)."""

from __future__ import annotations

import msgspec

from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.controller.origin import Origin
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import TopicPartition


class PartitionNews(msgspec.Struct, frozen=True):
    """The present state of a partition."""

    command: PartitionCommand
    #: The mzxid of its leaderAndISR.
    zxid: int
    #: The time of that write.
    at_ms: int = 0
    #: Why it has no leader, if it has none.
    waiting_for: str | None = None
    #: What this follows from, if it has another origin than the rest of the news.
    origin: Origin | None = None


class EverythingTold(msgspec.Struct, frozen=True):
    """The partitions and topics in the news are all that were stored by `zxid`, except what is unreadable. What is
    known from before `zxid`, and is not among them, is gone (M2)."""

    zxid: int
    unreadable: Unreadable


class News(msgspec.Struct, frozen=True, kw_only=True):
    #: What all of this follows from.
    origin: Origin | None = None
    #: Whether the origin is a fact of its own (a take-over, a request, a report), and this the first news of it.
    begins: bool = False
    #: Why nothing is done about it, or not all.
    refused: str | None = None
    #: The last zxid that the controller knows of.
    zxid: int = -1
    partitions: tuple[PartitionNews, ...] = ()
    topics: tuple[tuple[str, StoredTopic], ...] = ()
    #: All of them, if any changed.
    brokers: BrokersRead | None = None
    #: Partitions that were removed from topics that live on, with the zxid of that.
    removed: tuple[tuple[TopicPartition, int], ...] = ()
    #: Topics that were deleted, with the zxid of that.
    deleted: tuple[tuple[str, int], ...] = ()
    complete: EverythingTold | None = None


NOTHING_NEW = News()
