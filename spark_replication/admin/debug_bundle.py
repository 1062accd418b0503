"""One archive for somebody who is to find out what is wrong, and was not there.

It holds names, numbers and log lines, but no records of any topic and no secret: settings that name a file are shown as
set. It says in errors.txt what it could not get, and why.
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

from spark_replication.admin.process_logs import Told, logs_here
from spark_replication.client.asking.admin import Admin
from spark_replication.config import Settings
from spark_replication.core.settings_in_force import all_shown
from spark_replication.errors import NotReady, ReplicationError
from spark_replication.messages.observing import ToldSettings
from spark_replication.model import BrokerId, Scalar

EVENTS = 1_000

_PACKAGES = ("spark_replication", "pyspark", "pyarrow", "deltalake", "delta-spark", "kazoo", "msgspec")


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
    told: dict[str, ToldSettings | ReplicationError] = {}

    def of_cluster() -> bytes:
        told.update(admin.settings())
        return _json(_of_cluster(told))

    yield "settings/cluster.json", of_cluster
    for process, answer in told.items():
        yield f"settings/{process.replace(' ', '-')}.json", lambda answer=answer: _in_force(answer)  # type: ignore[misc]
    yield "settings/this-command.json", lambda: _json(all_shown(msgspec.to_builtins(settings)))
    yield "health.json", lambda: _json(admin.health())
    yield "cluster.json", cluster
    yield "topics.json", lambda: _json(admin.describe_topics())
    yield "replicas.json", lambda: _json(admin.replicas())
    yield "reassignments.json", lambda: _json(admin.reassignments())
    yield "events.json", lambda: _json(admin.events(last=EVENTS))
    yield "metrics/controller.txt", lambda: admin.metrics().encode()
    for broker in brokers:
        yield f"metrics/broker-{broker}.txt", lambda broker=broker: admin.metrics(broker).encode()  # type: ignore[misc]
    yield from logs_here(told, Path(settings.data_dir).resolve())


def _of_cluster(told: Told) -> dict[str, Scalar]:
    """The cluster's own settings, from the first that has heard of them: the controller, if it answers."""
    errors = [each for each in told.values() if isinstance(each, ReplicationError)]
    for each in told.values():
        if isinstance(each, ToldSettings) and each.of_cluster is not None:
            return each.of_cluster
    raise errors[0] if errors else NotReady("no process could read them in ZooKeeper")


def _in_force(told: ToldSettings | ReplicationError) -> bytes:
    if isinstance(told, ReplicationError):
        raise told
    return _json({each.name: {"value": each.value, "from": each.origin} for each in told.settings})


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
