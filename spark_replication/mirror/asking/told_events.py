"""Answers to DescribeEvents: the newest rows of the table `events` that are about what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_replication.messages.mirroring import DescribeEvents, ToldEvent
from spark_replication.mirror.asking.load import read_events
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.delta.reading import is_one_of
from spark_replication.mirror.tables.events import face_of
from spark_replication.model import TopicPartition

_TOLD_AS_THEY_ARE = (
    *("number", "kind", "topic", "partition", "broker"),
    *("leader", "leader_epoch", "why", "because", "cause"),
)


def read_told(path: str, asked: DescribeEvents, store: StoreOptions = PATIENCE) -> list[ToldEvent]:
    """The events, the oldest first."""
    return [told_event(row) for row in read_events(path, where_of(asked), asked.last, store).to_pylist()]


def told_event(row: Mapping[str, Any]) -> ToldEvent:
    return ToldEvent(
        **{name: row[name] for name in _TOLD_AS_THEY_ARE},
        at_ms=round(row["at"].timestamp() * 1_000),
        was=face_of(row["was"]),
        became=face_of(row["became"]),
    )


def where_of(asked: DescribeEvents) -> str | None:
    """SQL for the events that are asked for; None for all."""
    about = [_is(partition) for partition in asked.partitions]
    about += [is_one_of("topic", asked.topics)] if asked.topics else []
    about += [is_one_of("broker", asked.brokers)] if asked.brokers else []
    wanted = [f"({' OR '.join(about)})"] if about else []
    wanted += [] if asked.cause is None else [is_one_of("cause", [asked.cause])]
    return " AND ".join(wanted) or None


def _is(partition: TopicPartition) -> str:
    return f"({is_one_of('topic', [partition.topic])} AND {is_one_of('partition', [partition.partition])})"
