"""The table `events`: a row for each thing that happened. No row is ever changed.

An event about a row of another table says what that row was and became (as JSON of some columns), what set the change
off, and why it came out so. Events of one cause have its id: a broker's death, and all elections that it caused. The
events of a partition, by zxid, are its whole history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from spark_replication.core.controller.origin import Origin
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.columns import UTC_TIME, Column, Face, Key, Table
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.topics import TOPICS


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    number: int
    kind: str
    subject: Mapping[str, Any]
    was: str | None = None
    became: str | None = None
    leader: int | None = None
    leader_epoch: int | None = None
    why: str | None = None
    origin: Origin | None = None
    zxid: int = -1
    at_ms: int
    told_ms: int

    @property
    def row(self) -> tuple[tuple[str, Any], ...]:
        """The key of the row that this event is about, by column; empty if it is about none."""
        return tuple(self.subject.items())


def subject_of(event: Mapping[str, Any]) -> tuple[str, Key] | None:
    """The table and key of the row that an event is about, by the event's columns; None if it is about none."""
    if event["broker"] is not None:
        return BROKERS.name, (event["broker"],)
    if event["topic"] is None:
        return None
    if event["partition"] is None:
        return TOPICS.name, (event["topic"],)
    return PARTITIONS.name, (event["topic"], event["partition"])


def text_of(face: Face | None) -> str | None:
    return None if face is None else msgspec.json.encode(face).decode()


def face_of(text: str | None) -> Face | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])


class _Column(Column[EventRow], frozen=True):
    pass


EVENTS = Table[EventRow](
    name="events",
    comment="what happened, what set it off, and what became of it",
    key=("number",),
    order=("number",),
    columns=(
        _Column("at", UTC_TIME, "when, by ZooKeeper's clock where it keeps a time", lambda row: row.at_ms * 1_000),
        _Column("kind", pa.string(), "elected, leaderless, isr, gone, request, take_over, …", lambda row: row.kind),
        _Column("topic", pa.string(), "null: it is about none", lambda row: row.subject.get("topic")),
        _Column("partition", pa.int32(), "null: it is about none", lambda row: row.subject.get("partition")),
        _Column("broker", pa.int32(), "null: it is about none", lambda row: row.subject.get("broker")),
        _Column("was", pa.string(), "JSON of what it was; null: nothing", lambda row: row.was),
        _Column("became", pa.string(), "JSON of what it became; null: nothing", lambda row: row.became),
        _Column("leader", pa.int32(), "of the partition, from then on; null: none", lambda row: row.leader),
        _Column("leader_epoch", pa.int32(), "of the partition, from then on", lambda row: row.leader_epoch),
        _Column(
            "why",
            pa.string(),
            "how it was elected, what it waits for, or why a request was refused",
            lambda row: row.why,
        ),
        _Column(
            "because",
            pa.string(),
            "what set it off, in words",
            lambda row: None if row.origin is None else row.origin.words,
        ),
        _Column(
            "cause",
            pa.string(),
            "an id, the same for all that it set off: the controller's epoch and a number",
            lambda row: None if row.origin is None else row.origin.id,
        ),
        _Column("zxid", pa.int64(), "ZooKeeper's order of all changes", lambda row: row.zxid),
        _Column("number", pa.int64(), "in which order they were told: the order of events", lambda row: row.number),
        _Column("updated_at", UTC_TIME, "when the mirror was told", lambda row: row.told_ms * 1_000, is_mirrors=True),
        _Column("cluster_id", pa.string(), "whose event this is", lambda row: row.cluster_id, is_mirrors=True),
    ),
)
