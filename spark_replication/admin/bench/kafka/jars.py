"""Kafka's jars, and those of Spark's connector for it: fetched once, into the virtual environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from spark_replication.admin.bench.replicate import Progress
from spark_replication.process.ivy import Module, fetch

VERSION = "4.3.1"
SPARK = version("pyspark")
MODULES = (
    Module("org.apache.kafka", "kafka_2.13", VERSION, transitive=True),
    Module("org.apache.kafka", "kafka-tools", VERSION, transitive=True),
)
# Spark's connector, each by itself: what they name as their dependencies does not resolve.
CONNECTOR_MODULES = (
    Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
    Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Module("org.apache.kafka", "kafka-clients", "3.9.2"),
    Module("org.apache.commons", "commons-pool2", "2.12.1"),
)
_DIRECTORY = Path(sys.prefix) / f"kafka-jars-{VERSION}"
_CONNECTOR_DIRECTORY = Path(sys.prefix) / f"kafka-connector-{SPARK}"


def kafka_jars(progress: Progress) -> Path:
    """The folder with the jars. Raises StartFailed if they are not there and cannot be fetched."""
    return _fetched(MODULES, _DIRECTORY, f"Kafka {VERSION}, 50 MB: about 80 s", progress)


def connector_jars(progress: Progress) -> Path:
    """The folder with those of Spark's connector, likewise."""
    return _fetched(CONNECTOR_MODULES, _CONNECTOR_DIRECTORY, "Spark's connector for it, 10 MB: about 5 s", progress)


def _fetched(modules: Sequence[Module], directory: Path, what: str, progress: Progress) -> Path:
    complaint = partial(_complaint, modules)
    if complaint(directory) is not None:
        progress(f"fetching {what}, the first time")
        fetch(modules, directory, complaint)
    return directory


def _complaint(modules: Sequence[Module], directory: Path) -> str | None:
    missing = [module.file_name for module in modules if not (directory / module.file_name).is_file()]
    return f"{missing[0]} is missing" if missing else None
