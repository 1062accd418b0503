"""A replicated, partitioned Arrow log inside a Spark cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_replication import errors

if TYPE_CHECKING:
    from spark_replication.admin.notebook.connected import connect
    from spark_replication.client import aio
    from spark_replication.client.asking.admin import Admin
    from spark_replication.client.consuming.consumer import Consumer
    from spark_replication.client.producing.producer import Producer
    from spark_replication.client.reading.local_reader import LocalReader
    from spark_replication.client.reading.reader import Reader
    from spark_replication.client.reading.topic_rows import topic
    from spark_replication.core.moves.moves import Plan
    from spark_replication.engine.client.numbers import Identity
    from spark_replication.live.local_cluster import LocalCluster
    from spark_replication.mirror.asking.routing import LeaderTable
    from spark_replication.spark.cluster import SparkCluster
    from spark_replication.spark.leaders import with_leader
    from spark_replication.spark.registering import register
    from spark_replication.spark.session import session
    from spark_replication.transport.security.security import Security

__all__ = [
    "Admin",
    "Consumer",
    "Identity",
    "LeaderTable",
    "LocalCluster",
    "LocalReader",
    "Plan",
    "Producer",
    "Reader",
    "Security",
    "SparkCluster",
    "aio",
    "connect",
    "errors",
    "register",
    "session",
    "topic",
    "with_leader",
]

_HOMES = {
    "Admin": "spark_replication.client.asking.admin",
    "Consumer": "spark_replication.client.consuming.consumer",
    "Identity": "spark_replication.engine.client.numbers",
    "LeaderTable": "spark_replication.mirror.asking.routing",
    "LocalCluster": "spark_replication.live.local_cluster",
    "LocalReader": "spark_replication.client.reading.local_reader",
    "Plan": "spark_replication.core.moves.moves",
    "Producer": "spark_replication.client.producing.producer",
    "Reader": "spark_replication.client.reading.reader",
    "Security": "spark_replication.transport.security.security",
    "SparkCluster": "spark_replication.spark.cluster",
    "aio": "spark_replication.client.aio",
    "connect": "spark_replication.admin.notebook.connected",
    "register": "spark_replication.spark.registering",
    "session": "spark_replication.spark.session",
    "topic": "spark_replication.client.reading.topic_rows",
    "with_leader": "spark_replication.spark.leaders",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: neither a producer nor a broker process needs Spark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from spark_replication.process.extras import importing_for

    with importing_for(f"sr.{name}"):
        home = import_module(_HOMES[name])
        return home if name == "aio" else getattr(home, name)  # that one is a module


def __dir__() -> list[str]:
    """Names that are imported only when they are used are among them, for help() and for who completes names."""
    return sorted({*globals(), *__all__})
