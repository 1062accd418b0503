"""Writes all topics that are tables, or those that are named, one after the other: TopicTableWriter does each.

Rules:
- A topic is a table if its settings in force say so, whoever set them. What they are is asked of brokers every LOOK_S
  seconds, as are the topics. Cost: one answer about all partitions, and one for each topic that is a table.
- One thread writes, so that what is held in memory is one group of rows, however many topics there are. A topic that
  fails holds up the others for as long as its questions take.
- Upkeep of a table comes after so many commits of this writer, and once an hour.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.config import Settings, settings_from
from spark_replication.core.tables.flushing import FlushRules
from spark_replication.errors import InvalidRequest, ReplicationError, UnknownTopicOrPartition
from spark_replication.live.tables.topic_writer import TopicTableWriter
from spark_replication.messages.actions import DESCRIBE_SETTINGS
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.observing import DescribeSettings
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.model import BrokerId
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import topic_schema
from spark_replication.tables.delta_table import DeltaTopicTable
from spark_replication.tables.place import TablesPlace
from spark_replication.tables.upkeep import TableUpkeep

LOOK_S = 10.0
ASK_MS = 10_000
TIDY_S = 3_600.0
TIDY_COMMITS = 60
REST_S_MAX = 1.0

log = logging.getLogger(__name__)


class TableTopic(msgspec.Struct, frozen=True):
    """A topic that is a table, as brokers tell of it."""

    metadata: TopicMetadata
    settings: Settings


class TableWriters:
    def __init__(
        self,
        routes: Routes,
        reader: Reader,
        store: StoreOptions,
        *,
        topics: Collection[str] = (),
        broker: BrokerId | None = None,
        at_once: bool = False,
    ) -> None:
        """topics: those to write; all that are tables if there are none. broker: whose partitions are written when they
        are due; all, if it is None. at_once: what there is is due."""
        self._routes, self._reader, self._store = routes, reader, store
        self._topics = frozenset(topics)
        self._broker = broker
        self._at_once = at_once
        self._writers: dict[str, TopicTableWriter] = {}
        self._upkeep: dict[str, _Due] = {}
        self._due: list[tuple[float, str]] = []

    @property
    def writers(self) -> dict[str, TopicTableWriter]:
        """By topic_id."""
        return self._writers

    def run(self, wait: Callable[[float], bool]) -> None:
        """Write until `wait` says so: it waits for so many seconds, and returns whether to stop."""
        looks_at_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= looks_at_s:
                looks_at_s = now_s + LOOK_S
                try:
                    self.look()
                except ReplicationError as error:
                    log.warning("what topics are tables could not be asked: %s", error)
            due_s = self._due[0][0] if self._due else now_s + REST_S_MAX
            if wait(max(0.0, min(due_s, looks_at_s, now_s + REST_S_MAX) - now_s)):
                break
            while self._due and self._due[0][0] <= time.monotonic():
                self._turn(heapq.heappop(self._due)[1])
        self.close()

    def _turn(self, topic_id: str) -> None:
        writer = self._writers.get(topic_id)
        if writer is None:
            return  # the topic is gone
        rest_s = writer.go_on()
        self._tidy(topic_id, writer)
        heapq.heappush(self._due, (time.monotonic() + rest_s, topic_id))

    def write_once(self, patience_s: float) -> None:
        """Write all that is committed by now. What could not be written within so many seconds is an error."""
        self.look()
        until_s = time.monotonic() + patience_s
        for writer in self._writers.values():
            while not writer.go_on_once():
                if time.monotonic() > until_s:
                    raise InvalidRequest(
                        f"the table of {writer.topic} is not up to date after {patience_s:.0f} s: "
                        f"{writer.why_not() or 'others write it'}"
                    )
        self.close()

    def look(self) -> None:
        """Ask which topics are tables."""
        found = {each.metadata.topic_id: each for each in self._found()}
        for topic_id in self._writers.keys() - found.keys():
            self._writers.pop(topic_id).close()
            self._upkeep.pop(topic_id)
        for topic_id, topic in found.items():
            try:
                self._heed(topic_id, topic)
            except ReplicationError as error:
                log.warning("topic %s can be no table: %s", topic.metadata.name, error)

    def _heed(self, topic_id: str, topic: TableTopic) -> None:
        settings = topic.settings
        flush_ms = 0 if self._at_once else settings.table_flush_ms
        rules = FlushRules(flush_ms=flush_ms, file_bytes=settings.table_file_bytes)
        known = self._writers.get(topic_id)
        table = self._table_of(topic)
        if known is not None:
            known.heed(topic.metadata, table, rules)
            return
        self._writers[topic_id] = TopicTableWriter(
            topic.metadata, self._routes, self._reader, table, rules, broker=self._broker
        )
        upkeep = self._place(topic).upkeep(topic.metadata.name, topic_id)
        self._upkeep[topic_id] = _Due(upkeep, rules.file_bytes, TIDY_COMMITS, time.monotonic() + TIDY_S)
        heapq.heappush(self._due, (time.monotonic(), topic_id))

    def _table_of(self, topic: TableTopic) -> DeltaTopicTable:
        metadata, schema = topic.metadata, topic_schema(topic.metadata.config).newest
        partition_by = topic.settings.table_partition_by
        return self._place(topic).table(metadata.name, metadata.topic_id, schema, partition_by=partition_by)

    def _place(self, topic: TableTopic) -> TablesPlace:
        return TablesPlace(self._routes.cluster_id, topic.settings.table_path, self._store)

    def _found(self) -> Iterable[TableTopic]:
        deadline = Deadline(ASK_MS)
        metadata = self._routes.metadata(sorted(self._topics) or None, deadline)
        there = {topic.name for topic in metadata.topics}
        if missing := sorted(self._topics - there):
            raise UnknownTopicOrPartition(f"there is no topic {', '.join(missing)}: check the name")
        of_cluster = self._in_force(None, deadline)
        for topic in metadata.topics:
            is_table = bool(topic.config.settings.get("table", of_cluster.table))
            if topic.name in self._topics and not is_table:
                raise InvalidRequest(
                    f"topic {topic.name} is no table: spark-replication topics configure {topic.name} table=true"
                )
            if is_table and topic.partitions and topic.config.schema:
                yield TableTopic(topic, self._in_force(topic.name, deadline))

    def _in_force(self, topic: str | None, deadline: Deadline) -> Settings:
        told = self._routes.ask(DESCRIBE_SETTINGS, DescribeSettings(topic=topic), deadline)
        wanted = {each.name: each.value for each in told.settings if each.name.startswith("table")}
        return settings_from({name: value for name, value in wanted.items() if not name.endswith(".file")})

    def _tidy(self, topic_id: str, writer: TopicTableWriter) -> None:
        due = self._upkeep[topic_id]
        if writer.written.commits < due.commits and time.monotonic() < due.at_s:
            return
        commits, at_s = writer.written.commits + TIDY_COMMITS, time.monotonic() + TIDY_S
        self._upkeep[topic_id] = due._replace(commits=commits, at_s=at_s)
        with suppress(ReplicationError):
            due.upkeep.tidy(due.file_bytes, now_ms())

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class _Due(NamedTuple):
    """When a table is to be tidied."""

    upkeep: TableUpkeep
    file_bytes: int
    #: Of this writer, since it began.
    commits: int
    at_s: float
