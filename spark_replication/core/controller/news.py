"""What a controller tells its mirror: what is stored already, and of which the brokers were told first (M4)."""

from __future__ import annotations

import msgspec

from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.controller.origin import Origin
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import TopicPartition


class PartitionNews(msgspec.Struct, frozen=True):
    """As it is since `zxid`, the mzxid of its leaderAndISR, and `at_ms`. waiting_for: why it has no leader, if so.
    origin: what this follows from, where that is something else than of the rest."""

    command: PartitionCommand
    zxid: int
    at_ms: int = 0
    waiting_for: str | None = None
    origin: Origin | None = None


class Complete(msgspec.Struct, frozen=True):
    """The partitions and topics among the news are all that were stored by `zxid`, but what is unreadable: what is
    known from before that, and is not among them, is gone (M2)."""

    zxid: int
    unreadable: Unreadable


class News(msgspec.Struct, frozen=True, kw_only=True):
    """removed: partitions of topics that live on. deleted: topics. Each with the zxid of that. brokers: always all of
    them.

    origin: what all of this follows from. begins: it is a fact of its own (a take-over, a request, a report), and this
    is the first that is told of it, at `zxid`, which was the last that the controller knew of. refused: why nothing, or
    not all of it, is done.
    """

    origin: Origin | None = None
    begins: bool = False
    refused: str | None = None
    zxid: int = -1
    partitions: tuple[PartitionNews, ...] = ()
    topics: tuple[tuple[str, StoredTopic], ...] = ()
    brokers: BrokersRead | None = None
    removed: tuple[tuple[TopicPartition, int], ...] = ()
    deleted: tuple[tuple[str, int], ...] = ()
    complete: Complete | None = None


NOTHING_NEW = News()
