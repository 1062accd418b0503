"""Kafka's jars: fetched once, into the virtual environment."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_replication.admin.bench.replicate import Progress
from spark_replication.process.ivy import Module, fetch

VERSION = "4.3.1"
MODULES = (
    Module("org.apache.kafka", "kafka_2.13", VERSION, transitive=True),
    Module("org.apache.kafka", "kafka-tools", VERSION, transitive=True),
)
DIRECTORY = Path(sys.prefix) / f"kafka-jars-{VERSION}"


def kafka_jars(progress: Progress) -> Path:
    """The folder with the jars. Raises StartFailed if they are not there and cannot be fetched."""
    if _complaint(DIRECTORY) is not None:
        progress(f"fetching Kafka {VERSION}, 50 MB: about 80 s, the first time")
        fetch(MODULES, DIRECTORY, _complaint)
    return DIRECTORY


def _complaint(directory: Path) -> str | None:
    missing = [module.file_name for module in MODULES if not (directory / module.file_name).is_file()]
    return f"{missing[0]} is missing" if missing else None
