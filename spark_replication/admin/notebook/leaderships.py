"""Who led the partitions of a topic from when until when, according to its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from spark_replication.client.asking.descriptions import TopicDescription
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.model import BrokerId, PartitionNumber, TimeMs

#: How many partitions are shown: those that changed last.
PARTITIONS_MAX = 50
#: The time that is shown of a topic without known events.
QUIET_MS = 3_600_000
#: The least time that is shown.
SHOWN_MS_MIN = 1_000


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    partition: PartitionNumber
    #: None if nobody led.
    leader: BrokerId | None
    leader_epoch: int
    since_ms: TimeMs
    until_ms: TimeMs
    #: The event that began it; None if it began before the first known event.
    event: ToldEvent | None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    since_ms: TimeMs
    until_ms: TimeMs
    #: The partitions that are shown, by number.
    partitions: tuple[PartitionNumber, ...]
    #: How many partitions the topic has.
    of: int
    leaderships: tuple[Leadership, ...]
    #: The events of these partitions that changed no leader.
    others: tuple[ToldEvent, ...]


def timeline_of(
    topic: TopicDescription, events: Iterable[ToldEvent], now_ms: TimeMs, since_ms: TimeMs | None = None
) -> Timeline:
    """The timeline of a topic. `events` come the oldest first. It begins with the first if `since_ms` is None."""
    told = [event for event in events if event.topic == topic.name and event.partition is not None]
    until_ms = max([now_ms, *(event.at_ms for event in told)])
    first_ms = min([event.at_ms for event in told], default=until_ms - QUIET_MS)
    since_ms = min(until_ms - SHOWN_MS_MIN, first_ms if since_ms is None else since_ms)
    present = [each.partition for each in topic.partitions]
    newest = {event.partition: event.number for event in told}
    shown = sorted(present, key=lambda number: (-newest.get(number, -1), number))[:PARTITIONS_MAX]
    of_partition: dict[int, list[ToldEvent]] = {number: [] for number in shown}
    for event in told:
        if event.partition in of_partition:
            of_partition[event.partition].append(event)
    leaderships: list[Leadership] = []
    others: list[ToldEvent] = []
    for each in topic.partitions:
        if each.partition in of_partition:
            found = of_partition[each.partition]
            begun = [event for event in found if _begins(event)]
            before = _before(found, each.leader, each.leader_epoch)
            leaderships += _bars(each.partition, before, begun, since_ms, until_ms)
            others += [event for event in found if not _begins(event) and event.at_ms >= since_ms]
    return Timeline(
        topic=topic.name,
        since_ms=since_ms,
        until_ms=until_ms,
        partitions=tuple(sorted(shown)),
        of=len(present),
        leaderships=tuple(leaderships),
        others=tuple(others),
    )


def _begins(event: ToldEvent) -> bool:
    """Whether the event begins another leadership, or a time without a leader."""
    was = _lead(event.was)
    return was is None or event.became is None or was != _lead(event.became)


def _lead(face: dict[str, Any] | None) -> tuple[BrokerId | None, int] | None:
    return None if face is None else (face["leader"], face["leader_epoch"])


def _before(
    events: Sequence[ToldEvent], leader: BrokerId | None, leader_epoch: int
) -> tuple[BrokerId | None, int] | None:
    """Who led before these events; without events, who leads. None if the partition did not exist."""
    return _lead(events[0].was) if events else (leader, leader_epoch)


def _bars(
    partition: PartitionNumber,
    before: tuple[BrokerId | None, int] | None,
    begun: Sequence[ToldEvent],
    since_ms: TimeMs,
    until_ms: TimeMs,
) -> list[Leadership]:
    leads = [(since_ms, before, None), *((event.at_ms, _lead(event.became), event) for event in begun)]
    ends = [*(at_ms for at_ms, _, _ in leads[1:]), until_ms]
    return [
        Leadership(
            partition=partition,
            leader=lead[0],
            leader_epoch=lead[1],
            since_ms=max(at_ms, since_ms),
            until_ms=max(at_ms, end_ms),
            event=event,
        )
        for (at_ms, lead, event), end_ms in zip(leads, ends, strict=True)
        if lead is not None and end_ms >= since_ms and (event is not None or end_ms > since_ms)
    ]
