"""The status of a cluster for a terminal: what is wrong first, then who leads what."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata
from spark_replication.spark.cluster import Status

PARTITIONS_SHOWN = 20
UP_TO_DATE = "mirror up to date"


def status_view(status: Status) -> RenderableType:
    parts: list[RenderableType] = [_headline(status)]
    if status.metadata is not None:
        parts += [_brokers(status, status.metadata), _partitions(status.metadata)]
    return Group(*parts)


def status_line(status: Status) -> str:
    """For a log, where nothing can be redrawn."""
    brokers = 0 if status.metadata is None else len(status.metadata.brokers)
    state = "healthy" if not status.problems else f"NOT HEALTHY: {'; '.join(status.problems[:3])}"
    return f"{state} | controller epoch {status.controller_epoch} | {brokers} brokers | {_mirror(status)}"


def _headline(status: Status) -> Text:
    if not status.problems:
        return Text.assemble(
            ("healthy", "bold green"), f"  controller epoch {status.controller_epoch}, {_mirror(status)}"
        )
    shown = "\n".join(f"  {problem}" for problem in status.problems[:5])
    more = f"\n  … and {len(status.problems) - 5} more" if len(status.problems) > 5 else ""
    return Text.assemble(("not healthy", "bold red"), f"\n{shown}{more}\n  {_mirror(status)}")


def _mirror(status: Status) -> str:
    if status.mirror_pending == 0:
        return UP_TO_DATE
    return f"mirror {status.mirror_pending} partitions behind, {status.mirror_lag_ms / 1000:.1f} s"


def _brokers(status: Status, metadata: Metadata) -> Table:
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    for partition in _all(metadata):
        holds.update(partition.replicas)
        if partition.state.leader is not None:
            leads[partition.state.leader] += 1
    table = Table("broker", "address", "pid", "epoch", "leads", "replicas", "guardian", title="brokers")
    for broker in sorted(metadata.brokers.keys() | status.guardians.keys()):
        registered, guarded = metadata.brokers.get(broker), status.guardians.get(broker)
        guardian = "none" if guarded is None else f"{guarded.restarts} restarts{', adopted' if guarded.adopted else ''}"
        table.add_row(
            str(broker),
            "not registered" if registered is None else registered.address,
            "" if guarded is None or guarded.serving is None else str(guarded.serving.pid),
            "" if registered is None else str(registered.epoch),
            str(leads[broker]),
            str(holds[broker]),
            "silent" if broker in status.silent_guardians else guardian,
        )
    return table


def _partitions(metadata: Metadata) -> Table:
    table = Table("partition", "leader", "epoch", "in sync", "eligible", "replicas", title="partitions")
    found = _all(metadata)
    for partition in found[:PARTITIONS_SHOWN]:
        state = partition.state
        table.add_row(
            str(partition.topic_partition),
            Text("none", "bold red") if state.leader is None else str(state.leader),
            str(state.leader_epoch),
            ", ".join(map(str, sorted(state.isr))),
            ", ".join(map(str, sorted(state.elr))),
            ", ".join(map(str, partition.replicas)),
        )
    if len(found) > PARTITIONS_SHOWN:
        table.caption = f"{PARTITIONS_SHOWN} of {len(found)} shown: spark-replication partitions lists all"
    return table


def _all(metadata: Metadata) -> list[PartitionCommand]:
    return [partition for topic in metadata.topics for partition in topic.partitions]
