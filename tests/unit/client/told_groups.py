"""Groups as their coordinators tell of them."""

from __future__ import annotations

from collections.abc import Sequence

from spark_replication.messages.groups import DescribedGroup, DescribedMember, DescribedPosition, Holding, Introduction

COMMITTED_MS = 1_764_500_000_000


def member(name: str, *partitions: int, hands_over: Sequence[int] = (), silent_ms: int = 70) -> DescribedMember:
    return DescribedMember(
        member=name,
        introduction=Introduction(topics=("orders",), host=f"host-{name}", name=f"job-{name}", session_ms=6_000),
        partitions=tuple(Holding("orders", each) for each in partitions),
        hands_over=tuple(Holding("orders", each) for each in hands_over),
        silent_ms=silent_ms,
        is_connected=True,
    )


def position(partition: int, offset: int, *, topic: str = "orders", topic_id: str | None = None) -> DescribedPosition:
    return DescribedPosition(
        topic=topic,
        partition=partition,
        topic_id=topic_id or f"id-{topic}",
        offset=offset,
        last_epoch=0,
        committed_ms=COMMITTED_MS + partition,
    )


def group(
    name: str, members: Sequence[DescribedMember] = (), positions: Sequence[DescribedPosition] = ()
) -> DescribedGroup:
    return DescribedGroup(group=name, epoch=1, members=tuple(members), positions=tuple(positions))
