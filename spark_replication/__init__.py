"""A replicated, partitioned Arrow log inside a Spark cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_replication import errors

if TYPE_CHECKING:
    from spark_replication.admin.notebook.connected import connect
    from spark_replication.client.admin import Admin
    from spark_replication.client.local_reader import LocalReader
    from spark_replication.client.producer import Producer
    from spark_replication.client.reader import Reader
    from spark_replication.client.sender import Identity
    from spark_replication.core.moves.moves import Plan
    from spark_replication.live.local_cluster import LocalCluster
    from spark_replication.mirror.routing import LeaderTable
    from spark_replication.spark.cluster import SparkCluster
    from spark_replication.spark.leaders import with_leader
    from spark_replication.spark.registering import register
    from spark_replication.transport.security import Security

__all__ = [
    "Admin",
    "Identity",
    "LeaderTable",
    "LocalCluster",
    "LocalReader",
    "Plan",
    "Producer",
    "Reader",
    "Security",
    "SparkCluster",
    "connect",
    "errors",
    "register",
    "with_leader",
]

_HOMES = {
    "Admin": "spark_replication.client.admin",
    "Identity": "spark_replication.client.sender",
    "LeaderTable": "spark_replication.mirror.routing",
    "LocalCluster": "spark_replication.live.local_cluster",
    "LocalReader": "spark_replication.client.local_reader",
    "Plan": "spark_replication.core.moves.moves",
    "Producer": "spark_replication.client.producer",
    "Reader": "spark_replication.client.reader",
    "Security": "spark_replication.transport.security",
    "SparkCluster": "spark_replication.spark.cluster",
    "connect": "spark_replication.admin.notebook.connected",
    "register": "spark_replication.spark.registering",
    "with_leader": "spark_replication.spark.leaders",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: neither a producer nor a broker process needs Spark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
