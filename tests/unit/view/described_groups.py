"""Consumer groups as coordinators and leaders tell of them."""

from __future__ import annotations

from spark_replication.client.asking.groups import (
    GroupDescription,
    GroupMemberDescription,
    GroupPartitionDescription,
    GroupState,
)
from spark_replication.model import TopicPartition


def position(
    topic: str,
    number: int,
    offset: int | None,
    end: int | None,
    *,
    member: str | None = None,
    committed_ms: int | None = None,
) -> GroupPartitionDescription:
    return GroupPartitionDescription(
        topic=topic,
        partition=number,
        offset=offset,
        committed_ms=committed_ms,
        log_start=None if end is None else 0,
        end=end,
        lag_ms=None,
        member=member,
    )


def member(
    name: str, *partitions: TopicPartition, hands_over: int = 0, silent_ms: int = 100, is_connected: bool = True
) -> GroupMemberDescription:
    """Its id is `id-` and its name."""
    return GroupMemberDescription(
        member=f"id-{name}",
        name=name,
        host="here",
        topics=tuple({each.topic for each in partitions}),
        partitions=partitions,
        hands_over=partitions[:hands_over],
        silent_ms=silent_ms,
        is_connected=is_connected,
    )


def group(
    name: str,
    *partitions: GroupPartitionDescription,
    members: tuple[GroupMemberDescription, ...] = (),
    state: GroupState = "empty",
) -> GroupDescription:
    return GroupDescription(group=name, state=state, members=members, partitions=partitions)
