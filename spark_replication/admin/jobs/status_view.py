"""The status of a cluster for a terminal: problems first, then traffic, brokers, events and leaders.

Names and errors are shown, and steer nothing: each text passes `harmless`, and none is rich's markup.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_replication.admin.jobs.happenings import Happening, happenings
from spark_replication.admin.jobs.traffic import Traffic
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata
from spark_replication.model import TopicPartition
from spark_replication.page.answers import PartitionSize
from spark_replication.process.logs import harmless
from spark_replication.spark.cluster import Status

PARTITIONS_SHOWN = 20
HAPPENINGS_SHOWN = 4
HAPPENINGS_LOGGED = 20  # at once
UP_TO_DATE = "mirror up to date"
EVENT = "event | "  # before what happened, in a log
UNKNOWN = "–"


def shown_partitions(status: Status) -> list[TopicPartition]:
    return [each.topic_partition for each in _all(status.metadata)[:PARTITIONS_SHOWN]]


def status_view(status: Status, traffic: Traffic) -> RenderableType:
    parts: list[RenderableType] = [_headline(status), Text(_coming_in(traffic))]
    if status.metadata is not None:
        parts.append(_brokers(status, status.metadata))
    parts.append(_happenings(traffic))
    if status.metadata is not None:
        parts.append(_partitions(status.metadata, traffic))
    return Group(*parts)


def status_line(status: Status, traffic: Traffic) -> str:
    """The status in one line, for a log, where nothing can be redrawn."""
    brokers = 0 if status.metadata is None else len(status.metadata.brokers)
    state = "healthy" if not status.problems else f"NOT HEALTHY: {'; '.join(status.problems[:3])}"
    found = [state, f"controller epoch {status.controller_epoch}", f"{brokers} brokers", _mirror(status)]
    return harmless(" | ".join([*found, _coming_in(traffic)]))


def says_up_to_date(log: str) -> bool:
    """Whether the newest of the `status_line`s in this log says so of the mirror."""
    told = [line.split(" | ") for line in log.splitlines() if not line.startswith(EVENT)]
    return bool(told) and UP_TO_DATE in told[-1]


def event_lines(traffic: Traffic, after: int) -> tuple[list[str], int]:
    """The lines for a log of the newest happenings after the event `after`, and the number to go on after."""
    found = happenings(event for event in traffic.events.events if event.number > after)
    left = len(found) - HAPPENINGS_LOGGED
    lines = [f"{EVENT}{harmless(str(each))}" for each in found[-HAPPENINGS_LOGGED:]]
    if left > 0:
        lines.insert(0, f"{EVENT}{left} before these: spark-replication mirror events lists all")
    return lines, max([after, *(each.number for each in found)])


def _headline(status: Status) -> Text:
    if not status.problems:
        return Text.assemble(
            ("healthy", "bold green"), f"  controller epoch {status.controller_epoch}, {_mirror(status)}"
        )
    shown = "\n".join(f"  {harmless(problem)}" for problem in status.problems[:5])
    more = f"\n  … and {len(status.problems) - 5} more" if len(status.problems) > 5 else ""
    return Text.assemble(("not healthy", "bold red"), f"\n{shown}{more}\n  {_mirror(status)}")


def _mirror(status: Status) -> str:
    if status.mirror_pending == 0:
        return UP_TO_DATE
    return f"mirror {status.mirror_pending} partitions behind, {status.mirror_lag_ms / 1000:.1f} s"


def _coming_in(traffic: Traffic) -> str:
    """The traffic in words. A rate is known only after two looks at the logs, some seconds apart."""
    rows, lag = traffic.rows_per_s, traffic.lag
    coming_in = "in: not known yet" if rows is None else f"in: {rows:,.0f} rows/s, {_byte_rate(traffic.bytes_per_s)}"
    return coming_in if lag is None else f"{coming_in}; slowest follower {lag:,} rows behind"


def _byte_rate(bytes_per_s: float | None) -> str:
    if bytes_per_s is None:
        return UNKNOWN
    for unit in ("B/s", "KiB/s", "MiB/s"):
        if bytes_per_s < 1_024:
            return f"{bytes_per_s:.3g} {unit}" if bytes_per_s < 1_000 else f"{bytes_per_s:.0f} {unit}"
        bytes_per_s /= 1_024
    return f"{bytes_per_s:,.1f} GiB/s"


def _brokers(status: Status, metadata: Metadata) -> Table:
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    for partition in _all(metadata):
        holds.update(partition.replicas)
        if partition.state.leader is not None:
            leads[partition.state.leader] += 1
    table = _table("broker", "address", "pid", "epoch", "leads", "replicas", "guardian")
    for broker in sorted(metadata.brokers.keys() | status.guardians.keys()):
        registered, guarded = metadata.brokers.get(broker), status.guardians.get(broker)
        guardian = "none" if guarded is None else f"{guarded.restarts} restarts{', adopted' if guarded.adopted else ''}"
        _add_row(
            table,
            broker,
            "not registered" if registered is None else registered.address,
            "" if guarded is None or guarded.serving is None else guarded.serving.pid,
            "" if registered is None else registered.epoch,
            leads[broker],
            holds[broker],
            "silent" if broker in status.silent_guardians else guardian,
        )
    return table


def _happenings(traffic: Traffic) -> RenderableType:
    """The happenings, the newest first: a terminal cuts off the end of what does not fit."""
    found: list[Happening] = happenings(traffic.events.events)[-HAPPENINGS_SHOWN:]
    if traffic.events.age.error and not found:
        return Text(f"\nno events: {harmless(traffic.events.age.error)}")
    if not found:
        return Text("\nno events yet")
    table = _table("at (UTC)", "event", "because", "cause")
    for each in reversed(found):
        _add_row(table, each.at, each.what, each.because, each.cause)
    return table


def _partitions(metadata: Metadata, traffic: Traffic) -> Table:
    table = _table("partition", "leader", "epoch", "in sync", "eligible", "replicas", "written", "lag")
    found = _all(metadata)
    for partition in found[:PARTITIONS_SHOWN]:
        state, size = partition.state, traffic.sizes.get(partition.topic_partition)
        _add_row(
            table,
            partition.topic_partition,
            Text("none", "bold red") if state.leader is None else state.leader,
            state.leader_epoch,
            ", ".join(map(str, sorted(state.isr))),
            ", ".join(map(str, sorted(state.elr))),
            ", ".join(map(str, partition.replicas)),
            _byte_rate(None if size is None else size.bytes_per_s),
            _lag(size),
        )
    if len(found) > PARTITIONS_SHOWN:
        table.caption = f"{PARTITIONS_SHOWN} of {len(found)} shown: spark-replication partitions lists all"
    return table


def _lag(size: PartitionSize | None) -> str:
    return UNKNOWN if size is None or size.lag is None else f"{size.lag:,}"


def _table(*columns: str) -> Table:
    """A table without lines, so that everything fits a terminal of 24 lines and 80 columns. Its title is the empty line
    before it."""
    table = Table(*columns, title=" ", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    return table


def _add_row(table: Table, *cells: Any) -> None:
    table.add_row(*(cell if isinstance(cell, Text) else Text(harmless(str(cell))) for cell in cells))


def _all(metadata: Metadata | None) -> list[PartitionCommand]:
    return [] if metadata is None else [partition for topic in metadata.topics for partition in topic.partitions]
