"""Kafka's jars, and those of Spark's connector for it: fetched once, into the virtual environment.

kafka.sha256 and connector.sha256 have the digest of each, as sha256sum writes them: other files are not run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from spark_replication.admin.bench.harness import Progress
from spark_replication.process.java import Module, fetch

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
DIGESTS = Path(__file__).parent
_DIRECTORY = Path(sys.prefix) / f"kafka-jars-{VERSION}"
_CONNECTOR_DIRECTORY = Path(sys.prefix) / f"kafka-connector-{SPARK}"


def kafka_jars(progress: Progress) -> Path:
    """The folder with the jars. Raises StartFailed if they are not there and cannot be fetched."""
    return _fetched(MODULES, "kafka", _DIRECTORY, f"Kafka {VERSION}, 50 MB: about 80 s", progress)


def connector_jars(progress: Progress) -> Path:
    """The folder with those of Spark's connector, likewise."""
    return _fetched(
        CONNECTOR_MODULES, "connector", _CONNECTOR_DIRECTORY, "Spark's connector for it, 10 MB: about 5 s", progress
    )


def _fetched(modules: Sequence[Module], name: str, directory: Path, what: str, progress: Progress) -> Path:
    complaint_of = partial(complaint, digests(DIGESTS / f"{name}.sha256"))
    if complaint_of(directory) is not None:
        progress(f"fetching {what}, the first time")
        fetch(modules, directory, complaint_of)
    return directory


def digests(file: Path) -> dict[str, str]:
    lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def complaint(wanted: dict[str, str], directory: Path) -> str | None:
    """What is wrong with the jars in `directory`. None if they are these, and no others."""
    for name, digest in wanted.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256(path.read_bytes()).hexdigest() != digest:
            return f"{name} is not the file it should be (its digest differs)"
    others = sorted(path.name for path in directory.iterdir() if path.name not in wanted)
    return f"{others[0]} is none of those that are wanted" if others else None
