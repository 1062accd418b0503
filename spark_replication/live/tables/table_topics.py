"""Which topics are tables, as brokers tell, and what opens the table of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.config import Settings, settings_from, with_topic
from spark_replication.core.tables.flushing import FlushRules
from spark_replication.core.tables.restoring import outline_of
from spark_replication.core.tables.retaining import TableRetention
from spark_replication.core.tables.table import is_table
from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.actions import DESCRIBE_SETTINGS
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.observing import DescribeSettings
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.tables.aside import UpkeepTask
from spark_replication.tables.delta_table import DeltaTopicTable
from spark_replication.tables.opening import TablesPlace
from spark_replication.tables.upkeep import TableUpkeep, UpkeepRules

ASK_MS = 10_000


class TableTopic(msgspec.Struct, frozen=True):
    """A topic that is a table."""

    metadata: TopicMetadata
    #: What is in force for it of the settings of tables.
    settings: Settings
    cluster_id: str

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def rules(self) -> FlushRules:
        return FlushRules(flush_ms=self.settings.table_flush_ms, file_bytes=self.settings.table_file_bytes)

    def table(self, store: StoreOptions) -> DeltaTopicTable:
        """InvalidSchema: a column is of a type that no table holds."""
        outline = outline_of(self.metadata.config, len(self.metadata.numbers))
        partition_by = self.settings.table_partition_by
        return self._place(store).table(self.name, self.metadata.topic_id, outline, partition_by=partition_by)

    def upkeep(self, store: StoreOptions) -> TableUpkeep:
        return self._place(store).upkeep(self.name, self.metadata.topic_id)

    @property
    def upkeep_rules(self) -> UpkeepRules:
        retention = TableRetention(ms=self.settings.table_retention_ms, bytes=self.settings.table_retention_bytes)
        return UpkeepRules(file_bytes=self.settings.table_file_bytes, retention=retention)

    def upkeep_task(self, store: StoreOptions) -> UpkeepTask:
        return self._place(store).upkeep_task(self.name, self.metadata.topic_id, self.upkeep_rules)

    def _place(self, store: StoreOptions) -> TablesPlace:
        return TablesPlace(self.cluster_id, self.settings.table_path, store)


def table_topics(routes: Routes, names: Collection[str]) -> Iterator[TableTopic]:
    """These topics, or all that are tables if there are none. Cost: one answer about all partitions, whose topics have
    the settings that they override, and one about those of the cluster."""
    deadline = Deadline(ASK_MS)
    metadata = routes.metadata(sorted(names) or None, deadline)
    if missing := sorted({*names} - {topic.name for topic in metadata.topics}):
        raise UnknownTopicOrPartition(f"there is no topic {', '.join(missing)}: check the name")
    of_cluster = _of_cluster(routes, deadline)
    for topic in sorted(metadata.topics, key=lambda topic: topic.name):
        wanted = is_table(topic.name, topic.config.settings, by_default=of_cluster.table)
        if topic.name in names and not wanted:
            raise InvalidRequest(
                f"topic {topic.name} is no table: spark-replication topics configure {topic.name} table=true"
            )
        if wanted and topic.partitions and topic.config.schema:
            own = {name: value for name, value in topic.config.settings.items() if name in _TOLD}
            yield TableTopic(topic, with_topic(of_cluster, own), metadata.cluster_id)


def cluster_tables_path(routes: Routes, deadline: Deadline) -> str:
    """Where the tables of the cluster's topics lie."""
    return _of_cluster(routes, deadline).table_path


def _of_cluster(routes: Routes, deadline: Deadline) -> Settings:
    """What is in force of the settings of tables for a topic that overrides none."""
    told = routes.ask(DESCRIBE_SETTINGS, DescribeSettings(), deadline)
    return settings_from({each.name: each.value for each in told.settings if each.name in _TOLD})


_TOLD = frozenset(
    {
        "table",
        "table.path",
        "table.flush.ms",
        "table.file.bytes",
        "table.partition.by",
        "table.retention.ms",
        "table.retention.bytes",
    }
)
