"""Where topics' tables lie, and how settings say so."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.mirror.delta.object_store import StoreOptions, read_options_of
from spark_replication.mirror.delta.paths import is_remote
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import schema_of_text
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.types import table_schema
from spark_replication.tables.upkeep import TableUpkeep


def tables_path(settings: Settings, directory: Path | None = None) -> str:
    """The table.path of a cluster, absolute: other processes have other working directories. directory: where its data
    lies; None for data.dir."""
    path = settings.table_path or str((directory or Path(settings.data_dir)) / "tables")
    return path if is_remote(path) else str(Path(path).absolute())


def with_table_path(settings: Settings, directory: Path | None = None) -> Settings:
    """These settings with a table.path that means the same to every process on this host: see `tables_path`."""
    return replace(settings, table_path=tables_path(settings, directory))


def table_uri(path: str, topic: str) -> str:
    """Where this topic's table lies. path: as `tables_path` tells it."""
    return f"{path.rstrip('/')}/{topic}"


def read_table_options(settings: Settings) -> StoreOptions:
    """What opens table.path. InvalidConfig: table.storage.file will not do."""
    return read_options_of(("table.path", settings.table_path), ("table.storage.file", settings.table_storage_file))


def partition_columns(partition_by: str) -> tuple[str, ...]:
    """The columns that table.partition.by names."""
    return tuple(dict.fromkeys(name for name in map(str.strip, partition_by.split(",")) if name))


def fits_table(schema: str, partition_by: str) -> None:
    """core.tables.fitting.FitsTable."""
    table_schema(schema_of_text(schema, "the topic's config"), partition_columns(partition_by))


class TablesPlace:
    """Opens topics' tables below table.path."""

    def __init__(self, cluster_id: str, path: str, store: StoreOptions) -> None:
        self._cluster_id = cluster_id
        self._path = path
        self._store = store

    def table(self, topic: str, topic_id: str, schema: pa.Schema, *, partition_by: str = "") -> DeltaTopicTable:
        """partition_by: as table.partition.by has it. InvalidSchema: there can be no such table."""
        return DeltaTopicTable(
            table_uri(self._path, topic),
            self._owner(topic, topic_id),
            schema,
            self._store,
            partition_by=partition_columns(partition_by),
            now_ms=now_ms,
        )

    def upkeep(self, topic: str, topic_id: str) -> TableUpkeep:
        folder = TableFolder(table_uri(self._path, topic), self._store)
        return TableUpkeep(folder, self._owner(topic, topic_id), now_ms)

    def _owner(self, topic: str, topic_id: str) -> TableOwner:
        return TableOwner(cluster_id=self._cluster_id, topic=topic, topic_id=topic_id)
