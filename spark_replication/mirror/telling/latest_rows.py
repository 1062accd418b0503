"""What the controller has told, as rows of all tables, and which of them are to be written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.controller.news import News
from spark_replication.core.controller.origin import Origin
from spark_replication.mirror.tables.brokers import BROKERS, BrokerRow
from spark_replication.mirror.tables.columns import Tombstone
from spark_replication.mirror.tables.facts import Fact, Facts
from spark_replication.mirror.tables.topics import TOPICS, TopicRow
from spark_replication.mirror.telling.latest import Latest, TableBatch, Whole
from spark_replication.mirror.telling.latest_partitions import LatestPartitions
from spark_replication.model import TopicPartition
from spark_replication.process.memory import uncollected

MUCH = 1_000  # so many rows take so long to write that others should not wait for them


class Batch(NamedTuple):
    #: They are written first.
    facts: list[Fact]
    #: What goes into one write of each table, by name. Written in this order: a broker's address before what it leads.
    tables: dict[str, TableBatch[Any]]
    #: Nothing else waits.
    is_all: bool = True


class LatestRows:
    """Not thread-safe. Bounded by the number of partitions, topics and brokers, and by facts.FACTS_MAX.

    If much waits, what leaders have confirmed is written first: pipelines route by it, and no event tells of it. The
    rest is written next, with whatever was confirmed meanwhile. Everything is written together once a write has failed,
    and while a broker's row waits: a confirmation is never shown before the leader's address."""

    def __init__(self, cluster_id: str, controller_epoch: int, *, much: int = MUCH) -> None:
        self._cluster_id = cluster_id
        self._much = much
        self.facts = facts = Facts(controller_epoch)
        self._partitions = LatestPartitions(cluster_id, facts)
        self._brokers = Latest(BROKERS, cluster_id, facts)
        self._topics = Latest(TOPICS, cluster_id, facts)
        self.tables: tuple[Latest[Any], ...] = (self._brokers, self._topics, self._partitions)
        self._told_zxid = self._writing_zxid = self._written_zxid = -1
        self._written_event = -1
        self._all_next = False

    @property
    def written_zxid(self) -> int:
        """Everything that was told up to this zxid is in the tables."""
        return self._written_zxid

    @property
    def written_event(self) -> int:
        """The events up to this number are in their table, and so are the rows that they are of."""
        return self._written_event

    @property
    def much_waits(self) -> bool:
        return self.pending > self._much

    @property
    def waiting(self) -> bool:
        return self.facts.waiting or any(table.waiting for table in self.tables)

    @property
    def pending(self) -> int:
        return sum(table.pending for table in self.tables)

    def pending_since_ms(self) -> int | None:
        """When the oldest change that is not in the tables yet was told; None if there is none."""
        found = (self.facts.since_ms(), *(table.pending_since_ms() for table in self.tables))
        return min((since for since in found if since is not None), default=None)

    def tell(self, news: News, now_ms: int) -> None:
        self._told_zxid = max(self._told_zxid, _highest(news))
        again = news.complete is not None
        self.facts.follow_from(news.origin)
        if news.begins and news.origin is not None:
            self.facts.began(news.origin, news.zxid, now_ms, why=news.refused)
        if news.brokers is not None:
            self._tell_brokers(news.brokers, news.origin, now_ms, again=again)
        for name, topic in news.topics:
            told = TopicRow(cluster_id=self._cluster_id, name=name, topic=topic, told_ms=now_ms)
            self._topics.changed(told, now_ms, again=again)
        with uncollected():
            for each in news.partitions:
                self.facts.follow_from(each.origin or news.origin)
                self._partitions.tell(each, now_ms, again=again)
        self.facts.follow_from(news.origin)
        for partition, zxid in news.removed:
            self._partitions.gone(partition, zxid, now_ms)
        for name, zxid in news.deleted:
            self._topics.gone((name,), zxid, now_ms)
            self._partitions.deleted(name, zxid, now_ms)
        if news.complete is not None:
            whole = Whole(news.complete.zxid, news.complete.unreadable, news.origin)
            for table in (self._topics, self._partitions):
                table.all_told(whole)

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int, now_ms: int) -> None:
        self._partitions.confirmed(partition, topic_id, leader_epoch, now_ms)

    def vanished(self, table: Latest[Any], gone: Sequence[Tombstone], origin: Origin | None, now_ms: int) -> None:
        """Take tombstones that a complete set led to while it is being written: so that write is not everything."""
        self.facts.follow_from(origin)
        self._writing_zxid = self._written_zxid
        table.vanished(gone, now_ms)

    def take(self) -> Batch:
        """Take a batch, which is being written until `written` or `failed`."""
        quiet = 0 if self._brokers.pending else sum(table.quiet for table in self.tables)
        self._all_next = not self._all_next and quiet > 0 and self.pending - quiet > self._much
        if self._all_next:  # this batch is the quiet rows only, and the next one is everything
            return Batch([], {table.table.name: table.take_quiet() for table in self.tables}, is_all=False)
        self._writing_zxid = self._told_zxid
        return Batch(self.facts.take(), {table.table.name: table.take() for table in self.tables})

    def with_confirmed(self, rows: Latest[Any], batch: TableBatch[Any]) -> TableBatch[Any]:
        """The batch of one table with what leaders have confirmed since it was taken. Called just before it is written,
        after the tables before it. This batch is then written, however often that is tried: its rows wait no longer."""
        if rows is not self._partitions or self._brokers.waiting:
            return batch
        return self._partitions.with_confirmed(batch)

    def written(self, *, is_behind: bool) -> None:
        """is_behind: the tables do not show yet what events of earlier controllers say."""
        self._written_zxid = self._writing_zxid
        if not is_behind:
            self._written_event = self.facts.last_number
        self.facts.written()
        for table in self.tables:
            table.written()

    def failed(self) -> None:
        self._all_next = True
        self.facts.failed()
        for table in self.tables:
            table.failed()

    def _tell_brokers(self, read: BrokersRead, origin: Origin | None, now_ms: int, *, again: bool) -> None:
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
        self._brokers.all_told(Whole(read.zxid, read.unreadable, origin))


def _highest(news: News) -> int:
    zxids = [each.zxid for each in news.partitions]
    zxids += [topic.zxid for _, topic in news.topics]
    zxids += [zxid for _, zxid in (*news.removed, *news.deleted)]
    zxids += [] if news.brokers is None else [news.brokers.zxid]
    zxids += [] if news.complete is None else [news.complete.zxid]
    return max(zxids, default=-1)
