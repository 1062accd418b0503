"""What the controller has told, as rows of all the tables, and which of them are to be written. Pure."""

from __future__ import annotations

from typing import Any

from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.controller.news import News
from spark_replication.mirror.brokers import BROKERS, BrokerRow
from spark_replication.mirror.latest import Latest, TableBatch, Whole
from spark_replication.mirror.latest_partitions import LatestPartitions
from spark_replication.mirror.topics import TOPICS, TopicRow
from spark_replication.model import TopicPartition

# What goes into one write of each of these tables, by its name, in this order: where a leader is, before who leads.
Batch = dict[str, TableBatch[Any]]


class LatestRows:
    """Not thread-safe. Bounded by the number of partitions, topics and brokers."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._partitions = LatestPartitions(cluster_id)
        self._brokers = Latest(BROKERS, cluster_id)
        self._topics = Latest(TOPICS, cluster_id)
        self.tables: tuple[Latest[Any], ...] = (self._brokers, self._topics, self._partitions)
        self._told_zxid = self._writing_zxid = self._written_zxid = -1

    @property
    def written_zxid(self) -> int:
        """All that was told up to there is in the tables."""
        return self._written_zxid

    @property
    def waiting(self) -> bool:
        return any(table.waiting for table in self.tables)

    @property
    def pending(self) -> int:
        return sum(table.pending for table in self.tables)

    def pending_since_ms(self) -> int | None:
        """When the oldest change that is not in the tables yet was told."""
        found = [since for table in self.tables if (since := table.pending_since_ms()) is not None]
        return min(found, default=None)

    def tell(self, news: News, now_ms: int) -> None:
        self._told_zxid = max(self._told_zxid, _highest(news))
        again = news.complete is not None
        if news.brokers is not None:
            self._tell_brokers(news.brokers, now_ms, again=again)
        for name, topic in news.topics:
            told = TopicRow(cluster_id=self._cluster_id, name=name, topic=topic, told_ms=now_ms)
            self._topics.changed(told, now_ms, again=again)
        for each in news.partitions:
            self._partitions.tell(each, now_ms, again=again)
        for partition, zxid in news.removed:
            self._partitions.gone(partition, zxid, now_ms)
        for name, zxid in news.deleted:
            self._topics.gone((name,), zxid, now_ms)
            self._partitions.deleted(name, zxid, now_ms)
        if news.complete is not None:
            whole = Whole(news.complete.zxid, news.complete.unreadable)
            for table in (self._topics, self._partitions):
                table.all_told(whole)

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int, now_ms: int) -> None:
        self._partitions.confirmed(partition, topic_id, leader_epoch, now_ms)

    def take(self) -> Batch:
        """What waits is being written from now on, until `written` or `failed`."""
        self._writing_zxid = self._told_zxid
        return {table.table.name: table.take() for table in self.tables}

    def written(self) -> None:
        self._written_zxid = self._writing_zxid
        for table in self.tables:
            table.written()

    def failed(self) -> None:
        for table in self.tables:
            table.failed()

    def _tell_brokers(self, read: BrokersRead, now_ms: int, *, again: bool) -> None:
        for broker, registration in read.brokers.items():
            made = read.registered[broker]
            row = BrokerRow(
                cluster_id=self._cluster_id,
                broker=broker,
                registration=registration,
                zxid=made.zxid,
                at_ms=made.at_ms or now_ms,
                told_ms=now_ms,
            )
            self._brokers.changed(row, now_ms, again=again)
        for key in self._brokers.existing():
            if key[0] not in read.brokers and key[0] not in read.unreadable.brokers:
                self._brokers.gone(key, read.zxid, now_ms)
        self._brokers.all_told(Whole(read.zxid, read.unreadable))


def _highest(news: News) -> int:
    zxids = [each.zxid for each in news.partitions]
    zxids += [topic.zxid for _, topic in news.topics]
    zxids += [zxid for _, zxid in (*news.removed, *news.deleted)]
    zxids += [] if news.brokers is None else [news.brokers.zxid]
    zxids += [] if news.complete is None else [news.complete.zxid]
    return max(zxids, default=-1)
