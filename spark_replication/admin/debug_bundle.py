"""One archive for somebody who is to find out what is wrong, and was not there.

It holds names, numbers and log lines, but no records of any topic and no secret: settings that name a secret's file are
shown as set.
"""

from __future__ import annotations

import io
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from spark_replication.client.admin import Admin
from spark_replication.config import FILE_ENDING, Settings, described
from spark_replication.errors import ReplicationError
from spark_replication.model import BrokerId

LOG_BYTES_MAX = 4 << 20  # the end of each log
EVENTS = 1_000

_PACKAGES = ("spark_replication", "pyspark", "pyarrow", "deltalake", "delta-spark", "kazoo", "msgspec")
_LOGS = (
    "driver.log*",
    "controller/log*",
    "page.log*",
    "controller/page.log*",
    "zookeeper*/log*",
    "*/broker-*/broker.log*",
)
_OF_BROKERS = ("*/broker-*/*.json",)


def write_bundle(target: Path, admin: Admin, settings: Settings, told: Callable[[str], None]) -> list[str]:
    """Write the archive. Return what could not be collected, and why: the archive has that, too. `told` is called with
    each part as it is added."""
    errors: list[str] = []
    top = target.name.removesuffix(".tar.gz")
    with tarfile.open(target, "x:gz") as archive:

        def add(name: str, data: bytes) -> None:
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
            told(name)

        for name, collect in _parts(admin, settings):
            try:
                add(name, collect())
            except (ReplicationError, OSError) as error:
                errors.append(f"{name}: {error}")
        add("errors.txt", "".join(f"{line}\n" for line in errors).encode())
    return errors


def _parts(admin: Admin, settings: Settings) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The parts of the archive. Collect each before asking for the next: the cluster's description says which brokers
    there are."""
    brokers: list[BrokerId] = []

    def cluster() -> bytes:
        found = admin.describe_cluster()
        brokers.extend(broker.id for broker in found.brokers)
        return _json(found)

    yield "versions.json", _versions
    yield "settings.json", lambda: _json(_without_secrets(settings))
    yield "health.json", lambda: _json(admin.health())
    yield "cluster.json", cluster
    yield "topics.json", lambda: _json(admin.describe_topics())
    yield "replicas.json", lambda: _json(admin.replicas())
    yield "reassignments.json", lambda: _json(admin.reassignments())
    yield "events.json", lambda: _json(admin.events(last=EVENTS))
    yield "metrics/controller.txt", lambda: admin.metrics().encode()
    for broker in brokers:
        yield f"metrics/broker-{broker}.txt", lambda broker=broker: admin.metrics(broker).encode()  # type: ignore[misc]
    directory = Path(settings.data_dir).resolve()
    for pattern in (*_LOGS, *_OF_BROKERS):
        for path in sorted(directory.glob(pattern)):
            if path.is_file():
                yield f"data/{path.relative_to(directory)}", lambda path=path: _end_of(path)  # type: ignore[misc]


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)


def _versions() -> bytes:
    found = {name: _version(name) for name in _PACKAGES}
    processors = len(os.sched_getaffinity(0))
    return _json(
        {**found, "python": platform.python_version(), "system": platform.platform(), "processors": processors}
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _without_secrets(settings: Settings) -> dict[str, Any]:
    values = msgspec.to_builtins(settings)
    return {
        each.name: "(set)" if each.name.endswith(FILE_ENDING) and values[each.name] else values[each.name]
        for each in described()
    }


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        return file.read()
