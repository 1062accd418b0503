"""What a controller tells its mirror: what is stored already, and of which the brokers were told first (M4)."""

from __future__ import annotations

import msgspec

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import TopicPartition


class PartitionNews(msgspec.Struct, frozen=True):
    """As it is since `zxid`, the mzxid of its leaderAndISR."""

    command: PartitionCommand
    zxid: int


class Complete(msgspec.Struct, frozen=True):
    """The news have everything that was stored by `zxid`, but what is unreadable: what is known from before that, and
    is not among them, is gone (M2)."""

    zxid: int
    unreadable: Unreadable

    @property
    def is_whole(self) -> bool:
        """Whatever is told later is from after `zxid`. Not while something cannot be read: it may be older."""
        return not self.unreadable.topics and not self.unreadable.partitions


class News(msgspec.Struct, frozen=True, kw_only=True):
    """removed: partitions of topics that live on. deleted: topics. Each with the zxid of that."""

    partitions: tuple[PartitionNews, ...] = ()
    removed: tuple[tuple[TopicPartition, int], ...] = ()
    deleted: tuple[tuple[str, int], ...] = ()
    complete: Complete | None = None


NOTHING_NEW = News()
