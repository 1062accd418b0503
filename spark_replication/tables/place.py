"""Where topics' tables lie, and what opens them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.mirror.delta.object_store import StoreOptions, options_in
from spark_replication.mirror.delta.paths import is_remote
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import schema_of_text
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.types import table_schema
from spark_replication.tables.upkeep import TableUpkeep

_STORE_FILE = "table.storage.file"


def with_table_path(settings: Settings, directory: Path | None = None) -> Settings:
    """These settings with a table.path that means the same to every process on this host. directory: where the
    cluster's data lies; None for data.dir."""
    path = settings.table_path or str((directory or Path(settings.data_dir)) / "tables")
    return replace(settings, table_path=path if is_remote(path) else str(Path(path).absolute()))


def table_store(settings: Settings) -> StoreOptions:
    return options_in(_STORE_FILE, settings.table_storage_file, "table.path", settings.table_path)


def fits_table(schema: str, partition_by: str) -> None:
    """core.tables.fitting.FitsTable."""
    table_schema(schema_of_text(schema, "the topic's config"), columns_named(partition_by))


def columns_named(partition_by: str) -> list[str]:
    """The columns that table.partition.by names."""
    return [each.strip() for each in partition_by.split(",") if each.strip()]


class TablesPlace:
    """Opens topics' tables below table.path."""

    def __init__(self, cluster_id: str, path: str, store: StoreOptions) -> None:
        self.path = path
        self._cluster_id = cluster_id
        self._store = store

    def table(self, topic: str, topic_id: str, schema: pa.Schema, *, partition_by: str = "") -> DeltaTopicTable:
        """partition_by: as table.partition.by has it. InvalidSchema: there can be no such table."""
        columns = columns_named(partition_by)
        return DeltaTopicTable(
            self.uri(topic), self._owner(topic, topic_id), schema, self._store, partition_by=columns, now_ms=now_ms
        )

    def upkeep(self, topic: str, topic_id: str) -> TableUpkeep:
        return TableUpkeep(TableFolder(self.uri(topic), self._store), self._owner(topic, topic_id), now_ms)

    def _owner(self, topic: str, topic_id: str) -> TableOwner:
        return TableOwner(cluster_id=self._cluster_id, topic=topic, topic_id=topic_id)

    def uri(self, topic: str) -> str:
        return f"{self.path.rstrip('/')}/{topic}"
