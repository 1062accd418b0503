"""Opens topics' tables, each at its place below table.path."""

from __future__ import annotations

from spark_replication.core.tables.restoring import TopicOutline
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.model import TopicConfig
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import schema_of_text, topic_schema
from spark_replication.tables.aside import UpkeepTask
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.places import partition_columns, table_uri
from spark_replication.tables.types import table_schema
from spark_replication.tables.upkeep import TableUpkeep, UpkeepRules


def fits_table(schema: str, partition_by: str) -> None:
    """core.tables.fitting.FitsTable."""
    table_schema(schema_of_text(schema, "the topic's config"), partition_columns(partition_by))


class TablesPlace:
    """Opens topics' tables below table.path."""

    def __init__(self, cluster_id: str, path: str, store: StoreOptions) -> None:
        self._cluster_id = cluster_id
        self._path = path
        self._store = store

    def table(self, topic: str, topic_id: str, outline: TopicOutline, *, partition_by: str = "") -> DeltaTopicTable:
        """partition_by: as table.partition.by has it. InvalidSchema: there can be no such table."""
        config = TopicConfig(schema=outline.schema, earlier_columns=outline.earlier_columns)
        return DeltaTopicTable(
            table_uri(self._path, topic),
            self._owner(topic, topic_id),
            topic_schema(config).newest,
            self._store,
            partition_by=partition_columns(partition_by),
            outline=outline,
            now_ms=now_ms,
        )

    def upkeep(self, topic: str, topic_id: str) -> TableUpkeep:
        folder = TableFolder(table_uri(self._path, topic), self._store)
        return TableUpkeep(folder, self._owner(topic, topic_id), now_ms)

    def upkeep_task(self, topic: str, topic_id: str, rules: UpkeepRules) -> UpkeepTask:
        uri, owner = table_uri(self._path, topic), self._owner(topic, topic_id)
        return UpkeepTask(uri=uri, owner=owner, store=dict(self._store), rules=rules)

    def _owner(self, topic: str, topic_id: str) -> TableOwner:
        return TableOwner(cluster_id=self._cluster_id, topic=topic, topic_id=topic_id)
