"""The data directory, and cluster.json in it: how to reach a cluster that was healthy when it was written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from spark_replication.config import Settings
from spark_replication.errors import InvalidConfig
from spark_replication.model import Value, decode, encode
from spark_replication.storage.state_files import read_file, replace_file

CLUSTER_FILE = "cluster.json"


def make_data_directory(settings: Settings) -> Path:
    path = Path(settings.data_dir).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise InvalidConfig(
            f"data.dir {path} cannot be used: {error.strerror}. Name a directory that this user may write"
        ) from error


class ClusterFile(Value, frozen=True, kw_only=True):
    """active_since_ms: when its driver had become the controller."""

    bootstrap: str
    zookeeper: str
    controller_epoch: int
    driver_pid: int
    active_since_ms: int = 0


def read_cluster_file(data_directory: Path) -> ClusterFile | None:
    path = data_directory / CLUSTER_FILE
    data = read_file(path)
    return None if data is None else decode(data, ClusterFile, str(path))


def write_cluster_file(data_directory: Path, file: ClusterFile) -> None:
    replace_file(data_directory / CLUSTER_FILE, encode(file), durable=False)
