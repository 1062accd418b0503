"""What a consumer group does, and how far it is behind: the one summary by which everybody lists groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from spark_replication.model import Offset, PartitionNumber, TimeMs

#: What the states of a group mean, in the words of people.
STATES = {
    "moving": "partitions are handed over, or wait for a member",
    "stable": "each partition has its member",
    "empty": "it has no members",
    "spark_query": "a Spark query, which reports how far it is, and has no members",
}


class ShownPosition(Protocol):
    """A partition that a group reads, or has read, as clients know it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> PartitionNumber: ...
    @property
    def offset(self) -> Offset | None: ...
    @property
    def committed_ms(self) -> TimeMs | None: ...
    @property
    def lag(self) -> int | None: ...


class ShownGroup(Protocol):
    @property
    def group(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def members(self) -> Collection[object]: ...
    @property
    def partitions(self) -> Collection[ShownPosition]: ...


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    #: One of STATES.
    state: str
    members: int
    partitions: int
    #: How many records are there that it has not committed, of the partitions of which that is known.
    behind: int
    #: Of how many partitions it is not.
    unknown: int
    #: When it committed last. None: never.
    committed_ms: TimeMs | None


def summary_of(group: ShownGroup, partitions: Collection[ShownPosition] | None = None) -> GroupSummary:
    """The summary of these partitions of the group, or of all."""
    counted = group.partitions if partitions is None else partitions
    lags = [each.lag for each in counted]
    return GroupSummary(
        group=group.group,
        state=group.state,
        members=len(group.members),
        partitions=len(lags),
        behind=sum(lag for lag in lags if lag is not None),
        unknown=lags.count(None),
        committed_ms=max((each.committed_ms for each in counted if each.committed_ms is not None), default=None),
    )


def place_by_lag(lag: int | None) -> tuple[int, bool]:
    """What sorts what is most behind to the front. That of which nobody knows it comes before what was read to its
    end."""
    return -(lag or 0), lag is not None


def most_behind_first(groups: Iterable[GroupSummary]) -> list[GroupSummary]:
    """A group of which nobody knows it comes before groups that have read everything."""
    return sorted(groups, key=lambda each: (-each.behind, -each.unknown, each.group))
