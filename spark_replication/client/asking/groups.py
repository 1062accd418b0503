"""Asks coordinators for their consumer groups, and leaders for how much of a topic there is: who reads what, and how
far each is behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from spark_replication.client.asking.replica_sizes import replica_sizes
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.core.routing import partition_of
from spark_replication.errors import NotCoordinator
from spark_replication.messages.actions import DELETE_GROUP, DESCRIBE_GROUPS, RESET_GROUP
from spark_replication.messages.descriptions import ReplicaSize
from spark_replication.messages.groups import (
    GROUPS_TOPIC,
    DeleteGroup,
    DescribedGroup,
    DescribedMember,
    DescribedPosition,
    DescribeGroups,
    ResetGroup,
)
from spark_replication.model import Offset, PartitionNumber, TimeMs, TopicPartition

GroupState = Literal["empty", "stable", "moving"]


class GroupMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    member: str
    #: What people know it by.
    name: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    #: The partitions of these that it is to hand over to others.
    hands_over: tuple[TopicPartition, ...]
    silent_ms: int
    is_connected: bool


class GroupPartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    #: Where the group goes on. None: it has never committed here.
    offset: Offset | None
    committed_ms: TimeMs | None
    #: What is committed in the log. None: its leader did not say.
    log_start: Offset | None
    end: Offset | None
    #: The member that reads it. None: nobody does.
    member: str | None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def lag(self) -> int | None:
        """How many records are there that the group has not committed. None: that is not known."""
        if self.end is None or self.log_start is None:
            return None
        return max(0, self.end - max(self.log_start, self.offset or 0))


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: GroupState
    members: tuple[GroupMemberDescription, ...]
    partitions: tuple[GroupPartitionDescription, ...]

    @property
    def lag(self) -> int | None:
        """How many records the group has not committed, of all partitions. None: that is not known of each."""
        lags = [each.lag for each in self.partitions]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None


def described_groups(routes: Routes, names: Collection[str] | None, deadline: Deadline) -> list[GroupDescription]:
    """The groups of these names that there are, or all, sorted. Raises NotCoordinator if a coordinator cannot say: then
    a group might be missing."""
    groups = persistently(lambda: _told(routes, names, deadline), deadline)
    topics = {topic for group in groups for topic in _topics(group)}
    if not topics:
        return [_described(group, {}) for group in groups]
    metadata = routes.metadata(tuple(sorted(topics)), deadline)
    there = tuple(each.topic_partition for topic in metadata.topics for each in topic.partitions)
    sizes = {
        size.topic_partition: size for size in replica_sizes(routes, metadata.brokers, there, deadline) if size.leads
    }
    known = {partition: sizes.get(partition) for partition in there}
    return [_described(group, known) for group in groups]


def change_group(routes: Routes, asked: ResetGroup | DeleteGroup, deadline: Deadline) -> None:
    """Have the group's coordinator do it."""

    def ask() -> None:
        number = partition_of(routes.topic(GROUPS_TOPIC, deadline), asked.group.encode())
        route = routes.route(GROUPS_TOPIC, number, deadline)
        try:
            if isinstance(asked, ResetGroup):
                routes.call(route.address, RESET_GROUP, asked, deadline.within_ms(ASK_MS))
            else:
                routes.call(route.address, DELETE_GROUP, asked, deadline.within_ms(ASK_MS))
        except NotCoordinator:
            routes.stale(route)
            raise

    persistently(ask, deadline)


def _told(routes: Routes, names: Collection[str] | None, deadline: Deadline) -> list[DescribedGroup]:
    metadata = routes.metadata((GROUPS_TOPIC,), deadline)
    if not metadata.topics:
        return []  # no group has been here yet
    asked = DescribeGroups(groups=None if names is None else tuple(names))
    leaders = {each.state.leader for topic in metadata.topics for each in topic.partitions}
    found: list[DescribedGroup] = []
    for leader in leaders:
        registered = None if leader is None else metadata.brokers.get(leader)
        if registered is None:
            raise NotCoordinator(f"a partition of {GROUPS_TOPIC} has no leader, and its groups cannot be told: retry")
        told = routes.call(registered.address, DESCRIBE_GROUPS, asked, deadline.within_ms(ASK_MS))
        if told.unread:
            raise NotCoordinator(f"broker {leader} is still reading {GROUPS_TOPIC}: retry")
        found += told.groups
    return sorted(found, key=lambda each: each.group)


def _topics(group: DescribedGroup) -> Iterable[str]:
    yield from (position.topic for position in group.positions)
    for member in group.members:
        yield from member.introduction.topics


def _described(group: DescribedGroup, there: Mapping[TopicPartition, ReplicaSize | None]) -> GroupDescription:
    owners = {TopicPartition(*each): member.member for member in group.members for each in member.partitions}
    positions = {each.topic_partition: each for each in group.positions}
    read = {topic for member in group.members for topic in member.introduction.topics}
    partitions = sorted({*positions, *owners, *(each for each in there if each.topic in read)})
    return GroupDescription(
        group=group.group,
        state="empty" if not group.members else "moving" if _is_moving(group, owners, read, there) else "stable",
        members=tuple(map(_member, group.members)),
        partitions=tuple(_partition(each, positions.get(each), there.get(each), owners) for each in partitions),
    )


def _is_moving(
    group: DescribedGroup, owners: Collection[TopicPartition], read: Collection[str], there: Iterable[TopicPartition]
) -> bool:
    unowned = [each for each in there if each.topic in read and each not in owners]
    return bool(unowned) or any(member.hands_over for member in group.members)


def _member(told: DescribedMember) -> GroupMemberDescription:
    return GroupMemberDescription(
        member=told.member,
        name=told.introduction.name,
        host=told.introduction.host,
        topics=told.introduction.topics,
        partitions=tuple(TopicPartition(*each) for each in told.partitions),
        hands_over=tuple(TopicPartition(*each) for each in told.hands_over),
        silent_ms=told.silent_ms,
        is_connected=told.is_connected,
    )


def _partition(
    name: TopicPartition,
    position: DescribedPosition | None,
    size: ReplicaSize | None,
    owners: Mapping[TopicPartition, str],
) -> GroupPartitionDescription:
    if position is not None and size is not None and size.topic_id != position.topic_id:
        position = None  # of a topic that was made again since
    return GroupPartitionDescription(
        topic=name.topic,
        partition=name.partition,
        offset=None if position is None else position.offset,
        committed_ms=None if position is None else position.committed_ms,
        log_start=None if size is None else size.log_start,
        end=None if size is None else size.high_watermark,
        member=owners.get(name),
    )
