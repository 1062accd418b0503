"""<data.dir>/cluster.json: how to reach a cluster that was healthy when it was written."""

from __future__ import annotations

from pathlib import Path

from spark_replication.model import Value, decode, encode
from spark_replication.storage.state_files import read_file, replace_file

CLUSTER_FILE = "cluster.json"


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
