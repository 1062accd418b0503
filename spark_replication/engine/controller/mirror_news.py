"""News that the mirror has not been told yet: it is told after the brokers, of what is stored (M4)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.controller.news import NOTHING_NEW, EverythingTold, PartitionNews
from spark_replication.core.controller.origin import Origin
from spark_replication.core.controller.plan import Reply
from spark_replication.core.controller.settling import waiting
from spark_replication.model import TopicPartition
from spark_replication.ports import MirrorFeed


class MirrorNews:
    """Everything that is noted follows from the origin that was named last."""

    def __init__(self, cluster: ClusterState, mirror: MirrorFeed, zxid: int) -> None:
        self._cluster = cluster
        self._mirror = mirror
        self._zxid = zxid  # everything that was stored up to this zxid is known
        self._origin: Origin | None = None
        self._begins = False
        self._refused: str | None = None
        # What each recovery under way follows from: answers and timeouts only end it.
        self._recoveries: dict[TopicPartition, Origin] = {}
        self._partitions: dict[TopicPartition, None] = {}
        self._topics: dict[str, None] = {}
        self._brokers: BrokersRead | None = None
        self._news = NOTHING_NEW

    def follows_from(self, origin: Origin, *, begins: bool) -> None:
        self._origin = origin
        self._begins = self._begins or (begins and origin.is_fact)

    def refused(self, reply: Reply) -> None:
        """The request that is the present origin was refused, wholly or in part."""
        errors = [*reply.errors.values()] if reply.error is None else [reply.error]
        if errors:
            others = f" (and {len(errors) - 1} others)" if len(errors) > 1 else ""
            self._refused = f"refused: {errors[0]}{others}"

    def recovers(self, partition: TopicPartition) -> None:
        """The leader that will be elected follows from the present origin."""
        if self._origin is not None:
            self._recoveries[partition] = self._origin

    def stored(self, zxid: int) -> None:
        self._zxid = max(self._zxid, zxid)

    def partitions(self, changed: Iterable[TopicPartition]) -> None:
        self._partitions.update(dict.fromkeys(changed))

    def topic(self, changed: str) -> None:
        self._topics[changed] = None

    def brokers(self, read: BrokersRead) -> None:
        self._brokers = read
        self._news = replace(self._news, brokers=read)

    def removed(self, partitions: Iterable[tuple[TopicPartition, int]]) -> None:
        """partitions: each with the zxid of its removal."""
        gone = tuple(partitions)
        for partition, _ in gone:
            self._recoveries.pop(partition, None)
        self._news = replace(self._news, removed=(*self._news.removed, *gone))

    def deleted(self, topic: str, zxid: int) -> None:
        self._recoveries = {each: origin for each, origin in self._recoveries.items() if each.topic != topic}
        self._news = replace(self._news, deleted=(*self._news.deleted, (topic, zxid)))

    def tell_all(self) -> None:
        self._partitions = dict.fromkeys(self._cluster.all_partitions())
        self._topics = dict.fromkeys(sorted(self._cluster.topics))
        complete = EverythingTold(self._zxid, self._cluster.unreadable)
        self._news = replace(self._news, brokers=self._brokers, complete=complete)
        self.tell()

    def tell(self) -> None:
        cluster = self._cluster
        news = replace(
            self._news,
            partitions=tuple(
                self._news_of(partition)
                for partition in self._partitions
                if partition in cluster.partitions and cluster.assigned(partition)
            ),
            topics=tuple((name, cluster.topics[name]) for name in self._topics if name in cluster.topics),
            begins=self._begins,
            refused=self._refused if self._begins else None,
        )
        self._news, self._begins, self._refused = NOTHING_NEW, False, None
        self._partitions.clear()
        self._topics.clear()
        if news != NOTHING_NEW:
            self._mirror.tell(replace(news, origin=self._origin, zxid=self._zxid))

    def _news_of(self, partition: TopicPartition) -> PartitionNews:
        stored = self._cluster.partitions[partition]
        awaited = waiting(self._cluster, partition) if partition in self._cluster.leaderless else None
        reason = None if awaited is None else awaited.reason
        origin = None
        if stored.state.leader is not None:
            began = self._recoveries.pop(partition, None)
            origin = began if stored.state.elected == "unclean_recovery" else None
        return PartitionNews(self._cluster.command(partition), stored.zxid, stored.at_ms, reason, origin)
