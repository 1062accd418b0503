"""Where the brokers of a cluster keep a partition's records."""

from __future__ import annotations

from pathlib import Path

import spark_replication as sr
from spark_replication.storage.directory.quarantine import QUARANTINE


def replica_folders(cluster: sr.LocalCluster, names: str) -> list[Path]:
    """In service and in quarantine, of every broker; `names` as `orders-0.*`.

    No folder of a replica is entered: a broker may remove it in this moment.
    """
    logs = cluster.directory / "logs"
    return sorted([*logs.glob(f"broker-*/{names}"), *logs.glob(f"broker-*/{QUARANTINE}/{names}")])
