"""Where topics' tables lie, and how settings say so."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.mirror.delta.object_store import StoreOptions, read_options_of
from spark_replication.mirror.delta.paths import is_remote


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
